"""Profiles, checkpoints, and the settings derived from both."""
