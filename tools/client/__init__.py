"""What asks a server: the client, its answers, and how they are shown."""
