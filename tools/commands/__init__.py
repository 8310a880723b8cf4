"""The `tandem` command: one module a verb, and the option groups that they share."""
