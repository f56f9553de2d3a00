#!/usr/bin/env bash
# Measures how much communication between stages the interleaved 1F1B hides, with two stages per rank: runs the same
# training with overlap_p2p_comm off, one by one and together, and on, over an emulated link on which a rank's messages
# take a given share of its compute time. overlap_fine_grained.sh measures the fine-grained 1F1B.
#   scripts/bench/overlap_pp.sh [ranks, default 2] [share in per cent, default 25; 0: the real link alone] [rounds, default 3] [setting...]
# Figures are medians of a step. Exposed is the time in which rank 0 stands still for messages under way. Lost is
# how much longer a step takes than without a link, which includes the waits of all ranks. Both are printed for a
# step of 12 micro-batches per rank, and for its steady state: what 8 of these add to a step of 4, without the fill
# and drain of the pipeline. The link delays completion without burning CPU, but ranks that share a core wait for
# each other: with fewer cores than ranks, slow computations down (debug.compute_slowdown=8). Further settings hold
# for every run.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-2} share=${2:-25} rounds=${3:-3}
everywhere=("${@:4}")
[[ "${everywhere[*]}" != *train.global_batch_size=* ]] || die "steps of two lengths are compared: the batch is not to be set"

# train <name> <setting>...: <name>.short and <name>.long; two layers per stage
train() {
  local name=$1 length batch
  shift
  for length in short long; do
    batch=$(($([[ $length == long ]] && printf 12 || printf 4) * ranks))
    train_recipe "$name.$length" recipes/bench/llama_28m.yaml "$ranks" train.steps=9 "train.global_batch_size=$batch" \
      "model.num_layers=$((4 * ranks))" model.vocab_size=1024 dataset.seq_length=256 model.share_embeddings_and_output_weights=false \
      "distributed.pp_size=$ranks" distributed.vpp_size=2 distributed.pipeline.pp_schedule=interleaved_1f1b \
      train.micro_batch_size=1 "${everywhere[@]}" "$@"
  done
}

off=comm_overlap.overlap_p2p_comm=false on=comm_overlap.overlap_p2p_comm=true
train free "$on"
compute=$(median free.long step_ms) bytes=$(median free.long comm.pp.bytes)
gbps=$(link_gbps "$bytes" "$compute" "$share")
say "pp $ranks: a step of $compute ms; rank 0 sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"

# measure <name> <setting>...: beside `off`
measure() {
  local name=$1
  shift
  train run "comm.link.gbps=$gbps" "$@"
  local figures
  figures="$(median run.long comm.pp.exposed_ms) $(median run.short comm.pp.exposed_ms) $(median run.long step_ms) $(median run.short step_ms)"
  [[ $name == off ]] && figures_off=$figures
  awk -v name="$name" -v own="$figures" -v off="$figures_off" -v free_long="$free_long" -v free_short="$free_short" '
    function share_of(part, whole) { return whole > 0 ? 100 * part / whole : 0 }
    BEGIN {
      split(own, o); split(off, w)
      lost = o[3] - free_long; lost_off = w[3] - free_long
      steady = lost - (o[4] - free_short); steady_off = lost_off - (w[4] - free_short)
      printf "  %-34s exposed %5.0f ms (%3.0f %% of off), steady %5.0f (%3.0f %%)   step %5.0f ms, lost %5.0f (%3.0f %%), steady %5.0f (%3.0f %%)\n",
        name, o[1], share_of(o[1], w[1]), o[1] - o[2], share_of(o[1] - o[2], w[1] - w[2]), o[3], lost, share_of(lost, lost_off), steady, share_of(steady, steady_off)
    }'
}
for ((round = 1; round <= rounds; ++round)); do
  train free "$on"
  free_long=$(median free.long step_ms) free_short=$(median free.short step_ms)
  say "round $round: without a link $free_long ms, with a third of the micro-batches $free_short ms"
  measure off "$off"
  measure "one by one" "$off" comm_overlap.batch_p2p_comm=false
  measure "overlap_p2p_comm" "$on"
done
