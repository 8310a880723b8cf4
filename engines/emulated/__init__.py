"""The emulated engine: no weights, a synthetic language, and the timing of a real engine.

It serves load tests, capacity planning and measurements of the loop. Every measurement that comes
from it is an emulated one.
"""
