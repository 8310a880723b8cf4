"""Tensors of the text entries, and the request ids that they forward and stop.

The tensors are NVIDIA's (`tensorrt_llm_bls`), and Tandem's own. `docs/reference_tables.py`
copies the text below each tensor into the reference. Inputs without a text are rejected, or have no
effect.
"""

from __future__ import annotations

import re
import uuid
from typing import Final, Literal, TypeAlias, get_args

from tandem.contract.tensor import Tensors

# Origin of a token. `output_kinds` contains indices into KINDS. "unknown": the engine drafts by
# itself and doesn't report the origin. "forced": the request's guide allows no other token.
Kind: TypeAlias = Literal["plain", "accepted", "correction", "bonus", "unknown", "forced"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

INPUTS = Tensors()
TEXT_INPUT = INPUTS.declare("text_input", "STRING", (1,), optional=True)
"""The prompt."""
DECODER_TEXT_INPUT = INPUTS.declare("decoder_text_input", "STRING", (1,), optional=True)
IMAGE_INPUT = INPUTS.declare("image_input", "FP16", (-1, 3, -1, -1), optional=True)
IMAGE_BYTES_INPUT = INPUTS.declare("image_bytes_input", "UINT8", (-1, -1, -1, -1), optional=True)
IMAGE_URL_INPUT = INPUTS.declare("image_url_input", "STRING", (1,), optional=True)
VIDEO_BYTES_INPUT = INPUTS.declare("video_bytes_input", "UINT8", (-1, -1, -1, -1), optional=True)
MAX_TOKENS = INPUTS.declare("max_tokens", "INT32", (1,))
"""Maximum length of the output, at least 1. Required."""
BAD_WORDS = INPUTS.declare("bad_words", "STRING", (-1,), optional=True)
"""Words to suppress at the start of the text or after a space, but not within longer tokens."""
STOP_WORDS = INPUTS.declare("stop_words", "STRING", (-1,), optional=True)
"""Strings that end the output before they appear."""
EXCLUDE_INPUT_IN_OUTPUT = INPUTS.declare("exclude_input_in_output", "BOOL", (1,), optional=True)
"""Omit the prompt from the output (default: the profile's)."""
END_ID = INPUTS.declare("end_id", "INT32", (1,), optional=True)
"""Token that ends the output instead of the checkpoint's own; -1: none."""
PAD_ID = INPUTS.declare("pad_id", "INT32", (1,), optional=True)
TOP_K = INPUTS.declare("top_k", "INT32", (1,), optional=True)
"""Sample from this many most likely tokens; 0: not set."""
TOP_P = INPUTS.declare("top_p", "FP32", (1,), optional=True)
"""Sample from the most likely tokens that together reach this probability; 0: not set."""
TEMPERATURE = INPUTS.declare("temperature", "FP32", (1,), optional=True)
"""0 is greedy; see Sampling."""
LENGTH_PENALTY = INPUTS.declare("length_penalty", "FP32", (1,), optional=True)
REPETITION_PENALTY = INPUTS.declare("repetition_penalty", "FP32", (1,), optional=True)
"""Above 1, discourages tokens of the prompt and the output."""
MIN_TOKENS = INPUTS.declare("min_tokens", "INT32", (1,), optional=True)
"""Minimum length of the output; end-of-sequence tokens are suppressed until then."""
PRESENCE_PENALTY = INPUTS.declare("presence_penalty", "FP32", (1,), optional=True)
"""Subtracted once from the logit of each token already in the prompt or the output."""
FREQUENCY_PENALTY = INPUTS.declare("frequency_penalty", "FP32", (1,), optional=True)
"""Subtracted from a token's logit for each occurrence in the prompt or the output."""
SEED = INPUTS.declare("seed", "UINT64", (1,), optional=True)
"""Repeats a sampled output; see Sampling (default: drawn per request)."""
RETURN_LOG_PROBS = INPUTS.scalar("return_log_probs", "BOOL")
"""Return `output_log_probs` and `cum_log_probs`."""
NUM_TOP_LOG_PROBS = INPUTS.declare("num_top_log_probs", "INT32", (1,), optional=True)
"""Also return this many most likely tokens per position, up to 20. `torch`, `llamacpp` and `vllm`
targets only."""
RETURN_PROMPT_LOG_PROBS = INPUTS.declare("return_prompt_log_probs", "BOOL", (1,), optional=True)
"""Return `prompt_log_probs`; recomputes the whole prompt. `torch` and `llamacpp` targets only."""
RETURN_CONTEXT_LOGITS = INPUTS.scalar("return_context_logits", "BOOL")
"""Return `context_logits`; the request runs without drafts."""
RETURN_GENERATION_LOGITS = INPUTS.scalar("return_generation_logits", "BOOL")
"""Return `generation_logits`."""
NUM_RETURN_SEQUENCES = INPUTS.scalar("num_return_sequences", "INT32")
BEAM_WIDTH = INPUTS.declare("beam_width", "INT32", (1,), optional=True)
STREAM = INPUTS.declare("stream", "BOOL", (1,), optional=True)
"""`bls_stream` only: send the output in chunks, one per round, or every 0.1 to 0.5 s
without drafts."""
PROMPT_EMBEDDING_TABLE = INPUTS.declare("prompt_embedding_table", "FP16", (-1, -1), optional=True)
PROMPT_VOCAB_SIZE = INPUTS.declare("prompt_vocab_size", "INT32", (1,), optional=True)
PROMPT_TABLE_EXTRA_ID = INPUTS.declare("prompt_table_extra_id", "UINT64", (1,), optional=True)
EMBEDDING_BIAS_WORDS = INPUTS.declare("embedding_bias_words", "STRING", (-1,), optional=True)
"""Words whose tokens get a bias on their logits."""
EMBEDDING_BIAS_WEIGHTS = INPUTS.declare("embedding_bias_weights", "FP32", (-1,), optional=True)
"""The bias of each of `embedding_bias_words`."""
LOGIT_BIAS_IDS = INPUTS.declare("logit_bias_ids", "INT32", (-1,), optional=True)
"""Token ids that get a bias on their logits; an id given twice gets the sum."""
LOGIT_BIAS_VALUES = INPUTS.declare("logit_bias_values", "FP32", (-1,), optional=True)
"""The bias of each of `logit_bias_ids`."""
NUM_DRAFT_TOKENS = INPUTS.declare("num_draft_tokens", "INT32", (1,), optional=True)
"""Maximum draft tokens per round, up to `max_draft_len`; 0: no drafts, -1: `draft_len: auto`."""
USE_DRAFT_LOGITS = INPUTS.scalar("use_draft_logits", "BOOL")
"""Accept draft tokens by probability instead of comparing ids."""
LORA_TASK_ID = INPUTS.scalar("lora_task_id", "UINT64")
"""Id of the client's own LoRA adapter; see LoRA. `tensorrtllm` targets only."""
LORA_WEIGHTS = INPUTS.ragged("lora_weights", "FP16", (-1, -1))
"""Weights of that adapter, from hf_lora_convert.py; needed until the engine has them."""
LORA_CONFIG = INPUTS.ragged("lora_config", "INT32", (-1, 3))
"""Modules, layers and ranks of `lora_weights`, one row each."""
RETURN_PERF_METRICS = INPUTS.scalar("return_perf_metrics", "BOOL")
"""Return KV-block counts and timestamps."""
GUIDED_DECODING_GUIDE_TYPE = INPUTS.declare(
    "guided_decoding_guide_type", "STRING", (1,), optional=True
)
"""Kind of the guide that constrains the output, such as `json_schema`."""
GUIDED_DECODING_GUIDE = INPUTS.declare("guided_decoding_guide", "STRING", (1,), optional=True)
"""The guide: a schema, regular expression, grammar or list."""
RETURN_NUM_INPUT_TOKENS = INPUTS.declare("return_num_input_tokens", "BOOL", (1,), optional=True)
"""Return `num_input_tokens`."""
RETURN_NUM_OUTPUT_TOKENS = INPUTS.declare("return_num_output_tokens", "BOOL", (1,), optional=True)
"""Return `num_output_tokens`."""
MIN_P = INPUTS.declare("min_p", "FP32", (1,), optional=True)
"""Exclude tokens less likely than this fraction of the most likely one; 0: not set."""
INPUT_IDS = INPUTS.ragged("input_ids", "INT32", (-1,))
"""The prompt as token ids, instead of `text_input`."""
RANDOM_SEED = INPUTS.declare("random_seed", "UINT64", (1,), optional=True)
"""Another name for `seed`."""
DRAFTER = INPUTS.declare("drafter", "STRING", (1,), optional=True)
"""A drafter of the deployment, such as `hybrid` or `none` (default: the entry's)."""
DRAFT_AHEAD = INPUTS.declare("draft_ahead", "STRING", (1,), optional=True)
"""Draft the next round during verification: `auto`, `true` or `false`. Never when sampling with
`use_draft_logits`."""
PROMPT_LOOKUP_NUM_TOKENS = INPUTS.declare("prompt_lookup_num_tokens", "INT32", (1,), optional=True)
"""Maximum draft tokens per round of prompt lookup (default: `num_draft_tokens` if sent, else the
profile's; with `draft_len: auto`, the target's `max_draft_len`)."""
MAX_MATCHING_NGRAM_SIZE = INPUTS.declare("max_matching_ngram_size", "INT32", (1,), optional=True)
"""Longest n-gram that prompt lookup searches for."""
LOOKUP_POOL = INPUTS.declare("lookup_pool", "STRING", (1,), optional=True)
"""Name of the lookup pool to copy from and to join, up to 256 bytes (default: none)."""
PREDICTION = INPUTS.declare("prediction", "STRING", (1,), optional=True)
"""The expected output, which prompt lookup copies from first (default: none)."""
PREDICTION_IDS = INPUTS.ragged("prediction_ids", "INT32", (-1,))
"""The expected output as token ids, instead of `prediction`."""
DRAFT_ACCEPTANCE_THRESHOLD = INPUTS.declare(
    "draft_acceptance_threshold", "FP32", (1,), optional=True
)
"""With `use_draft_logits`: accept every draft token with at least this target probability. Changes
the distribution."""
PRIORITY = INPUTS.declare("priority", "INT32", (1,), optional=True)
"""Place in the queue, -100 to 100; lower starts earlier (default: 0). A level counts as 10 s."""
LORA_NAME = INPUTS.declare("lora_name", "STRING", (1,), optional=True)
"""LoRA adapter, by its name in the profile (default: none)."""
CACHE_SALT = INPUTS.declare("cache_salt", "STRING", (1,), optional=True)
"""Reuse the KV cache only of requests with the same salt (default: of requests without one)."""
STOP = INPUTS.declare("stop", "BOOL", (1,), optional=True)
"""Sent alone to `bls_stream`: cancels the request with the same id."""
MANAGE_POOLS = INPUTS.declare("manage_pools", "STRING", (1,), optional=True)
"""Sent alone: `list` returns the sizes of lookup pools; `clear` or `clear ID` empties them."""

OUTPUTS = Tensors()
TEXT_OUTPUT = OUTPUTS.declare("text_output", "STRING", (-1,))
"""The output; in a chunk, what the chunk adds."""
CUM_LOG_PROBS = OUTPUTS.declare("cum_log_probs", "FP32", (-1,))
"""Sum of the log-probabilities so far."""
OUTPUT_LOG_PROBS = OUTPUTS.declare("output_log_probs", "FP32", (-1, -1))
"""Log-probability of each token."""
OUTPUT_TOP_IDS = OUTPUTS.declare("output_top_ids", "INT32", (-1, -1, -1))
"""Most likely tokens at each position, best first."""
OUTPUT_TOP_LOG_PROBS = OUTPUTS.declare("output_top_log_probs", "FP32", (-1, -1, -1))
"""Log-probabilities of `output_top_ids`."""
PROMPT_LOG_PROBS = OUTPUTS.declare("prompt_log_probs", "FP32", (-1, -1))
"""Log-probability of each prompt token; zero for the first. First response only."""
PROMPT_TOP_IDS = OUTPUTS.declare("prompt_top_ids", "INT32", (-1, -1, -1))
"""Most likely tokens at each prompt position, best first."""
PROMPT_TOP_LOG_PROBS = OUTPUTS.declare("prompt_top_log_probs", "FP32", (-1, -1, -1))
"""Log-probabilities of `prompt_top_ids`."""
CONTEXT_LOGITS = OUTPUTS.declare("context_logits", "FP32", (-1, -1))
"""Logits of the prompt; last response only."""
GENERATION_LOGITS = OUTPUTS.declare("generation_logits", "FP32", (-1, -1, -1))
"""Logits of the output, with the lowest value for banned tokens; last response only."""
BATCH_INDEX = OUTPUTS.declare("batch_index", "INT32", (1,))
"""Index of the prompt that a chunk belongs to."""
SEQUENCE_INDEX = OUTPUTS.declare("sequence_index", "INT32", (1,))
"""Always 0."""
KV_CACHE_ALLOC_NEW_BLOCKS = OUTPUTS.declare("kv_cache_alloc_new_blocks", "INT32", (1,))
"""KV blocks of the target that the request added."""
KV_CACHE_REUSED_BLOCKS = OUTPUTS.declare("kv_cache_reused_blocks", "INT32", (1,))
"""KV blocks of the target that the prompt shares with earlier requests."""
KV_CACHE_ALLOC_TOTAL_BLOCKS = OUTPUTS.declare("kv_cache_alloc_total_blocks", "INT32", (1,))
"""New and reused blocks together."""
ARRIVAL_TIME_NS = OUTPUTS.declare("arrival_time_ns", "INT64", (1,))
"""Wall-clock time of arrival."""
FIRST_SCHEDULED_TIME_NS = OUTPUTS.declare("first_scheduled_time_ns", "INT64", (1,))
"""Wall-clock time at which decoding started."""
FIRST_TOKEN_TIME_NS = OUTPUTS.declare("first_token_time_ns", "INT64", (1,))
"""Wall-clock time of the first token."""
LAST_TOKEN_TIME_NS = OUTPUTS.declare("last_token_time_ns", "INT64", (1,))
"""Wall-clock time of the last token."""
ACCEPTANCE_RATE = OUTPUTS.declare("acceptance_rate", "FP32", (1,))
"""Accepted draft tokens per draft token; 0 without drafts."""
TOTAL_ACCEPTED_DRAFT_TOKENS = OUTPUTS.declare("total_accepted_draft_tokens", "INT32", (1,))
"""Accepted draft tokens so far."""
TOTAL_DRAFT_TOKENS = OUTPUTS.declare("total_draft_tokens", "INT32", (1,))
"""Draft tokens so far."""
NUM_INPUT_TOKENS = OUTPUTS.declare("num_input_tokens", "INT32", (1,))
"""Length of the prompt."""
NUM_OUTPUT_TOKENS = OUTPUTS.declare("num_output_tokens", "INT32", (1,))
"""Number of output tokens; in a chunk, only the chunk's."""
OUTPUT_IDS = OUTPUTS.declare("output_ids", "INT32", (-1, -1))
"""Token ids of the output. On request."""
SEQUENCE_LENGTH = OUTPUTS.declare("sequence_length", "INT32", (-1,))
"""Number of `output_ids`. On request."""
OUTPUT_ROUNDS = OUTPUTS.declare("output_rounds", "INT32", (-1, -1))
"""Round of each token, from 1. On request."""
OUTPUT_KINDS = OUTPUTS.declare("output_kinds", "UINT8", (-1, -1))
"""Origin of each token. On request."""
OUTPUT_TEXT_LENGTHS = OUTPUTS.declare("output_text_lengths", "INT32", (-1, -1))
"""Characters that each token completes. On request."""
OUTPUT_REJECTED_IDS = OUTPUTS.declare("output_rejected_ids", "INT32", (-1, -1))
"""Rejected draft token that each token replaces; -1: none. On request."""
FINISH_REASON = OUTPUTS.declare("finish_reason", "STRING", (-1,))
"""`stop` or `length`; last response only."""
NUM_ROUNDS = OUTPUTS.declare("num_rounds", "INT32", (1,))
"""Rounds so far."""
SPEC_DECODE_STATISTICS = OUTPUTS.declare("spec_decode_statistics", "STRING", (-1,))
"""JSON statistics of speculation, in total and per round. On request."""

# Outputs that all clients read, in whole responses and in chunks.
ANSWER_OUTPUTS: Final = (
    TEXT_OUTPUT,
    OUTPUT_IDS,
    SEQUENCE_LENGTH,
    FINISH_REASON,
    NUM_ROUNDS,
    TOTAL_DRAFT_TOKENS,
    TOTAL_ACCEPTED_DRAFT_TOKENS,
    SPEC_DECODE_STATISTICS,
)

# A ``stop`` ends the request with the same id, and any client can send it. So it only works for ids
# that can't be guessed: random UUIDs (version 4) in hexadecimal, with or without hyphens, and ids
# of requests that Tandem's own programs forward.
#
# Errors of forwarded requests have the code before the message (``contract.errors``), because calls
# between models and streams lose the code before Triton 25.04. Triton's own solution for streams,
# the header ``triton_grpc_error``, crashes Triton 2.51 if many streams end with errors.
_FORWARDED = "tandem-forwarded-"
_ID = re.compile(rf"{_FORWARDED}[0-9a-f]{{32}}")
_UUID4 = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE
)


def new_forwarded_id() -> str:
    """Return an unguessable id for a request that is forwarded to ``bls_stream``."""
    return f"{_FORWARDED}{uuid.uuid4().hex}"


def is_forwarded(request_id: str) -> bool:
    return _ID.fullmatch(request_id) is not None


def can_be_stopped(request_id: str) -> bool:
    return is_forwarded(request_id) or _UUID4.fullmatch(request_id) is not None
