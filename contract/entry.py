"""Tensors of the text entries: NVIDIA's `tensorrt_llm_bls`, and what Tandem adds."""

from typing import Final, Literal, TypeAlias, get_args

from tandem.contract.tensor import Tensors

# The origin of a token, whose index is in `output_kinds`. An engine that drafts by itself doesn't
# report it. A forced token is the only one that the request's guide allows there.
Kind: TypeAlias = Literal["plain", "accepted", "correction", "bonus", "unknown", "forced"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

INPUTS = Tensors()
TEXT_INPUT = INPUTS.declare("text_input", "STRING", (1,), optional=True)
DECODER_TEXT_INPUT = INPUTS.declare("decoder_text_input", "STRING", (1,), optional=True)
IMAGE_INPUT = INPUTS.declare("image_input", "FP16", (-1, 3, -1, -1), optional=True)
IMAGE_BYTES_INPUT = INPUTS.declare("image_bytes_input", "UINT8", (-1, -1, -1, -1), optional=True)
IMAGE_URL_INPUT = INPUTS.declare("image_url_input", "STRING", (1,), optional=True)
VIDEO_BYTES_INPUT = INPUTS.declare("video_bytes_input", "UINT8", (-1, -1, -1, -1), optional=True)
MAX_TOKENS = INPUTS.declare("max_tokens", "INT32", (1,))
BAD_WORDS = INPUTS.declare("bad_words", "STRING", (-1,), optional=True)
STOP_WORDS = INPUTS.declare("stop_words", "STRING", (-1,), optional=True)
EXCLUDE_INPUT_IN_OUTPUT = INPUTS.declare("exclude_input_in_output", "BOOL", (1,), optional=True)
END_ID = INPUTS.declare("end_id", "INT32", (1,), optional=True)
PAD_ID = INPUTS.declare("pad_id", "INT32", (1,), optional=True)
TOP_K = INPUTS.declare("top_k", "INT32", (1,), optional=True)
TOP_P = INPUTS.declare("top_p", "FP32", (1,), optional=True)
TEMPERATURE = INPUTS.declare("temperature", "FP32", (1,), optional=True)
LENGTH_PENALTY = INPUTS.declare("length_penalty", "FP32", (1,), optional=True)
REPETITION_PENALTY = INPUTS.declare("repetition_penalty", "FP32", (1,), optional=True)
MIN_TOKENS = INPUTS.declare("min_tokens", "INT32", (1,), optional=True)
PRESENCE_PENALTY = INPUTS.declare("presence_penalty", "FP32", (1,), optional=True)
FREQUENCY_PENALTY = INPUTS.declare("frequency_penalty", "FP32", (1,), optional=True)
SEED = INPUTS.declare("seed", "UINT64", (1,), optional=True)
RETURN_LOG_PROBS = INPUTS.scalar("return_log_probs", "BOOL")
NUM_TOP_LOG_PROBS = INPUTS.declare("num_top_log_probs", "INT32", (1,), optional=True)
RETURN_PROMPT_LOG_PROBS = INPUTS.declare("return_prompt_log_probs", "BOOL", (1,), optional=True)
RETURN_CONTEXT_LOGITS = INPUTS.scalar("return_context_logits", "BOOL")
RETURN_GENERATION_LOGITS = INPUTS.scalar("return_generation_logits", "BOOL")
NUM_RETURN_SEQUENCES = INPUTS.scalar("num_return_sequences", "INT32")
BEAM_WIDTH = INPUTS.declare("beam_width", "INT32", (1,), optional=True)
STREAM = INPUTS.declare("stream", "BOOL", (1,), optional=True)
PROMPT_EMBEDDING_TABLE = INPUTS.declare("prompt_embedding_table", "FP16", (-1, -1), optional=True)
PROMPT_VOCAB_SIZE = INPUTS.declare("prompt_vocab_size", "INT32", (1,), optional=True)
PROMPT_TABLE_EXTRA_ID = INPUTS.declare("prompt_table_extra_id", "UINT64", (1,), optional=True)
EMBEDDING_BIAS_WORDS = INPUTS.declare("embedding_bias_words", "STRING", (-1,), optional=True)
EMBEDDING_BIAS_WEIGHTS = INPUTS.declare("embedding_bias_weights", "FP32", (-1,), optional=True)
LOGIT_BIAS_IDS = INPUTS.declare("logit_bias_ids", "INT32", (-1,), optional=True)
LOGIT_BIAS_VALUES = INPUTS.declare("logit_bias_values", "FP32", (-1,), optional=True)
NUM_DRAFT_TOKENS = INPUTS.declare("num_draft_tokens", "INT32", (1,), optional=True)
USE_DRAFT_LOGITS = INPUTS.scalar("use_draft_logits", "BOOL")
LORA_TASK_ID = INPUTS.scalar("lora_task_id", "UINT64")
LORA_WEIGHTS = INPUTS.ragged("lora_weights", "FP16", (-1, -1))
LORA_CONFIG = INPUTS.ragged("lora_config", "INT32", (-1, 3))
RETURN_PERF_METRICS = INPUTS.scalar("return_perf_metrics", "BOOL")
GUIDED_DECODING_GUIDE_TYPE = INPUTS.declare(
    "guided_decoding_guide_type", "STRING", (1,), optional=True
)
GUIDED_DECODING_GUIDE = INPUTS.declare("guided_decoding_guide", "STRING", (1,), optional=True)
RETURN_NUM_INPUT_TOKENS = INPUTS.declare("return_num_input_tokens", "BOOL", (1,), optional=True)
RETURN_NUM_OUTPUT_TOKENS = INPUTS.declare("return_num_output_tokens", "BOOL", (1,), optional=True)
MIN_P = INPUTS.declare("min_p", "FP32", (1,), optional=True)
INPUT_IDS = INPUTS.ragged("input_ids", "INT32", (-1,))
RANDOM_SEED = INPUTS.declare("random_seed", "UINT64", (1,), optional=True)
DRAFTER = INPUTS.declare("drafter", "STRING", (1,), optional=True)
DRAFT_AHEAD = INPUTS.declare("draft_ahead", "STRING", (1,), optional=True)
PROMPT_LOOKUP_NUM_TOKENS = INPUTS.declare("prompt_lookup_num_tokens", "INT32", (1,), optional=True)
MAX_MATCHING_NGRAM_SIZE = INPUTS.declare("max_matching_ngram_size", "INT32", (1,), optional=True)
LOOKUP_POOL = INPUTS.declare("lookup_pool", "STRING", (1,), optional=True)
DRAFT_ACCEPTANCE_THRESHOLD = INPUTS.declare(
    "draft_acceptance_threshold", "FP32", (1,), optional=True
)
STOP = INPUTS.declare("stop", "BOOL", (1,), optional=True)

OUTPUTS = Tensors()
TEXT_OUTPUT = OUTPUTS.declare("text_output", "STRING", (-1,))
CUM_LOG_PROBS = OUTPUTS.declare("cum_log_probs", "FP32", (-1,))
OUTPUT_LOG_PROBS = OUTPUTS.declare("output_log_probs", "FP32", (-1, -1))
# The most likely tokens at the position of each output id, [b, 1, n, k], best first.
OUTPUT_TOP_IDS = OUTPUTS.declare("output_top_ids", "INT32", (-1, -1, -1))
OUTPUT_TOP_LOG_PROBS = OUTPUTS.declare("output_top_log_probs", "FP32", (-1, -1, -1))
# The same of the prompt. Its first token has no log-probability: its row is zeros.
PROMPT_LOG_PROBS = OUTPUTS.declare("prompt_log_probs", "FP32", (-1, -1))
PROMPT_TOP_IDS = OUTPUTS.declare("prompt_top_ids", "INT32", (-1, -1, -1))
PROMPT_TOP_LOG_PROBS = OUTPUTS.declare("prompt_top_log_probs", "FP32", (-1, -1, -1))
CONTEXT_LOGITS = OUTPUTS.declare("context_logits", "FP32", (-1, -1))
GENERATION_LOGITS = OUTPUTS.declare("generation_logits", "FP32", (-1, -1, -1))
BATCH_INDEX = OUTPUTS.declare("batch_index", "INT32", (1,))
SEQUENCE_INDEX = OUTPUTS.declare("sequence_index", "INT32", (1,))
KV_CACHE_ALLOC_NEW_BLOCKS = OUTPUTS.declare("kv_cache_alloc_new_blocks", "INT32", (1,))
KV_CACHE_REUSED_BLOCKS = OUTPUTS.declare("kv_cache_reused_blocks", "INT32", (1,))
KV_CACHE_ALLOC_TOTAL_BLOCKS = OUTPUTS.declare("kv_cache_alloc_total_blocks", "INT32", (1,))
ARRIVAL_TIME_NS = OUTPUTS.declare("arrival_time_ns", "INT64", (1,))
FIRST_SCHEDULED_TIME_NS = OUTPUTS.declare("first_scheduled_time_ns", "INT64", (1,))
FIRST_TOKEN_TIME_NS = OUTPUTS.declare("first_token_time_ns", "INT64", (1,))
LAST_TOKEN_TIME_NS = OUTPUTS.declare("last_token_time_ns", "INT64", (1,))
ACCEPTANCE_RATE = OUTPUTS.declare("acceptance_rate", "FP32", (1,))
TOTAL_ACCEPTED_DRAFT_TOKENS = OUTPUTS.declare("total_accepted_draft_tokens", "INT32", (1,))
TOTAL_DRAFT_TOKENS = OUTPUTS.declare("total_draft_tokens", "INT32", (1,))
NUM_INPUT_TOKENS = OUTPUTS.declare("num_input_tokens", "INT32", (1,))
NUM_OUTPUT_TOKENS = OUTPUTS.declare("num_output_tokens", "INT32", (1,))
OUTPUT_IDS = OUTPUTS.declare("output_ids", "INT32", (-1, -1))
SEQUENCE_LENGTH = OUTPUTS.declare("sequence_length", "INT32", (-1,))
# Of each output id: its round, its kind, and the number of characters that it completes.
OUTPUT_ROUNDS = OUTPUTS.declare("output_rounds", "INT32", (-1, -1))
OUTPUT_KINDS = OUTPUTS.declare("output_kinds", "UINT8", (-1, -1))
OUTPUT_TEXT_LENGTHS = OUTPUTS.declare("output_text_lengths", "INT32", (-1, -1))
FINISH_REASON = OUTPUTS.declare("finish_reason", "STRING", (-1,))
NUM_ROUNDS = OUTPUTS.declare("num_rounds", "INT32", (1,))
# A JSON object per prompt, with the keys of vLLM's per-request statistics, in total and per
# drafter.
SPEC_DECODE_STATISTICS = OUTPUTS.declare("spec_decode_statistics", "STRING", (-1,))

# The outputs that clients read in every answer and chunk.
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
