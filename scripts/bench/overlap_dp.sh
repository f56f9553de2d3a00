#!/usr/bin/env bash
# Measures how much communication data parallelism hides: runs the same training with overlap off and on, over an
# emulated link on which the communication takes a given share of the compute time.
#   scripts/bench/overlap_dp.sh [ranks, default 4] [share in per cent, default 50; 0: the real link alone] [rounds, default 3] [setting...]
# Steps and exposed times are medians. The link delays completion without burning CPU. Further settings, such as
# comm.backend=gloo, hold for every run.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-4} share=${2:-50} rounds=${3:-3}
everywhere=("${@:4}")

# train <name> <setting>...
train() {
  train_recipe "$1" recipes/bench/llama_28m.yaml "$ranks" train.steps=14 \
    dataset.seq_length=256 train.micro_batch_size=1 train.global_batch_size="$ranks" model.vocab_size=1024 \
    "${everywhere[@]}" "${@:2}"
}

# compare <strategy and its settings> -- <settings that turn overlap off> -- <... on>
compare() {
  local common=() off=() on=()
  while [[ $1 != -- ]]; do common+=("$1") && shift; done && shift
  while [[ $1 != -- ]]; do off+=("$1") && shift; done && shift
  on=("$@")
  train free "${common[@]}" "${on[@]}"
  local compute bytes gbps
  compute=$(median free step_ms) bytes=$(awk "BEGIN { print $(median free comm.dp_grad.bytes) + $(median free comm.dp_param.bytes) }")
  gbps=$(link_gbps "$bytes" "$compute" "$share")
  say "${common[*]}: a step of $compute ms sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"
  for ((round = 1; round <= rounds; ++round)); do
    train off "comm.link.gbps=$gbps" "${common[@]}" "${off[@]}"
    train on "comm.link.gbps=$gbps" "${common[@]}" "${on[@]}"
    awk -v off="$(median off step_ms)" -v on="$(median on step_ms)" \
      -v off_grad="$(median off comm.dp_grad.exposed_ms)" -v grad="$(median on comm.dp_grad.exposed_ms)" \
      -v off_param="$(median off comm.dp_param.exposed_ms)" -v param="$(median on comm.dp_param.exposed_ms)" -v round="$round" '
      function part(a, b) { return b > 0 ? sprintf("%.0f of %.0f ms (%.0f %%)", a, b, 100 * a / b) : "none" }
      BEGIN { printf "round %d: step %.0f ms without overlap, %.0f ms with (%.2f x); exposed: gradients %s, parameters %s\n",
        round, off, on, off / on, part(grad, off_grad), part(param, off_param) }'
  done
}

bucket=ddp.bucket_size=1000000
compare distributed.strategy=ddp "$bucket" -- ddp.overlap_grad_reduce=false -- ddp.overlap_grad_reduce=true
compare distributed.strategy=megatron_ddp "$bucket" -- ddp.overlap_grad_reduce=false ddp.overlap_param_gather=false -- \
  ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true
compare distributed.strategy=megatron_fsdp distributed.zero_dp_strategy=2 "$bucket" -- ddp.overlap_grad_reduce=false \
  ddp.overlap_param_gather=false -- ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true
compare distributed.strategy=megatron_fsdp distributed.zero_dp_strategy=3 "$bucket" -- ddp.overlap_grad_reduce=false \
  ddp.overlap_param_gather=false -- ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true
compare distributed.strategy=fsdp2 -- distributed.fsdp2_forward_prefetch_depth=0 distributed.fsdp2_backward_prefetch_depth=0 -- \
  distributed.fsdp2_forward_prefetch_depth=1 distributed.fsdp2_backward_prefetch_depth=2
