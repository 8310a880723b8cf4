"""Repeatable measurements. Each script runs with ``python -m benchmarks.NAME``."""
