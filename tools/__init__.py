"""The `tandem` command, and what it stands on: profiles, rendering, the server."""
