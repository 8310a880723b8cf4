"""Sampling parameters, and the distributions that follow from them."""
