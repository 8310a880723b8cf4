"""Capabilities of engines, and tensors of `draft` and `target`.

The tensors are NVIDIA's (`tensorrt_llm`), and Tandem's own. Entries reject inputs that need a
capability that an engine lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.contract.tensor import Tensors


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of an engine kind.

    verifies_drafts: accepts `draft_input_ids` and verifies them in one step.
    drafts_itself: speculates internally, so the loop must not draft for it.
    keyed_randomness: the noise of a token depends only on (seed, absolute position, purpose), so a
        seed gives the same output no matter how it is divided into calls.
    log_probs_with_drafts: returns log-probabilities of the tokens that a verification emits.
    top_log_probs: returns the most likely tokens at each position.
    prompt_log_probs: returns log-probabilities of the context's tokens.
    stops_when_unsure: supports `draft_stop_probability`, and returns log-probabilities of drafts.
    samples_exactly: samples from its `generation_logits`, warped as in transformers. These logits
        include bias, penalties, bans and masks. Verifying a draft by ids or by the draft's raw
        logits keeps this distribution. `bls.lossless` describes the other engines.
    shares_logits: as a draft engine, returns `shared_logits_handle`; as a target, reads it instead
        of `draft_logits`.
    min_p: supports `min_p`.
    branches: as a draft engine, supports `branch_counts`: one call drafts branches for several
        outcomes of a verification.
    masks_tokens: supports `token_masks`, the allowed tokens at each position. An engine that drafts
        by itself accepts a single mask, for a call of one token.
    cache_salt: supports `cache_salt`.
    returns_logits: as a draft engine, returns the logits that it sampled its tokens from.
    decodes_ahead: supports `decode_ahead_len`.
    """

    verifies_drafts: bool
    drafts_itself: bool
    keyed_randomness: bool
    log_probs_with_drafts: bool
    top_log_probs: bool
    prompt_log_probs: bool
    stops_when_unsure: bool
    samples_exactly: bool
    shares_logits: bool
    min_p: bool
    branches: bool
    masks_tokens: bool
    cache_salt: bool
    returns_logits: bool
    decodes_ahead: bool


NVIDIA_INPUTS = Tensors()
INPUT_IDS = NVIDIA_INPUTS.ragged("input_ids", "INT32", (-1,))
ENCODER_INPUT_FEATURES = NVIDIA_INPUTS.ragged("encoder_input_features", "FP32", (-1, -1))
ENCODER_OUTPUT_LENGTHS = NVIDIA_INPUTS.scalar("encoder_output_lengths", "INT32")
INPUT_LENGTHS = NVIDIA_INPUTS.scalar("input_lengths", "INT32", optional=False)
REQUEST_OUTPUT_LEN = NVIDIA_INPUTS.scalar("request_output_len", "INT32", optional=False)
NUM_RETURN_SEQUENCES = NVIDIA_INPUTS.scalar("num_return_sequences", "INT32")
DRAFT_INPUT_IDS = NVIDIA_INPUTS.ragged("draft_input_ids", "INT32", (-1,))
DECODER_INPUT_IDS = NVIDIA_INPUTS.ragged("decoder_input_ids", "INT32", (-1,))
DECODER_INPUT_LENGTHS = NVIDIA_INPUTS.scalar("decoder_input_lengths", "INT32")
DRAFT_LOGITS = NVIDIA_INPUTS.ragged("draft_logits", "FP32", (-1, -1))
DRAFT_ACCEPTANCE_THRESHOLD = NVIDIA_INPUTS.scalar("draft_acceptance_threshold", "FP32")
END_ID = NVIDIA_INPUTS.scalar("end_id", "INT32")
PAD_ID = NVIDIA_INPUTS.scalar("pad_id", "INT32")
STOP_WORDS_LIST = NVIDIA_INPUTS.ragged("stop_words_list", "INT32", (2, -1))
BAD_WORDS_LIST = NVIDIA_INPUTS.ragged("bad_words_list", "INT32", (2, -1))
EMBEDDING_BIAS = NVIDIA_INPUTS.ragged("embedding_bias", "FP32", (-1,))
BEAM_WIDTH = NVIDIA_INPUTS.scalar("beam_width", "INT32")
TEMPERATURE = NVIDIA_INPUTS.scalar("temperature", "FP32")
RUNTIME_TOP_K = NVIDIA_INPUTS.scalar("runtime_top_k", "INT32")
RUNTIME_TOP_P = NVIDIA_INPUTS.scalar("runtime_top_p", "FP32")
RUNTIME_TOP_P_MIN = NVIDIA_INPUTS.scalar("runtime_top_p_min", "FP32")
RUNTIME_TOP_P_DECAY = NVIDIA_INPUTS.scalar("runtime_top_p_decay", "FP32")
RUNTIME_TOP_P_RESET_IDS = NVIDIA_INPUTS.scalar("runtime_top_p_reset_ids", "INT32")
LEN_PENALTY = NVIDIA_INPUTS.scalar("len_penalty", "FP32")
EARLY_STOPPING = NVIDIA_INPUTS.scalar("early_stopping", "BOOL")
REPETITION_PENALTY = NVIDIA_INPUTS.scalar("repetition_penalty", "FP32")
MIN_TOKENS = NVIDIA_INPUTS.scalar("min_tokens", "INT32")
BEAM_SEARCH_DIVERSITY_RATE = NVIDIA_INPUTS.scalar("beam_search_diversity_rate", "FP32")
PRESENCE_PENALTY = NVIDIA_INPUTS.scalar("presence_penalty", "FP32")
FREQUENCY_PENALTY = NVIDIA_INPUTS.scalar("frequency_penalty", "FP32")
SEED = NVIDIA_INPUTS.scalar("seed", "UINT64")
RETURN_LOG_PROBS = NVIDIA_INPUTS.scalar("return_log_probs", "BOOL")
RETURN_CONTEXT_LOGITS = NVIDIA_INPUTS.scalar("return_context_logits", "BOOL")
RETURN_GENERATION_LOGITS = NVIDIA_INPUTS.scalar("return_generation_logits", "BOOL")
RETURN_PERF_METRICS = NVIDIA_INPUTS.scalar("return_perf_metrics", "BOOL")
EXCLUDE_INPUT_IN_OUTPUT = NVIDIA_INPUTS.scalar("exclude_input_in_output", "BOOL")
STOP = NVIDIA_INPUTS.scalar("stop", "BOOL")
STREAMING = NVIDIA_INPUTS.scalar("streaming", "BOOL")
PROMPT_EMBEDDING_TABLE = NVIDIA_INPUTS.ragged("prompt_embedding_table", "FP16", (-1, -1))
PROMPT_TABLE_EXTRA_IDS = NVIDIA_INPUTS.ragged("prompt_table_extra_ids", "UINT64", (-1,))
PROMPT_VOCAB_SIZE = NVIDIA_INPUTS.scalar("prompt_vocab_size", "INT32")
CROSS_ATTENTION_MASK = NVIDIA_INPUTS.ragged("cross_attention_mask", "BOOL", (-1, -1))
MROPE_ROTARY_COS_SIN = NVIDIA_INPUTS.declare("mrope_rotary_cos_sin", "FP32", (-1,), optional=True)
MROPE_POSITION_DELTAS = NVIDIA_INPUTS.declare("mrope_position_deltas", "INT64", (1,), optional=True)
LORA_TASK_ID = NVIDIA_INPUTS.scalar("lora_task_id", "UINT64")
LORA_WEIGHTS = NVIDIA_INPUTS.ragged("lora_weights", "FP16", (-1, -1))
LORA_CONFIG = NVIDIA_INPUTS.ragged("lora_config", "INT32", (-1, 3))
# Files with an adapter's `lora_weights` and `lora_config`, written by NVIDIA's hf_lora_convert.py.
LORA_FILES = {LORA_WEIGHTS: "model.lora_weights.npy", LORA_CONFIG: "model.lora_config.npy"}
CONTEXT_PHASE_PARAMS = NVIDIA_INPUTS.ragged("context_phase_params", "UINT8", (-1,))
SKIP_CROSS_ATTN_BLOCKS = NVIDIA_INPUTS.ragged("skip_cross_attn_blocks", "BOOL", (1,))
RETENTION_TOKEN_RANGE_STARTS = NVIDIA_INPUTS.ragged("retention_token_range_starts", "INT32", (-1,))
RETENTION_TOKEN_RANGE_ENDS = NVIDIA_INPUTS.ragged("retention_token_range_ends", "INT32", (-1,))
RETENTION_TOKEN_RANGE_PRIORITIES = NVIDIA_INPUTS.ragged(
    "retention_token_range_priorities", "INT32", (-1,)
)
RETENTION_TOKEN_RANGE_DURATIONS_MS = NVIDIA_INPUTS.ragged(
    "retention_token_range_durations_ms", "INT32", (-1,)
)
RETENTION_DECODE_PRIORITY = NVIDIA_INPUTS.ragged("retention_decode_priority", "INT32", (1,))
RETENTION_DECODE_DURATION_MS = NVIDIA_INPUTS.ragged("retention_decode_duration_ms", "INT32", (1,))
GUIDED_DECODING_GUIDE_TYPE = NVIDIA_INPUTS.ragged("guided_decoding_guide_type", "STRING", (1,))
GUIDED_DECODING_GUIDE = NVIDIA_INPUTS.ragged("guided_decoding_guide", "STRING", (1,))
LOOKAHEAD_WINDOW_SIZE = NVIDIA_INPUTS.ragged("lookahead_window_size", "INT32", (1,))
LOOKAHEAD_NGRAM_SIZE = NVIDIA_INPUTS.ragged("lookahead_ngram_size", "INT32", (1,))
LOOKAHEAD_VERIFICATION_SET_SIZE = NVIDIA_INPUTS.ragged(
    "lookahead_verification_set_size", "INT32", (1,)
)
RETURN_NUM_INPUT_TOKENS = NVIDIA_INPUTS.scalar("return_num_input_tokens", "BOOL")
RETURN_NUM_OUTPUT_TOKENS = NVIDIA_INPUTS.scalar("return_num_output_tokens", "BOOL")

INPUTS = Tensors(NVIDIA_INPUTS)  # inputs of Tandem's own engines
MIN_P = INPUTS.scalar("min_p", "FP32")
MAX_TOP_LOG_PROBS = 20  # the limit of OpenAI's API
NUM_TOP_LOG_PROBS = INPUTS.scalar("num_top_log_probs", "INT32")
RETURN_PROMPT_LOG_PROBS = INPUTS.scalar("return_prompt_log_probs", "BOOL")
# Keys and values are only reused between calls with the same number. Default: 0.
CACHE_SALT = INPUTS.scalar("cache_salt", "UINT64")
DRAFT_STOP_PROBABILITY = INPUTS.scalar("draft_stop_probability", "FP32")
# Location of the draft's logits in memory that Tandem's own engines share; see
# `engines.shared_logits`.
SHARED_LOGITS_HANDLE = INPUTS.declare("shared_logits_handle", "UINT64", (3,), optional=True)
# For a draft engine with the capability `branches`. A call with `branch_counts` verifies nothing.
# It drafts branches for several possible outcomes of a verification of `draft_input_ids` [k]. An
# outcome is (accepted length j, next token x). Its branch continues input_ids, d_1..d_j, x like a
# plain draft call with that context. The conditions that end a plain call (length, `end_id`, stop
# words, `draft_stop_probability`) apply to each branch separately. `min_tokens` counts from
# input_ids.
#
# `branch_counts` [k + 1] is the number of next tokens x per accepted length j = 0..k. The most
# likely tokens are used, but for j < k never d_(j+1). An x that ends the answer counts but has no
# branch. No branch follows a d_j that ends the answer. If memory is short, there are fewer
# branches, or none.
#
# Draft and target share the noise of `seed` by position, so this noise also chooses the next
# tokens. `return_generation_logits` is rejected.
BRANCH_COUNTS = INPUTS.ragged("branch_counts", "INT32", (-1,))
# Maximum number of tokens after x per accepted length, [k + 1]; 0: no branch. `request_output_len`
# is ignored.
BRANCH_OUTPUT_LEN = INPUTS.ragged("branch_output_len", "INT32", (-1,))
# For a target with the capability `masks_tokens`: the allowed tokens at the position of each draft
# token and after the last one, [k + 1, ceil(vocab_size / 32)]. Bit (id % 32) of word (id // 32) is
# set if `id` is allowed. Rows after the first rejected draft token aren't read. Without draft
# tokens, there is one row per new token, and the call decodes at most as many tokens as rows.
TOKEN_MASKS = INPUTS.declare("token_masks", "INT32", (-1, -1), optional=True)
# For a target with the capability `decodes_ahead`: after the response, the engine continues the
# answer by up to this many tokens. The next call whose id agrees up to the last period gets them at
# once if its context is this call's context and response, and if it allows no more tokens than are
# left. Its sampling inputs and end ids have no effect. Both calls may return more than
# `request_output_len` tokens. Rejected with a draft, branches or masks.
DECODE_AHEAD_LEN = INPUTS.scalar("decode_ahead_len", "INT32")

NVIDIA_OUTPUTS = Tensors()
OUTPUT_IDS = NVIDIA_OUTPUTS.declare("output_ids", "INT32", (-1, -1))
SEQUENCE_LENGTH = NVIDIA_OUTPUTS.declare("sequence_length", "INT32", (-1,))
CUM_LOG_PROBS = NVIDIA_OUTPUTS.declare("cum_log_probs", "FP32", (-1,))
OUTPUT_LOG_PROBS = NVIDIA_OUTPUTS.declare("output_log_probs", "FP32", (-1, -1))
CONTEXT_LOGITS = NVIDIA_OUTPUTS.declare("context_logits", "FP32", (-1, -1))
GENERATION_LOGITS = NVIDIA_OUTPUTS.declare("generation_logits", "FP32", (-1, -1, -1))
BATCH_INDEX = NVIDIA_OUTPUTS.declare("batch_index", "INT32", (1,))
SEQUENCE_INDEX = NVIDIA_OUTPUTS.declare("sequence_index", "INT32", (1,))
OUT_CONTEXT_PHASE_PARAMS = NVIDIA_OUTPUTS.declare("context_phase_params", "UINT8", (-1,))
KV_CACHE_ALLOC_NEW_BLOCKS = NVIDIA_OUTPUTS.declare("kv_cache_alloc_new_blocks", "INT32", (1,))
KV_CACHE_REUSED_BLOCKS = NVIDIA_OUTPUTS.declare("kv_cache_reused_blocks", "INT32", (1,))
KV_CACHE_ALLOC_TOTAL_BLOCKS = NVIDIA_OUTPUTS.declare("kv_cache_alloc_total_blocks", "INT32", (1,))
ARRIVAL_TIME_NS = NVIDIA_OUTPUTS.declare("arrival_time_ns", "INT64", (1,))
FIRST_SCHEDULED_TIME_NS = NVIDIA_OUTPUTS.declare("first_scheduled_time_ns", "INT64", (1,))
FIRST_TOKEN_TIME_NS = NVIDIA_OUTPUTS.declare("first_token_time_ns", "INT64", (1,))
LAST_TOKEN_TIME_NS = NVIDIA_OUTPUTS.declare("last_token_time_ns", "INT64", (1,))
ACCEPTANCE_RATE = NVIDIA_OUTPUTS.declare("acceptance_rate", "FP32", (1,))
TOTAL_ACCEPTED_DRAFT_TOKENS = NVIDIA_OUTPUTS.declare("total_accepted_draft_tokens", "INT32", (1,))
TOTAL_DRAFT_TOKENS = NVIDIA_OUTPUTS.declare("total_draft_tokens", "INT32", (1,))
NUM_INPUT_TOKENS = NVIDIA_OUTPUTS.declare("num_input_tokens", "INT32", (1,))
NUM_OUTPUT_TOKENS = NVIDIA_OUTPUTS.declare("num_output_tokens", "INT32", (1,))

OUTPUTS = Tensors(NVIDIA_OUTPUTS)  # outputs of Tandem's own engines
# The most likely tokens at each position of the answer and of the context, [1, 1, n, k], and the
# log-probabilities of the context's tokens, [1, 1, n]. The values of the context's first token are
# 0, because it has no log-probability.
OUTPUT_TOP_IDS = OUTPUTS.declare("output_top_ids", "INT32", (-1, -1, -1))
OUTPUT_TOP_LOG_PROBS = OUTPUTS.declare("output_top_log_probs", "FP32", (-1, -1, -1))
PROMPT_LOG_PROBS = OUTPUTS.declare("prompt_log_probs", "FP32", (-1, -1))
PROMPT_TOP_IDS = OUTPUTS.declare("prompt_top_ids", "INT32", (-1, -1, -1))
PROMPT_TOP_LOG_PROBS = OUTPUTS.declare("prompt_top_log_probs", "FP32", (-1, -1, -1))
OUT_SHARED_LOGITS_HANDLE = OUTPUTS.declare(SHARED_LOGITS_HANDLE, "UINT64", (3,))
# A call with `branch_counts` returns b branches, sorted by accepted length and then by likelihood
# of the next token (most likely first). Its `output_ids` are empty. K is the length of the longest
# branch. Columns of `branch_outcomes`: accepted length, next token.
BRANCH_OUTCOMES = OUTPUTS.declare("branch_outcomes", "INT32", (-1, 2))
BRANCH_IDS = OUTPUTS.declare("branch_ids", "INT32", (-1, -1))  # [b, K], padded with zeros
BRANCH_LENGTHS = OUTPUTS.declare("branch_lengths", "INT32", (-1,))  # [b]

LOGITS = frozenset({DRAFT_LOGITS, CONTEXT_LOGITS, GENERATION_LOGITS})  # type set by the deployment
