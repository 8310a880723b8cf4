"""The contract: where the decoding loop, the engines and the tokenizer models meet.

Nothing here imports anything of ours. No tensor is declared anywhere else; metrics are declared by
whoever counts them, with `contract.metric`.
"""
