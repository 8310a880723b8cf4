"""What the loop counts, and the metrics it becomes."""
