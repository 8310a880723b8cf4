"""The `tandem` command and its foundations: profiles, rendering, the server."""
