"""Statistics of the loop, and the metrics made from them."""
