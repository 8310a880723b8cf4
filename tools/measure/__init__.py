"""Measuring a live server: what `tandem bench` and `tandem tune` share."""
