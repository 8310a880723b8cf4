"""Profiles, checkpoints, and the model settings that are derived from both."""
