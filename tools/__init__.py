"""The `tandem` command, with its profiles, rendering and server."""
