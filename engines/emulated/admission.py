"""Which calls the emulated engine refuses besides those that any engine does."""

from __future__ import annotations

from tandem.engines.errors import UnsupportedError
from tandem.engines.request import EngineRequest


def check_emulated(request: EngineRequest) -> None:
    """Raise UnsupportedError, naming the input, for what would change the text of a real engine."""
    sampling = request.sampling
    refused = {
        "repetition_penalty": sampling.repetition_penalty != 1,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "embedding_bias": sampling.embedding_bias is not None,
        "num_top_log_probs": request.num_top_log_probs > 0,
        "return_prompt_log_probs": request.return_prompt_log_probs,
        "return_context_logits": request.return_context_logits,
    }
    for name, given in refused.items():
        if given:
            raise UnsupportedError(f"{name} is not supported by the emulated engine")
