#!/usr/bin/env bash
# How much communication between stages the interleaved 1F1B hides, two stages per rank: the same training with
# overlap_p2p_comm off and on, then with each flag of the fine-grained 1F1B, over an emulated link on which a rank's
# messages take a given share of its compute time.
#   scripts/bench/overlap_pp.sh [ranks, default 2] [share in per cent, default 25; 0: the real link alone] [rounds, default 3] [setting...]
# Figures are medians. Exposed is the time in which rank 0 stands still for messages that are on their way; lost is how much
# longer a step takes than in the same order without a link, which counts what other ranks wait for, too. The link delays
# completion without burning CPU, but ranks that share a core wait for each other: with fewer cores than ranks, slow
# computations down (debug.compute_slowdown=8). Further settings, such as train.global_batch_size=32, hold for every run.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-2} share=${2:-25} rounds=${3:-3}
everywhere=("${@:4}")

# train <name> <setting>...: two layers per stage
train() {
  train_recipe "$1" recipes/bench/b.yaml "$ranks" train.steps=10 \
    "model.num_layers=$((4 * ranks))" model.vocab_size=1024 dataset.seq_length=256 model.share_embeddings_and_output_weights=false \
    "distributed.pp_size=$ranks" distributed.vpp_size=2 distributed.pipeline.pp_schedule=interleaved_1f1b \
    train.micro_batch_size=1 "train.global_batch_size=$((6 * ranks))" \
    "${everywhere[@]}" "${@:2}"
}

off=comm_overlap.overlap_p2p_comm=false on=comm_overlap.overlap_p2p_comm=true
first=comm_overlap.overlap_p2p_backward_on_comm_stream=true
two=comm_overlap.overlap_p2p_wgrad_delayed_layer_number=2
layers=comm_overlap.overlap_p2p_with_transformer_layer_wgrad=true
split=comm_overlap.delay_wgrad_compute=true
train free "$on"
compute=$(median free step_ms) bytes=$(median free comm.pp.bytes)
gbps=$(link_gbps "$bytes" "$compute" "$share")
say "pp $ranks: a step of $compute ms; rank 0 sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"

# measure <name> <free run's step> <setting>...: beside `off`
measure() {
  local name=$1 free_step=$2
  shift 2
  train run "comm.link.gbps=$gbps" "$@"
  local step exposed
  step=$(median run step_ms) exposed=$(median run comm.pp.exposed_ms)
  [[ $name == off ]] && step_off=$step free_off=$free_step exposed_off=$exposed
  awk -v name="$name" -v step="$step" -v without="$free_step" -v exposed="$exposed" -v off="$exposed_off" -v lost_off="$(awk "BEGIN { print $step_off - $free_off }")" '
    BEGIN { printf "  %-34s exposed %5.0f ms (%3.0f %% of off)   step %5.0f ms, lost %5.0f ms (%3.0f %% of off)\n",
      name, exposed, (off > 0 ? 100 * exposed / off : 0), step, step - without, (lost_off > 0 ? 100 * (step - without) / lost_off : 0) }'
}
for ((round = 1; round <= rounds; ++round)); do
  train free "$on"
  plain=$(median free step_ms)
  # The pairs' order, which has one more micro-batch of warm-up.
  train free "$on" "$first"
  pairs=$(median free step_ms)
  say "round $round: without a link $plain ms; with forwards and backwards in turns $pairs ms"
  measure off "$plain" "$off"
  measure "overlap_p2p_comm" "$plain" "$on"
  measure "+ backward_on_comm_stream" "$pairs" "$on" "$first"
  measure "+ delayed_layer_number 2" "$pairs" "$on" "$two"
  measure "+ with_transformer_layer_wgrad" "$pairs" "$on" "$layers"
  measure "+ 2 delayed layers, whole" "$pairs" "$on" "$two" "$layers"
  measure "+ all three" "$pairs" "$on" "$first" "$two" "$layers"
  measure "+ all three, delay_wgrad_compute" "$pairs" "$on" "$first" "$two" "$layers" "$split"
done
