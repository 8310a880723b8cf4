"""What keeps drafts from changing an answer's distribution."""
