"""A soak test with many clients and constant faults, which finds leaks and wrong answers."""
