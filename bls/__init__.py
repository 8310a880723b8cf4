"""The decoding loop in pure Python and numpy. ``bls.triton`` connects it to Triton.

In *logits mode* (`use_draft_logits`), the target accepts draft tokens by probability instead of
comparing ids.
"""
