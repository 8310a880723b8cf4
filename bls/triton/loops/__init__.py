"""Lets several processes serve one entry, each with its own loop."""
