"""Measures drafters on a live server: variants, load, statistics and report."""
