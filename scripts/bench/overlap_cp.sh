#!/usr/bin/env bash
# Measures how much communication context parallelism hides: runs the same training with overlap off and on, over an
# emulated link on which the messages of attention take a given share of attention's compute time.
#   scripts/bench/overlap_cp.sh [ranks, default 4] [share in per cent, default 60; 0: the real link alone] [rounds, default 3] [setting...]
# Steps and exposed times are medians. The link delays completion without burning CPU, but ranks that share a core wait
# for each other: figures mean something only if every rank has a core. Further settings hold for every run.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-4} share=${2:-60} rounds=${3:-3}
everywhere=("${@:4}")

# train <name> <setting>...: these settings win over all others
train() {
  train_recipe "$1" recipes/bench/llama_3m.yaml "$ranks" train.steps=12 \
    dataset.seq_length=4096 train.micro_batch_size=1 train.global_batch_size=1 model.vocab_size=512 model.num_query_groups=8 \
    distributed.strategy=megatron_ddp "distributed.cp_size=$ranks" \
    "${everywhere[@]}" "${@:2}"
}
# attention <name>: its milliseconds in a step of rank 0, of a run with --profile
attention() {
  awk '/^steps profiled: / { steps = $3 + 0 } /^attention_/ { ms += $3 } END { print steps ? ms / steps : 0 }' "$work/$1.log"
}

# compare <settings of a type>...
compare() {
  train free "$@" --profile
  local attended bytes gbps
  attended=$(attention free) bytes=$(median free comm.cp.bytes)
  gbps=$(link_gbps "$bytes" "$attended" "$share")
  say "$*: a step attends for $attended ms and sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"
  for ((round = 1; round <= rounds; ++round)); do
    train off "$@" "comm.link.gbps=$gbps" comm_overlap.cp_overlap=false
    train on "$@" "comm.link.gbps=$gbps" comm_overlap.cp_overlap=true
    awk -v off="$(median off step_ms)" -v on="$(median on step_ms)" -v was="$(median off comm.cp.exposed_ms)" \
      -v is="$(median on comm.cp.exposed_ms)" -v round="$round" '
      BEGIN { printf "round %d: step %.0f ms without overlap, %.0f ms with (%.2f x); exposed %.0f ms without, %.0f ms with (%.0f %% of it)\n",
        round, off, on, off / on, was, is, (was > 0 ? 100 * is / was : 0) }'
  done
}

for type in p2p all_gather a2a; do compare "distributed.cp_comm_type=$type"; done
if ((ranks % 2 == 0 && ranks > 2)); then
  compare distributed.cp_comm_type=a2a+p2p "distributed.hierarchical_context_parallel_sizes=[2,$((ranks / 2))]"
fi
