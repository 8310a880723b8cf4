"""The `tandem` command: one module per command, and the options that several commands share."""
