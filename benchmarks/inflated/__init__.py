"""Small Llama checkpoints in the shapes of large ones, which compute the same function.

So real engines can be measured at real sizes without real weights. Every step reads and multiplies
as much as the large model, but every text equals the small model's.
"""
