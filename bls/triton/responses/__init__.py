"""Builds and sends responses to clients."""
