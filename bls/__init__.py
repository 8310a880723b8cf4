"""The decoding loop in pure Python and numpy. ``bls.triton`` connects it to Triton.

An *answer* is the generated output for one prompt. An `EngineResult` is the result of one engine
call.

In *logits mode* (`use_draft_logits`), the target accepts draft tokens by probability instead of
comparing ids.
"""
