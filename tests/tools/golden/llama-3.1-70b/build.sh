#!/bin/sh
set -eu

# draft: quantize.py
python3 /app/examples/quantization/quantize.py \
  --model_dir=/models/Llama-3.2-1B-Instruct \
  --output_dir=/engines/llama-3.1-70b/draft-1b-checkpoint \
  --dtype=float16 \
  --tp_size=1 \
  --pp_size=1 \
  --qformat=fp8 \
  --kv_cache_dtype=fp8 \
  --calib_size=512

# draft: trtllm-build
trtllm-build \
  --checkpoint_dir=/engines/llama-3.1-70b/draft-1b-checkpoint \
  --output_dir=/engines/llama-3.1-70b/draft-1b \
  --max_batch_size=32 \
  --max_seq_len=131072 \
  --max_num_tokens=8192 \
  --gpt_attention_plugin=float16 \
  --gemm_plugin=fp8 \
  --use_paged_context_fmha=enable \
  --use_fused_mlp=enable \
  --multiple_profiles=enable \
  --reduce_fusion=disable \
  --tokens_per_block=32 \
  --logits_dtype=float32 \
  --workers=1

# target: quantize.py
python3 /app/examples/quantization/quantize.py \
  --model_dir=/models/Llama-3.1-70B-Instruct \
  --output_dir=/engines/llama-3.1-70b/target-checkpoint \
  --dtype=float16 \
  --tp_size=1 \
  --pp_size=1 \
  --qformat=fp8 \
  --kv_cache_dtype=fp8 \
  --calib_size=512

# target: trtllm-build
trtllm-build \
  --checkpoint_dir=/engines/llama-3.1-70b/target-checkpoint \
  --output_dir=/engines/llama-3.1-70b/target \
  --max_batch_size=32 \
  --max_seq_len=131072 \
  --max_num_tokens=8192 \
  --gpt_attention_plugin=float16 \
  --gemm_plugin=fp8 \
  --low_latency_gemm_plugin=fp8 \
  --use_paged_context_fmha=enable \
  --use_fused_mlp=enable \
  --multiple_profiles=enable \
  --tokens_per_block=32 \
  --logits_dtype=float32 \
  --workers=1 \
  --speculative_decoding_mode=draft_tokens_external \
  --max_draft_len=10
