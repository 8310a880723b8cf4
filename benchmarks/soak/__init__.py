"""A soak test: many clients and constant faults, and what leaks or goes wrong."""
