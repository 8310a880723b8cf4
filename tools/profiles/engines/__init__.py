"""One module per kind of engine: its section of a profile, and the plan made from it."""
