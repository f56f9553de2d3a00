#!/usr/bin/env bash
# Measures the time from `mtrain-launch` to the end of the first step: rendezvous, groups, weights and data. Prints
# medians of rounds.
#   scripts/bench/start_ranks.sh [ranks, default 8] [rounds, default 5] [setting...]
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-8} rounds=${2:-5}
settings=("${@:3}")

for strategy in ddp megatron_ddp fsdp2; do
  for ((round = 1; round <= rounds; ++round)); do
    rm -rf "$work/run"
    began=$(date +%s.%N)
    "$launch" --nproc_per_node="$ranks" --recipe recipes/bench/llama_3m.yaml "dataset.train=$work/set" train.steps=10000 \
      dataset.seq_length=32 train.micro_batch_size=1 train.global_batch_size="$ranks" "distributed.strategy=$strategy" \
      model.vocab_size=512 train.threads=1 "train.run_dir=$work/run" "${settings[@]}" >"$work/log" 2>&1 &
    pid=$!
    until [[ -s $work/run/metrics.jsonl ]]; do
      kill -0 "$pid" 2>/dev/null || { cat "$work/log" && die "training ended early"; }
      sleep 0.01
    done
    awk -v began="$began" -v now="$(date +%s.%N)" 'BEGIN { printf "%.2f\n", now - began }' >>"$work/$strategy"
    kill -INT "$pid" && wait "$pid" || true
  done
  sort -g "$work/$strategy" | awk -v what="$ranks ranks, $strategy" \
    '{ v[NR] = $1 } END { printf "%s: first step after %.2f s (%.2f to %.2f)\n", what, v[int((NR + 1) / 2)], v[1], v[NR] }'
done
