"""Tensors of `draft` and `target`: NVIDIA's `tensorrt_llm`, and what Tandem's own engines add."""

from tandem.contract.tensor import Tensor

INPUT_IDS = Tensor("input_ids", "INT32", (-1,), optional=True, ragged=True)
ENCODER_INPUT_FEATURES = Tensor(
    "encoder_input_features", "FP32", (-1, -1), optional=True, ragged=True
)
ENCODER_OUTPUT_LENGTHS = Tensor("encoder_output_lengths", "INT32", (1,), optional=True, scalar=True)
INPUT_LENGTHS = Tensor("input_lengths", "INT32", (1,), scalar=True)
REQUEST_OUTPUT_LEN = Tensor("request_output_len", "INT32", (1,), scalar=True)
NUM_RETURN_SEQUENCES = Tensor("num_return_sequences", "INT32", (1,), optional=True, scalar=True)
DRAFT_INPUT_IDS = Tensor("draft_input_ids", "INT32", (-1,), optional=True, ragged=True)
DECODER_INPUT_IDS = Tensor("decoder_input_ids", "INT32", (-1,), optional=True, ragged=True)
DECODER_INPUT_LENGTHS = Tensor("decoder_input_lengths", "INT32", (1,), optional=True, scalar=True)
DRAFT_LOGITS = Tensor("draft_logits", "FP32", (-1, -1), optional=True, ragged=True)
DRAFT_ACCEPTANCE_THRESHOLD = Tensor(
    "draft_acceptance_threshold", "FP32", (1,), optional=True, scalar=True
)
END_ID = Tensor("end_id", "INT32", (1,), optional=True, scalar=True)
PAD_ID = Tensor("pad_id", "INT32", (1,), optional=True, scalar=True)
STOP_WORDS_LIST = Tensor("stop_words_list", "INT32", (2, -1), optional=True, ragged=True)
BAD_WORDS_LIST = Tensor("bad_words_list", "INT32", (2, -1), optional=True, ragged=True)
EMBEDDING_BIAS = Tensor("embedding_bias", "FP32", (-1,), optional=True, ragged=True)
BEAM_WIDTH = Tensor("beam_width", "INT32", (1,), optional=True, scalar=True)
TEMPERATURE = Tensor("temperature", "FP32", (1,), optional=True, scalar=True)
RUNTIME_TOP_K = Tensor("runtime_top_k", "INT32", (1,), optional=True, scalar=True)
RUNTIME_TOP_P = Tensor("runtime_top_p", "FP32", (1,), optional=True, scalar=True)
RUNTIME_TOP_P_MIN = Tensor("runtime_top_p_min", "FP32", (1,), optional=True, scalar=True)
RUNTIME_TOP_P_DECAY = Tensor("runtime_top_p_decay", "FP32", (1,), optional=True, scalar=True)
RUNTIME_TOP_P_RESET_IDS = Tensor(
    "runtime_top_p_reset_ids", "INT32", (1,), optional=True, scalar=True
)
LEN_PENALTY = Tensor("len_penalty", "FP32", (1,), optional=True, scalar=True)
EARLY_STOPPING = Tensor("early_stopping", "BOOL", (1,), optional=True, scalar=True)
REPETITION_PENALTY = Tensor("repetition_penalty", "FP32", (1,), optional=True, scalar=True)
MIN_TOKENS = Tensor("min_tokens", "INT32", (1,), optional=True, scalar=True)
BEAM_SEARCH_DIVERSITY_RATE = Tensor(
    "beam_search_diversity_rate", "FP32", (1,), optional=True, scalar=True
)
PRESENCE_PENALTY = Tensor("presence_penalty", "FP32", (1,), optional=True, scalar=True)
FREQUENCY_PENALTY = Tensor("frequency_penalty", "FP32", (1,), optional=True, scalar=True)
SEED = Tensor("seed", "UINT64", (1,), optional=True, scalar=True)
RETURN_LOG_PROBS = Tensor("return_log_probs", "BOOL", (1,), optional=True, scalar=True)
RETURN_CONTEXT_LOGITS = Tensor("return_context_logits", "BOOL", (1,), optional=True, scalar=True)
RETURN_GENERATION_LOGITS = Tensor(
    "return_generation_logits", "BOOL", (1,), optional=True, scalar=True
)
RETURN_PERF_METRICS = Tensor("return_perf_metrics", "BOOL", (1,), optional=True, scalar=True)
EXCLUDE_INPUT_IN_OUTPUT = Tensor(
    "exclude_input_in_output", "BOOL", (1,), optional=True, scalar=True
)
STOP = Tensor("stop", "BOOL", (1,), optional=True, scalar=True)
STREAMING = Tensor("streaming", "BOOL", (1,), optional=True, scalar=True)
PROMPT_EMBEDDING_TABLE = Tensor(
    "prompt_embedding_table", "FP16", (-1, -1), optional=True, ragged=True
)
PROMPT_TABLE_EXTRA_IDS = Tensor(
    "prompt_table_extra_ids", "UINT64", (-1,), optional=True, ragged=True
)
PROMPT_VOCAB_SIZE = Tensor("prompt_vocab_size", "INT32", (1,), optional=True, scalar=True)
CROSS_ATTENTION_MASK = Tensor("cross_attention_mask", "BOOL", (-1, -1), optional=True, ragged=True)
MROPE_ROTARY_COS_SIN = Tensor("mrope_rotary_cos_sin", "FP32", (-1,), optional=True)
MROPE_POSITION_DELTAS = Tensor("mrope_position_deltas", "INT64", (1,), optional=True)
LORA_TASK_ID = Tensor("lora_task_id", "UINT64", (1,), optional=True, scalar=True)
LORA_WEIGHTS = Tensor("lora_weights", "FP16", (-1, -1), optional=True, ragged=True)
LORA_CONFIG = Tensor("lora_config", "INT32", (-1, 3), optional=True, ragged=True)
CONTEXT_PHASE_PARAMS = Tensor("context_phase_params", "UINT8", (-1,), optional=True, ragged=True)
SKIP_CROSS_ATTN_BLOCKS = Tensor("skip_cross_attn_blocks", "BOOL", (1,), optional=True, ragged=True)
RETENTION_TOKEN_RANGE_STARTS = Tensor(
    "retention_token_range_starts", "INT32", (-1,), optional=True, ragged=True
)
RETENTION_TOKEN_RANGE_ENDS = Tensor(
    "retention_token_range_ends", "INT32", (-1,), optional=True, ragged=True
)
RETENTION_TOKEN_RANGE_PRIORITIES = Tensor(
    "retention_token_range_priorities", "INT32", (-1,), optional=True, ragged=True
)
RETENTION_TOKEN_RANGE_DURATIONS_MS = Tensor(
    "retention_token_range_durations_ms", "INT32", (-1,), optional=True, ragged=True
)
RETENTION_DECODE_PRIORITY = Tensor(
    "retention_decode_priority", "INT32", (1,), optional=True, ragged=True
)
RETENTION_DECODE_DURATION_MS = Tensor(
    "retention_decode_duration_ms", "INT32", (1,), optional=True, ragged=True
)
GUIDED_DECODING_GUIDE_TYPE = Tensor(
    "guided_decoding_guide_type", "STRING", (1,), optional=True, ragged=True
)
GUIDED_DECODING_GUIDE = Tensor("guided_decoding_guide", "STRING", (1,), optional=True, ragged=True)
LOOKAHEAD_WINDOW_SIZE = Tensor("lookahead_window_size", "INT32", (1,), optional=True, ragged=True)
LOOKAHEAD_NGRAM_SIZE = Tensor("lookahead_ngram_size", "INT32", (1,), optional=True, ragged=True)
LOOKAHEAD_VERIFICATION_SET_SIZE = Tensor(
    "lookahead_verification_set_size", "INT32", (1,), optional=True, ragged=True
)
RETURN_NUM_INPUT_TOKENS = Tensor(
    "return_num_input_tokens", "BOOL", (1,), optional=True, scalar=True
)
RETURN_NUM_OUTPUT_TOKENS = Tensor(
    "return_num_output_tokens", "BOOL", (1,), optional=True, scalar=True
)
NUM_TOP_LOG_PROBS = Tensor("num_top_log_probs", "INT32", (1,), optional=True, scalar=True)
RETURN_PROMPT_LOG_PROBS = Tensor(
    "return_prompt_log_probs", "BOOL", (1,), optional=True, scalar=True
)
DRAFT_STOP_PROBABILITY = Tensor("draft_stop_probability", "FP32", (1,), optional=True, scalar=True)
# Between our own engines: where the draft's logits lie, instead of them; see
# `engines.shared_logits`.
LOGITS_LOAN = Tensor("logits_loan", "UINT64", (3,), optional=True)

OUTPUT_IDS = Tensor("output_ids", "INT32", (-1, -1))
SEQUENCE_LENGTH = Tensor("sequence_length", "INT32", (-1,))
CUM_LOG_PROBS = Tensor("cum_log_probs", "FP32", (-1,))
OUTPUT_LOG_PROBS = Tensor("output_log_probs", "FP32", (-1, -1))
CONTEXT_LOGITS = Tensor("context_logits", "FP32", (-1, -1))
GENERATION_LOGITS = Tensor("generation_logits", "FP32", (-1, -1, -1))
BATCH_INDEX = Tensor("batch_index", "INT32", (1,))
SEQUENCE_INDEX = Tensor("sequence_index", "INT32", (1,))
OUT_CONTEXT_PHASE_PARAMS = Tensor("context_phase_params", "UINT8", (-1,))
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
# The likeliest tokens at each place of the answer, [1, 1, n, k], and of the context, [1, 1, n]
# and [1, 1, n, k]; nothing precedes the context's first token, whose row is zeros.
OUTPUT_TOP_IDS = Tensor("output_top_ids", "INT32", (-1, -1, -1))
OUTPUT_TOP_LOG_PROBS = Tensor("output_top_log_probs", "FP32", (-1, -1, -1))
PROMPT_LOG_PROBS = Tensor("prompt_log_probs", "FP32", (-1, -1))
PROMPT_TOP_IDS = Tensor("prompt_top_ids", "INT32", (-1, -1, -1))
PROMPT_TOP_LOG_PROBS = Tensor("prompt_top_log_probs", "FP32", (-1, -1, -1))

NVIDIA_INPUTS = (
    INPUT_IDS,
    ENCODER_INPUT_FEATURES,
    ENCODER_OUTPUT_LENGTHS,
    INPUT_LENGTHS,
    REQUEST_OUTPUT_LEN,
    NUM_RETURN_SEQUENCES,
    DRAFT_INPUT_IDS,
    DECODER_INPUT_IDS,
    DECODER_INPUT_LENGTHS,
    DRAFT_LOGITS,
    DRAFT_ACCEPTANCE_THRESHOLD,
    END_ID,
    PAD_ID,
    STOP_WORDS_LIST,
    BAD_WORDS_LIST,
    EMBEDDING_BIAS,
    BEAM_WIDTH,
    TEMPERATURE,
    RUNTIME_TOP_K,
    RUNTIME_TOP_P,
    RUNTIME_TOP_P_MIN,
    RUNTIME_TOP_P_DECAY,
    RUNTIME_TOP_P_RESET_IDS,
    LEN_PENALTY,
    EARLY_STOPPING,
    REPETITION_PENALTY,
    MIN_TOKENS,
    BEAM_SEARCH_DIVERSITY_RATE,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    SEED,
    RETURN_LOG_PROBS,
    RETURN_CONTEXT_LOGITS,
    RETURN_GENERATION_LOGITS,
    RETURN_PERF_METRICS,
    EXCLUDE_INPUT_IN_OUTPUT,
    STOP,
    STREAMING,
    PROMPT_EMBEDDING_TABLE,
    PROMPT_TABLE_EXTRA_IDS,
    PROMPT_VOCAB_SIZE,
    CROSS_ATTENTION_MASK,
    MROPE_ROTARY_COS_SIN,
    MROPE_POSITION_DELTAS,
    LORA_TASK_ID,
    LORA_WEIGHTS,
    LORA_CONFIG,
    CONTEXT_PHASE_PARAMS,
    SKIP_CROSS_ATTN_BLOCKS,
    RETENTION_TOKEN_RANGE_STARTS,
    RETENTION_TOKEN_RANGE_ENDS,
    RETENTION_TOKEN_RANGE_PRIORITIES,
    RETENTION_TOKEN_RANGE_DURATIONS_MS,
    RETENTION_DECODE_PRIORITY,
    RETENTION_DECODE_DURATION_MS,
    GUIDED_DECODING_GUIDE_TYPE,
    GUIDED_DECODING_GUIDE,
    LOOKAHEAD_WINDOW_SIZE,
    LOOKAHEAD_NGRAM_SIZE,
    LOOKAHEAD_VERIFICATION_SET_SIZE,
    RETURN_NUM_INPUT_TOKENS,
    RETURN_NUM_OUTPUT_TOKENS,
)
INPUTS = (  # of our own engines
    *NVIDIA_INPUTS,
    NUM_TOP_LOG_PROBS,
    RETURN_PROMPT_LOG_PROBS,
    DRAFT_STOP_PROBABILITY,
    LOGITS_LOAN,
)
LOGITS = frozenset({DRAFT_LOGITS, CONTEXT_LOGITS, GENERATION_LOGITS})  # of the deployment's type

NVIDIA_OUTPUTS = (
    OUTPUT_IDS,
    SEQUENCE_LENGTH,
    CUM_LOG_PROBS,
    OUTPUT_LOG_PROBS,
    CONTEXT_LOGITS,
    GENERATION_LOGITS,
    BATCH_INDEX,
    SEQUENCE_INDEX,
    OUT_CONTEXT_PHASE_PARAMS,
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
)
OUTPUTS = (  # of our own engines
    *NVIDIA_OUTPUTS,
    OUTPUT_TOP_IDS,
    OUTPUT_TOP_LOG_PROBS,
    PROMPT_LOG_PROBS,
    PROMPT_TOP_IDS,
    PROMPT_TOP_LOG_PROBS,
    LOGITS_LOAN,
)
