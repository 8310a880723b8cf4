"""Inflates small Llama checkpoints to the shapes of large models, with the same outputs.

Real engines can then be measured at real sizes without the weights of a large model. Every step
reads and computes as much as the large model does, but every output equals the small model's.
"""
