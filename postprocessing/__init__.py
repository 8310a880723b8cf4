"""Token ids to text, whole or in chunks, never cutting a character."""
