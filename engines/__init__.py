"""Engines for `draft` and `target`, with the tensors of NVIDIA's `tensorrt_llm` model.

An engine receives an `EngineRequest`, responds with `EngineResponse`s and doesn't depend on Triton.
`engines.triton` connects the two.
"""
