"""The emulated engine: no weights, a synthetic language, and the timing of a real engine.

Use it for load tests, capacity planning and measurements of the loop. Its measurements must be
labeled as emulated.
"""
