#!/usr/bin/env bash
# Measures what the fine-grained 1F1B and its settings cost or gain on a dense model. Runs the same training in
# turns over an emulated link, on which a message takes a given share of a chunk's compute time. The variants are:
# the plain interleaved 1F1B, pairs alone (fine_grained_1f1b), each of the three overlap_p2p_* settings, and all of
# them.
#   scripts/bench/overlap_fine_grained.sh [shares in per cent, default "50 100"] [rounds, default 5] [ranks, default 4] [setting...]
# A chunk has two layers; its compute time is that of a forward, or half that of a backward, in a step without a
# link. A rank sends an activation and a gradient for every forward and backward, so that 100 % keeps its links busy
# all the time. Prints the median of the steps' times, their spread over the rounds, and how much longer a step is
# than a plain one without a link: as measured, and as simulated (mtrain schedule). The link delays completion
# without burning CPU; debug.compute_slowdown lets ranks that share a core compute at the same time. Further
# settings hold for every run.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

shares=${1:-50 100} rounds=${2:-5} ranks=${3:-4}
everywhere=("${@:4}")
micro_batches=$((2 * ranks)) layers=2 hidden=512 ffn=1408 seq=64

# train <name> <setting>...: two layers per stage, two stages per rank
train() {
  train_recipe "$1" recipes/bench/llama_28m.yaml "$ranks" train.steps=8 "train.global_batch_size=$micro_batches" \
    "model.num_layers=$((2 * layers * ranks))" "model.hidden_size=$hidden" "model.ffn_hidden_size=$ffn" model.vocab_size=512 \
    "dataset.seq_length=$seq" model.share_embeddings_and_output_weights=false "distributed.pp_size=$ranks" \
    distributed.vpp_size=2 distributed.pipeline.pp_schedule=interleaved_1f1b train.micro_batch_size=1 \
    debug.compute_slowdown=4 checkpoint.at_end=false "${everywhere[@]}" "${@:2}"
}
# simulate <option>...: prints the simulated step, in forwards of a chunk
simulate() {
  "$mtrain" schedule --name interleaved_1f1b --one-link --pp "$ranks" --vpp 2 --micro "$micro_batches" "$@" |
    sed -n 's/^step \([0-9.e+-]*\),.*/\1/p'
}

pairs=comm_overlap.fine_grained_1f1b=true
stream=comm_overlap.overlap_p2p_backward_on_comm_stream=true
two=comm_overlap.overlap_p2p_wgrad_delayed_layer_number=$layers
whole=comm_overlap.overlap_p2p_with_transformer_layer_wgrad=true
# The shares of a chunk's weight gradients in attention of one layer, in attention of all layers, and in one full
# layer; and the share of a forward that follows the backward beside it, its last MLP. With 8 heads and 4 key-value
# heads.
read -r attention attentions layer mlp < <(awk -v h=$hidden -v f=$ffn -v l=$layers 'BEGIN {
  a = 3 * h * h / (3 * h * h + 3 * h * f); print a / l, a, 1 / l, (1 - a) / l }')

names=(plain pairs backward_on_comm_stream "delayed_layer_number $layers" with_transformer_layer_wgrad all)
settings=("" "$pairs" "$stream" "$two" "$whole" "$stream $two $whole")
in_order="--moe-overlap --paired-gradient in_order"
at_once="--moe-overlap --paired-gradient at_once --forward-tail $mlp"
options=("" "$in_order --delayed-wgrad $attention" "$at_once --delayed-wgrad $attention"
  "$in_order --delayed-wgrad $attentions" "$in_order --delayed-wgrad $layer" "$at_once --delayed-wgrad 1")

train free
free=$(median free step_ms) free_units=$(simulate)
bytes=$((seq * hidden * 4))
for share in $shares; do
  gbps=$(awk -v b=$bytes -v ms="$free" -v units="$free_units" -v share="$share" \
    'BEGIN { print b * 8 / (share / 100 * 1.5 * ms / units * 1e-3) / 1e9 }')
  say "pp $ranks: a step without a link takes $free ms; a message of $bytes bytes takes $share % of a forward and half a backward: $gbps Gbit/s"
  : >"$work/times"
  for ((round = 1; round <= rounds; ++round)); do
    train free
    say "free $(median free step_ms)" >>"$work/times"
    for i in "${!names[@]}"; do
      # shellcheck disable=SC2086
      train run "comm.link.gbps=$gbps" ${settings[i]}
      say "$i $(median run step_ms) $(median run comm.pp.exposed_ms)" >>"$work/times"
    done
  done
  base=$(median_free)
  # A message's time in forwards of a chunk, as fast as these were meanwhile.
  transfer=$(awk -v b=$bytes -v gbps="$gbps" -v ms="$base" -v units="$free_units" \
    'BEGIN { print b * 8 / (gbps * 1e9) * 1e3 / (ms / units) }')
  for i in "${!names[@]}"; do
    # shellcheck disable=SC2086
    units=$(simulate --p2p-transfer "$transfer" ${options[i]})
    awk -v i="$i" '$1 == i { print $2, $3 }' "$work/times" | sort -g | awk -v name="${names[i]}" -v base="$base" \
      -v simulated="$(awk "BEGIN { print 100 * ($units / $free_units - 1) }")" '
      { v[NR] = $1; exposed += $2 }
      END {
        m = v[int((NR + 1) / 2)]
        printf "  %-32s step %6.0f ms (%.0f to %.0f)  exposed on rank 0 %5.0f ms   longer by %5.1f %%, simulated %5.1f %%\n",
          name, m, v[1], v[NR], exposed / NR, 100 * (m / base - 1), simulated
      }'
  done
done
