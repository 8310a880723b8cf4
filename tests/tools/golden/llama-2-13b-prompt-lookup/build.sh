#!/bin/sh
set -eu

# target: convert_checkpoint.py
python3 /app/examples/models/core/llama/convert_checkpoint.py \
  --model_dir=/models/Llama-2-13b-hf \
  --output_dir=/engines/llama-2-13b/target-checkpoint \
  --dtype=float16 \
  --tp_size=1 \
  --pp_size=1

# target: trtllm-build
trtllm-build \
  --checkpoint_dir=/engines/llama-2-13b/target-checkpoint \
  --output_dir=/engines/llama-2-13b/target \
  --max_batch_size=4 \
  --max_seq_len=4800 \
  --max_input_len=3200 \
  --max_num_tokens=8192 \
  --gemm_plugin=float16 \
  --use_paged_context_fmha=enable \
  --tokens_per_block=32 \
  --logits_dtype=float32 \
  --speculative_decoding_mode=draft_tokens_external \
  --max_draft_len=10
