"""What can stand behind `draft` and `target`: engines that speak NVIDIA's `tensorrt_llm` tensors.

An engine takes an `EngineRequest`, answers with `EngineResponse`s and knows nothing of Triton;
`engines.triton` is where the two meet.
"""
