"""The contract between the decoding loop, the engines and the tokenizer models.

Its modules import nothing else of Tandem. Every tensor is declared here; metrics are declared by
the packages that count them, with `contract.metric`.
"""
