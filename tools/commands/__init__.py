"""The `tandem` command: one module for each command, and the option groups that they share."""
