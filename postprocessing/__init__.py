"""Convert token ids to text, whole or in chunks, without ever splitting a character."""
