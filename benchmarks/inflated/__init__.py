"""Small Llama checkpoints in the shapes of large ones, which compute the same function.

So real engines can be measured at real sizes without real weights: every step reads and multiplies
what the large model would, and every text is still the small model's own.
"""
