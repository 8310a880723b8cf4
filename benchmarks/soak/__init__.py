"""A soak test: many clients and constant faults, checked for leaks and wrong answers."""
