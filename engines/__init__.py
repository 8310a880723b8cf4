"""The engines of `draft` and `target`. They use the tensors of NVIDIA's `tensorrt_llm` model.

An engine takes an `EngineRequest`, responds with `EngineResponse`s and doesn't know Triton.
`engines.triton` connects the two.
"""
