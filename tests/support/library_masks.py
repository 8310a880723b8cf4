"""A logits processor, to generate guided answers with `generate` of transformers."""

import numpy as np
import torch
from llguidance import LLMatcher


class Masked:
    """A logits processor for transformers that applies llguidance's masks."""

    def __init__(self, tokenizer, grammar, num_input_tokens) -> None:
        self._matcher = LLMatcher(tokenizer, grammar)
        self._seen = num_input_tokens

    def __call__(self, ids, scores):
        new = ids[0, self._seen :].tolist()
        self._seen += len(new)
        assert self._matcher.consume_tokens(new)
        kept = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8) > 0
        return scores.masked_fill(~torch.from_numpy(kept), -torch.inf)
