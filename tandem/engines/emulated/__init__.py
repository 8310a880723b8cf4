"""The emulated engine: a synthetic language without weights, with the timing of a real engine.

Use it for load tests, capacity planning and measurements of the loop. Label its measurements as
emulated.
"""
