#!/usr/bin/env bash
# Measures how much communication tensor and sequence parallelism hide: runs the same training with overlap off and on,
# over an emulated link on which the communication takes a given share of the compute time.
#   scripts/bench/overlap_tp.sh [ranks, default 4] [share in per cent, default 25; 0: the real link alone] [rounds, default 3] [setting...]
# Steps and exposed times are medians. The link delays completion without burning CPU. Further settings, such as
# comm_overlap.tp_comm_overlap_cfg={...}, hold for every run.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-4} share=${2:-25} rounds=${3:-3}
everywhere=("${@:4}")

# train <name> <setting>...
train() {
  train_recipe "$1" recipes/bench/llama_28m.yaml "$ranks" train.steps=14 \
    "distributed.tp_size=$ranks" distributed.sequence_parallel=true distributed.strategy=fsdp2 \
    dataset.seq_length=512 train.micro_batch_size=1 train.global_batch_size=1 model.vocab_size=1024 \
    "${everywhere[@]}" "${@:2}"
}

off=comm_overlap.tp_comm_overlap=false on=comm_overlap.tp_comm_overlap=true
train free "$on"
compute=$(median free step_ms) bytes=$(median free comm.tp.bytes)
gbps=$(link_gbps "$bytes" "$compute" "$share")
say "tp $ranks: a step of $compute ms sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"
for ((round = 1; round <= rounds; ++round)); do
  train off "comm.link.gbps=$gbps" "$off"
  train on "comm.link.gbps=$gbps" "$on"
  awk -v off="$(median off step_ms)" -v on="$(median on step_ms)" -v round="$round" \
    -v waits="$(median off comm.tp.exposed_ms)" -v left="$(median on comm.tp.exposed_ms)" '
    BEGIN { printf "round %d: step %.0f ms without overlap, %.0f ms with (%.2f x); exposed %.0f ms and %.0f ms (%.0f %%)\n",
      round, off, on, off / on, waits, left, (waits > 0 ? 100 * left / waits : 0) }'
done
