"""What a deployment decides: profiles, checkpoints, and what follows from both."""
