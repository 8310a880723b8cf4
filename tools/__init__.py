"""The `tandem` command and what it needs: profiles, rendering and the server."""
