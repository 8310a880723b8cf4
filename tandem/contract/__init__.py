"""The contract between the decoding loop, the engines and the tokenizer models.

Its modules import no other package of Tandem. All tensors are declared here. Metrics are declared
with `contract.metric` in the packages that count them.
"""
