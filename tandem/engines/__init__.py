"""Engines for `draft` and `target`. They use the tensors of NVIDIA's `tensorrt_llm` model.

An engine receives an `EngineRequest`, responds with `EngineResponse`s, and doesn't depend on
Triton. `engines.triton` adapts an engine to Triton.
"""
