#!/usr/bin/env bash
# Measures how much data-parallel communication stages of a pipeline leave exposed, pp 2 x vpp 2 x dp 2, with the buckets of
# two builds in turns: all of a rank's gradients in one bucket (the default size), and small buckets.
#   scripts/bench/overlap_dp_stages.sh <before: build folder> [after: build folder, default build/release] [share in per cent, default 50] [rounds, default 3] [setting...]
# Over an emulated link on which gradients and parameters take the given share of the compute time; it delays completion
# without burning CPU. debug.compute_slowdown lets ranks that share a core compute at the same time. Further settings hold
# for every run.
[[ ${1:-} == -h || ${1:-} == --help || $# -ge 1 ]] || set -- --help
after_build=${2:-build/release}
MTRAIN_BUILD=$after_build
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

before_launch=$(program_path mtrain-launch "$(realpath "$1")") after_launch=$launch share=${3:-50} rounds=${4:-3}
everywhere=("${@:5}")
[[ -x $before_launch ]] || die "$before_launch is not built"

train() {
  train_recipe "$1" recipes/bench/llama_28m.yaml 4 train.steps=10 dataset.seq_length=64 model.vocab_size=1024 \
    model.share_embeddings_and_output_weights=false train.micro_batch_size=1 train.global_batch_size=8 \
    distributed.strategy=megatron_ddp distributed.pp_size=2 distributed.vpp_size=2 \
    distributed.pipeline.pp_schedule=interleaved_1f1b debug.compute_slowdown=4 "${everywhere[@]}" "${@:2}"
}

# compare <setting>...
compare() {
  local round build bytes compute gbps
  train free "$@"
  compute=$(median free step_ms)
  bytes=$(awk "BEGIN { print $(median free comm.dp_grad.bytes) + $(median free comm.dp_param.bytes) }")
  gbps=$(link_gbps "$bytes" "$compute" "$share")
  say "$*: a step of $compute ms sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"
  for ((round = 1; round <= rounds; ++round)); do
    for build in before after; do
      launch=${build}_launch
      launch=${!launch}
      train "$build" "comm.link.gbps=$gbps" "$@"
      awk -v round="$round" -v build="$build" -v step="$(median "$build" step_ms)" \
        -v grad="$(median "$build" comm.dp_grad.exposed_ms)" -v grad_work="$(median "$build" comm.dp_grad.busy_ms)" \
        -v param="$(median "$build" comm.dp_param.exposed_ms)" -v param_work="$(median "$build" comm.dp_param.busy_ms)" '
        BEGIN {
          printf "  round %d %-6s step %5.0f ms; exposed: gradients %4.0f of %4.0f ms at work, parameters %4.0f of %4.0f ms\n",
            round, build, step, grad, grad_work, param, param_work
        }'
    done
  done
}

compare ddp.bucket_size=40000000
compare ddp.bucket_size=1000000
compare ddp.bucket_size=40000000 ddp.align_param_gather=false
