"""Tensors of the text entries: NVIDIA's `tensorrt_llm_bls`, and what Tandem adds."""

from typing import Final, Literal, TypeAlias, get_args

from tandem.contract.tensor import Tensor

# Where a token of an answer came from: an index of these in `output_kinds`. An engine that drafts
# by itself does not tell.
Kind: TypeAlias = Literal["plain", "accepted", "correction", "bonus", "unknown"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

TEXT_INPUT = Tensor("text_input", "STRING", (1,), optional=True)
DECODER_TEXT_INPUT = Tensor("decoder_text_input", "STRING", (1,), optional=True)
IMAGE_INPUT = Tensor("image_input", "FP16", (-1, 3, -1, -1), optional=True)
IMAGE_BYTES_INPUT = Tensor("image_bytes_input", "UINT8", (-1, -1, -1, -1), optional=True)
IMAGE_URL_INPUT = Tensor("image_url_input", "STRING", (1,), optional=True)
VIDEO_BYTES_INPUT = Tensor("video_bytes_input", "UINT8", (-1, -1, -1, -1), optional=True)
MAX_TOKENS = Tensor("max_tokens", "INT32", (1,))
BAD_WORDS = Tensor("bad_words", "STRING", (-1,), optional=True)
STOP_WORDS = Tensor("stop_words", "STRING", (-1,), optional=True)
EXCLUDE_INPUT_IN_OUTPUT = Tensor("exclude_input_in_output", "BOOL", (1,), optional=True)
END_ID = Tensor("end_id", "INT32", (1,), optional=True)
PAD_ID = Tensor("pad_id", "INT32", (1,), optional=True)
TOP_K = Tensor("top_k", "INT32", (1,), optional=True)
TOP_P = Tensor("top_p", "FP32", (1,), optional=True)
TEMPERATURE = Tensor("temperature", "FP32", (1,), optional=True)
LENGTH_PENALTY = Tensor("length_penalty", "FP32", (1,), optional=True)
REPETITION_PENALTY = Tensor("repetition_penalty", "FP32", (1,), optional=True)
MIN_TOKENS = Tensor("min_tokens", "INT32", (1,), optional=True)
PRESENCE_PENALTY = Tensor("presence_penalty", "FP32", (1,), optional=True)
FREQUENCY_PENALTY = Tensor("frequency_penalty", "FP32", (1,), optional=True)
SEED = Tensor("seed", "UINT64", (1,), optional=True)
RETURN_LOG_PROBS = Tensor("return_log_probs", "BOOL", (1,), optional=True, scalar=True)
NUM_TOP_LOG_PROBS = Tensor("num_top_log_probs", "INT32", (1,), optional=True)
RETURN_PROMPT_LOG_PROBS = Tensor("return_prompt_log_probs", "BOOL", (1,), optional=True)
RETURN_CONTEXT_LOGITS = Tensor("return_context_logits", "BOOL", (1,), optional=True, scalar=True)
RETURN_GENERATION_LOGITS = Tensor(
    "return_generation_logits", "BOOL", (1,), optional=True, scalar=True
)
NUM_RETURN_SEQUENCES = Tensor("num_return_sequences", "INT32", (1,), optional=True, scalar=True)
BEAM_WIDTH = Tensor("beam_width", "INT32", (1,), optional=True)
STREAM = Tensor("stream", "BOOL", (1,), optional=True)
PROMPT_EMBEDDING_TABLE = Tensor("prompt_embedding_table", "FP16", (-1, -1), optional=True)
PROMPT_VOCAB_SIZE = Tensor("prompt_vocab_size", "INT32", (1,), optional=True)
PROMPT_TABLE_EXTRA_ID = Tensor("prompt_table_extra_id", "UINT64", (1,), optional=True)
EMBEDDING_BIAS_WORDS = Tensor("embedding_bias_words", "STRING", (-1,), optional=True)
EMBEDDING_BIAS_WEIGHTS = Tensor("embedding_bias_weights", "FP32", (-1,), optional=True)
LOGIT_BIAS_IDS = Tensor("logit_bias_ids", "INT32", (-1,), optional=True)
LOGIT_BIAS_VALUES = Tensor("logit_bias_values", "FP32", (-1,), optional=True)
NUM_DRAFT_TOKENS = Tensor("num_draft_tokens", "INT32", (1,), optional=True)
USE_DRAFT_LOGITS = Tensor("use_draft_logits", "BOOL", (1,), optional=True, scalar=True)
LORA_TASK_ID = Tensor("lora_task_id", "UINT64", (1,), optional=True, scalar=True)
LORA_WEIGHTS = Tensor("lora_weights", "FP16", (-1, -1), optional=True, ragged=True)
LORA_CONFIG = Tensor("lora_config", "INT32", (-1, 3), optional=True, ragged=True)
RETURN_PERF_METRICS = Tensor("return_perf_metrics", "BOOL", (1,), optional=True, scalar=True)
GUIDED_DECODING_GUIDE_TYPE = Tensor("guided_decoding_guide_type", "STRING", (1,), optional=True)
GUIDED_DECODING_GUIDE = Tensor("guided_decoding_guide", "STRING", (1,), optional=True)
RETURN_NUM_INPUT_TOKENS = Tensor("return_num_input_tokens", "BOOL", (1,), optional=True)
RETURN_NUM_OUTPUT_TOKENS = Tensor("return_num_output_tokens", "BOOL", (1,), optional=True)
INPUT_IDS = Tensor("input_ids", "INT32", (-1,), optional=True, ragged=True)
RANDOM_SEED = Tensor("random_seed", "UINT64", (1,), optional=True)
DRAFTER = Tensor("drafter", "STRING", (1,), optional=True)
PROMPT_LOOKUP_NUM_TOKENS = Tensor("prompt_lookup_num_tokens", "INT32", (1,), optional=True)
MAX_MATCHING_NGRAM_SIZE = Tensor("max_matching_ngram_size", "INT32", (1,), optional=True)
DRAFT_ACCEPTANCE_THRESHOLD = Tensor("draft_acceptance_threshold", "FP32", (1,), optional=True)
STOP = Tensor("stop", "BOOL", (1,), optional=True)

TEXT_OUTPUT = Tensor("text_output", "STRING", (-1,))
CUM_LOG_PROBS = Tensor("cum_log_probs", "FP32", (-1,))
OUTPUT_LOG_PROBS = Tensor("output_log_probs", "FP32", (-1, -1))
# The likeliest tokens at the place of each of the output ids, [b, 1, n, k], best first.
OUTPUT_TOP_IDS = Tensor("output_top_ids", "INT32", (-1, -1, -1))
OUTPUT_TOP_LOG_PROBS = Tensor("output_top_log_probs", "FP32", (-1, -1, -1))
# The same of the prompt; nothing precedes its first token, whose row is zeros.
PROMPT_LOG_PROBS = Tensor("prompt_log_probs", "FP32", (-1, -1))
PROMPT_TOP_IDS = Tensor("prompt_top_ids", "INT32", (-1, -1, -1))
PROMPT_TOP_LOG_PROBS = Tensor("prompt_top_log_probs", "FP32", (-1, -1, -1))
CONTEXT_LOGITS = Tensor("context_logits", "FP32", (-1, -1))
GENERATION_LOGITS = Tensor("generation_logits", "FP32", (-1, -1, -1))
BATCH_INDEX = Tensor("batch_index", "INT32", (1,))
SEQUENCE_INDEX = Tensor("sequence_index", "INT32", (1,))
KV_CACHE_ALLOC_NEW_BLOCKS = Tensor("kv_cache_alloc_new_blocks", "INT32", (1,))
KV_CACHE_REUSED_BLOCKS = Tensor("kv_cache_reused_blocks", "INT32", (1,))
KV_CACHE_ALLOC_TOTAL_BLOCKS = Tensor("kv_cache_alloc_total_blocks", "INT32", (1,))
ARRIVAL_TIME_NS = Tensor("arrival_time_ns", "INT64", (1,))
FIRST_SCHEDULED_TIME_NS = Tensor("first_scheduled_time_ns", "INT64", (1,))
FIRST_TOKEN_TIME_NS = Tensor("first_token_time_ns", "INT64", (1,))
LAST_TOKEN_TIME_NS = Tensor("last_token_time_ns", "INT64", (1,))
ACCEPTANCE_RATE = Tensor("acceptance_rate", "FP32", (1,))
TOTAL_ACCEPTED_DRAFT_TOKENS = Tensor("total_accepted_draft_tokens", "INT32", (1,))
TOTAL_DRAFT_TOKENS = Tensor("total_draft_tokens", "INT32", (1,))
NUM_INPUT_TOKENS = Tensor("num_input_tokens", "INT32", (1,))
NUM_OUTPUT_TOKENS = Tensor("num_output_tokens", "INT32", (1,))
OUTPUT_IDS = Tensor("output_ids", "INT32", (-1, -1))
SEQUENCE_LENGTH = Tensor("sequence_length", "INT32", (-1,))
# Of each of the output ids: its round, its kind, and the characters of text that it completes.
OUTPUT_ROUNDS = Tensor("output_rounds", "INT32", (-1, -1))
OUTPUT_KINDS = Tensor("output_kinds", "UINT8", (-1, -1))
OUTPUT_TEXT_LENGTHS = Tensor("output_text_lengths", "INT32", (-1, -1))
FINISH_REASON = Tensor("finish_reason", "STRING", (-1,))
NUM_ROUNDS = Tensor("num_rounds", "INT32", (1,))
# A JSON object a prompt, with the keys of vLLM's per-request statistics, in all and by drafter.
SPEC_DECODE_STATISTICS = Tensor("spec_decode_statistics", "STRING", (-1,))

INPUTS = (
    TEXT_INPUT,
    DECODER_TEXT_INPUT,
    IMAGE_INPUT,
    IMAGE_BYTES_INPUT,
    IMAGE_URL_INPUT,
    VIDEO_BYTES_INPUT,
    MAX_TOKENS,
    BAD_WORDS,
    STOP_WORDS,
    EXCLUDE_INPUT_IN_OUTPUT,
    END_ID,
    PAD_ID,
    TOP_K,
    TOP_P,
    TEMPERATURE,
    LENGTH_PENALTY,
    REPETITION_PENALTY,
    MIN_TOKENS,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    SEED,
    RETURN_LOG_PROBS,
    NUM_TOP_LOG_PROBS,
    RETURN_PROMPT_LOG_PROBS,
    RETURN_CONTEXT_LOGITS,
    RETURN_GENERATION_LOGITS,
    NUM_RETURN_SEQUENCES,
    BEAM_WIDTH,
    STREAM,
    PROMPT_EMBEDDING_TABLE,
    PROMPT_VOCAB_SIZE,
    PROMPT_TABLE_EXTRA_ID,
    EMBEDDING_BIAS_WORDS,
    EMBEDDING_BIAS_WEIGHTS,
    LOGIT_BIAS_IDS,
    LOGIT_BIAS_VALUES,
    NUM_DRAFT_TOKENS,
    USE_DRAFT_LOGITS,
    LORA_TASK_ID,
    LORA_WEIGHTS,
    LORA_CONFIG,
    RETURN_PERF_METRICS,
    GUIDED_DECODING_GUIDE_TYPE,
    GUIDED_DECODING_GUIDE,
    RETURN_NUM_INPUT_TOKENS,
    RETURN_NUM_OUTPUT_TOKENS,
    INPUT_IDS,
    RANDOM_SEED,
    DRAFTER,
    PROMPT_LOOKUP_NUM_TOKENS,
    MAX_MATCHING_NGRAM_SIZE,
    DRAFT_ACCEPTANCE_THRESHOLD,
    STOP,
)

OUTPUTS = (
    TEXT_OUTPUT,
    CUM_LOG_PROBS,
    OUTPUT_LOG_PROBS,
    OUTPUT_TOP_IDS,
    OUTPUT_TOP_LOG_PROBS,
    PROMPT_LOG_PROBS,
    PROMPT_TOP_IDS,
    PROMPT_TOP_LOG_PROBS,
    CONTEXT_LOGITS,
    GENERATION_LOGITS,
    BATCH_INDEX,
    SEQUENCE_INDEX,
    KV_CACHE_ALLOC_NEW_BLOCKS,
    KV_CACHE_REUSED_BLOCKS,
    KV_CACHE_ALLOC_TOTAL_BLOCKS,
    ARRIVAL_TIME_NS,
    FIRST_SCHEDULED_TIME_NS,
    FIRST_TOKEN_TIME_NS,
    LAST_TOKEN_TIME_NS,
    ACCEPTANCE_RATE,
    TOTAL_ACCEPTED_DRAFT_TOKENS,
    TOTAL_DRAFT_TOKENS,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    OUTPUT_IDS,
    SEQUENCE_LENGTH,
    OUTPUT_ROUNDS,
    OUTPUT_KINDS,
    OUTPUT_TEXT_LENGTHS,
    FINISH_REASON,
    NUM_ROUNDS,
    SPEC_DECODE_STATISTICS,
)
