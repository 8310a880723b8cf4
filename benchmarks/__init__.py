"""Measurements that anyone can repeat; each module is a script, run with ``python -m``."""
