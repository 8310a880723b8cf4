"""The tensor contract: where the decoding loop, the engines and the tokenizer models meet.

Nothing here imports anything of ours, and no tensor is named anywhere else.
"""
