#!/usr/bin/env bash
# Trains two layers for a step under compute-sanitizer's memcheck, which finds reads and writes outside of
# allocations, in mtrain's kernels and in those of cuBLASLt and cuDNN.
#   scripts/bench/gpu_memcheck.sh [setting...]
# MTRAIN_BUILD names another build folder.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

compute-sanitizer --tool memcheck --error-exitcode 1 "$mtrain" --recipe recipes/quickstart.yaml "dataset.train=$work/set" \
  dataset.validation=none train.device=cuda "train.run_dir=$work/run" train.steps=1 train.log_every=1 train.global_batch_size=4 \
  train.micro_batch_size=2 model.num_layers=2 model.hidden_size=256 model.num_attention_heads=4 model.num_query_groups=2 \
  model.add_qkv_bias=true dataset.seq_length=128 mixed_precision.name=bf16_mixed lr_scheduler.warmup_steps=0 \
  validation.every_steps=0 checkpoint.every_steps=0 checkpoint.at_end=false "$@"
