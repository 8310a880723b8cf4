"""Convert the fields of a request to inputs of the entry that runs the loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from http import HTTPStatus

import numpy as np

from tandem.contract import entry as tensors
from tandem.contract.engine import EMBEDDING_BIAS
from tandem.contract.tensor import Tensor
from tandem.gateway.answers.tokens import ORIGINS
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.models import ServedModel
from tandem.gateway.protocol.messages import join_text
from tandem.gateway.protocol.requests import ChatRequest, GenerationRequest
from tandem.gateway.protocol.structured_outputs import RequestedGuide
from tandem.gateway.triton.backend import Inputs, Value

AUTO = -1  # the entries' value for `num_draft_tokens: "auto"`
NO_END = -1


def inputs_for(
    request: GenerationRequest,
    model: ServedModel,
    guide: RequestedGuide | None,
    *,
    client: str | None,
    salts: bool,
) -> Inputs:
    """Return the inputs that all answers to a request share, and that may be large.

    client: what distinguishes this client's KV cache and lookup pools from others'; None: nothing.
    salts: whether the target separates KV caches.
    """
    length = request.num_draft_tokens
    ahead = request.draft_ahead
    prediction = request.prediction
    inputs: dict[Tensor, Value | None] = {
        tensors.MIN_TOKENS: request.min_tokens or None,
        tensors.STREAM: request.stream,
        tensors.EXCLUDE_INPUT_IN_OUTPUT: not request.echoes,
        tensors.END_ID: NO_END if request.ignore_eos else None,
        tensors.STOP_WORDS: request.stop or None,
        tensors.BAD_WORDS: request.bad_words or None,
        tensors.REPETITION_PENALTY: request.repetition_penalty,
        tensors.PRESENCE_PENALTY: request.presence_penalty,
        tensors.FREQUENCY_PENALTY: request.frequency_penalty,
        tensors.LOGIT_BIAS_IDS: list(request.logit_bias) or None,
        tensors.LOGIT_BIAS_VALUES: list(request.logit_bias.values()) or None,
        tensors.RETURN_LOG_PROBS: request.num_alternatives is not None or None,
        tensors.RETURN_PROMPT_LOG_PROBS: _rates_prompt(request) or None,
        tensors.NUM_TOP_LOG_PROBS: _num_alternatives(request) or None,
        tensors.DRAFTER: request.drafter or model.drafter,
        tensors.LORA_NAME: model.lora_name,
        tensors.NUM_DRAFT_TOKENS: AUTO if length == "auto" else length,
        tensors.DRAFT_AHEAD: None if ahead is None else str(ahead).lower(),
        tensors.PROMPT_LOOKUP_NUM_TOKENS: request.prompt_lookup_num_tokens,
        tensors.MAX_MATCHING_NGRAM_SIZE: request.max_matching_ngram_size,
        tensors.PRIORITY: request.priority or None,
        tensors.LOOKUP_POOL: request.lookup_pool and _own(client, request.lookup_pool),
        tensors.CACHE_SALT: _own(client if salts else None, request.cache_salt),
        tensors.PREDICTION: join_text(prediction.content) or None if prediction else None,
        tensors.USE_DRAFT_LOGITS: request.use_draft_logits,
        tensors.DRAFT_ACCEPTANCE_THRESHOLD: request.draft_acceptance_threshold,
        tensors.TEMPERATURE: 0.0,
    }
    # A top_p that is 0 as a float32 leaves only the most likely token, which is greedy. Without
    # top_p, entries would decode greedily at temperature 1.
    if request.temperature and np.float32(request.top_p):
        inputs |= {
            tensors.TEMPERATURE: request.temperature,
            tensors.TOP_P: request.top_p,
            tensors.TOP_K: max(request.top_k, 0) or None,
            tensors.MIN_P: request.min_p or None,
        }
    if guide is not None:
        inputs |= {
            tensors.GUIDED_DECODING_GUIDE_TYPE: guide.kind,
            tensors.GUIDED_DECODING_GUIDE: guide.text,
        }
    return {tensor: value for tensor, value in inputs.items() if value is not None}


def _own(client: str | None, name: str | None) -> str | None:
    """Return a name that no other client can use. Without `client`, names are shared."""
    return name if client is None else blake2b(f"{client} {name or ''}".encode()).hexdigest()


def inputs_of_answer(
    request: GenerationRequest, ids: Sequence[int], max_tokens: int, number: int
) -> Inputs:
    """Return one answer's own inputs.

    ids: the prompt, [num_input_tokens].
    max_tokens: maximum length of the answer.
    number: index of the answer among all answers to the request.
    """
    inputs: dict[Tensor, Value] = {tensors.INPUT_IDS: ids, tensors.MAX_TOKENS: max_tokens}
    if request.seed is not None:
        inputs[tensors.SEED] = derived_seed(request.seed, number)
    return inputs


def client_error(
    error: ApiError, *, request: GenerationRequest, guide: RequestedGuide | None
) -> ApiError:
    """Return an entry's error with the names of the fields that the client sent.

    For example, "input 'stop_words' has 300 words" becomes "stop has 300 words". The error's
    `param` is the input that is wrong.
    """
    if error.status != HTTPStatus.BAD_REQUEST:
        return error
    alternatives = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
    if _num_alternatives(request) > (request.num_alternatives or 0):
        alternatives = "prompt_logprobs"
    names: dict[str, str] = {name: name for name in tensors.INPUTS}  # by input
    names |= {
        tensors.INPUT_IDS: request.prompt_field,
        tensors.MAX_TOKENS: request.limit_field,
        tensors.STOP_WORDS: "stop",
        tensors.END_ID: "ignore_eos",
        tensors.LOGIT_BIAS_IDS: "logit_bias",
        tensors.LOGIT_BIAS_VALUES: "logit_bias",
        EMBEDDING_BIAS: "logit_bias",  # an engine's own input
        tensors.RETURN_LOG_PROBS: "logprobs",
        tensors.RETURN_PROMPT_LOG_PROBS: (
            "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        ),
        tensors.NUM_TOP_LOG_PROBS: alternatives,
    }
    if guide is not None:
        names[tensors.GUIDED_DECODING_GUIDE] = guide.field
        names[tensors.GUIDED_DECODING_GUIDE_TYPE] = guide.field
    field = names.get(error.param or "")
    message = re.sub(
        rf"(?:\binputs? )?'(\w+)'|\b({EMBEDDING_BIAS})\b",
        lambda found: names.get(found[1] or found[2], found[0]),
        error.message,
    )
    if guide is not None and error.code == "invalid_guide":
        field, reason = guide.locate(message.removeprefix(f"{guide.field}: "))
        message = f"{field}: {reason}"
    return bad_request(message, param=field, code=error.code)


def extras_for(request: GenerationRequest) -> list[Tensor]:
    """Return the optional outputs that a request needs."""
    extras = dict.fromkeys(ORIGINS if request.return_token_details else ())
    if request.num_alternatives is not None:
        extras |= dict.fromkeys([tensors.OUTPUT_TEXT_LENGTHS, tensors.OUTPUT_LOG_PROBS])
    if request.num_alternatives:
        extras |= dict.fromkeys([tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS])
    if _rates_prompt(request):
        extras[tensors.PROMPT_LOG_PROBS] = None
        if _num_alternatives(request):
            extras |= dict.fromkeys([tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS])
    return list(extras)


def _rates_prompt(request: GenerationRequest) -> bool:
    rates_all = request.echoes and request.num_alternatives is not None
    return rates_all or request.prompt_logprobs is not None


def _num_alternatives(request: GenerationRequest) -> int:
    """Return the number of alternatives per token of the prompt and the answer."""
    return max(request.num_alternatives or 0, request.prompt_logprobs or 0)


def derived_seed(seed: int, number: int) -> int:
    """Return the seed of one of several answers. The first answer gets the request's seed."""
    if number == 0:
        return seed % 2**64
    digest = blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
