"""Whether the torch engine can serve a checkpoint's architecture, as far as config.json says.

The engine compares its logits with transformers' own when it has loaded the weights. This spares
the load, or the download, where the answer is known before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CAUSAL = ("ForCausalLM", "LMHeadModel")  # how transformers' classes for decoders end
ATTENTION = {"full_attention", "sliding_attention"}
RECURRENT = {"mamba", "mamba2", "falcon_mamba", "rwkv"}


def why_unsupported(config: Mapping[str, Any]) -> str | None:
    """Say why the engine cannot serve a checkpoint; None where nothing is known against it.

    config: the content of its config.json.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    if config.get("is_encoder_decoder") or (
        names and not any(name.endswith(CAUSAL) for name in names)
    ):
        kind = names[0] if names else config.get("model_type", "an encoder-decoder")
        return f"architecture '{kind}' is not a decoder-only language model (...ForCausalLM)"
    kind = str(config.get("model_type"))
    if kind in RECURRENT:
        return f"architecture '{kind}' has no attention, whose keys and values could be reused"
    others = sorted(set(config.get("layer_types") or ()) - ATTENTION)
    if others:
        return f"architecture '{kind}' has layers of type '{others[0]}', which are not supported"
    return None
