#!/usr/bin/env bash
# Measures how much of the exchanges of experts' rows is hidden. Runs the same training in turns over an emulated
# link, on which the exchanges take a given share of the time of a step without a link. The variants are: no overlap
# of experts, pairs of passes (overlap_moe_expert_parallel_comm), pairs with delayed weight gradients, the shared
# expert (shared_expert_overlap), chunks (moe_dispatch_chunks), and both of these.
#   scripts/bench/overlap_ep.sh [ranks, default 2] [shares in per cent, default "30 60"] [rounds, default 3] [pp, default 1] [setting...]
# Experts are spread over all ranks of a pipeline rank, each of which has 16 micro-batches, and routing is balanced;
# with pp above 1 a rank has two stages. Attention takes about half of a layer. The link delays completion without
# burning CPU; debug.compute_slowdown lets ranks that share a core compute at the same time, and leaves as much time
# again to the threads that enqueue and communicate. Each run is between two without a link, and its step is divided
# by their mean. Prints the median and the range over the rounds. Other times are means over the rounds of their
# medians: the exchanges' time at work and its exposed part, in all and in pairs; idle, the time in which ranks
# waited for each other; and starved, the time in which compute had nothing to do. Below each is the forecast of the
# simulator (mtrain schedule) for the run's order, which follows from the plan's estimates. The times of the parts
# come from a trace of a run without a link; the forecast adds to that run's step what the exchanges cost in the
# simulation. An exchange lasts as long as in the run with pairs. The part of that beyond its time on the link is
# latency, which each chunk pays again. Further settings hold for every run, such as debug.route=zipf, for which the
# simulation does not hold.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

ranks=${1:-2} shares=${2:-30 60} rounds=${3:-3} pp=${4:-1}
everywhere=("${@:5}")
ep=$((ranks / pp))
layout=() shape=(--name 1f1b --pp 1)
((pp == 1)) || shape=(--name interleaved_1f1b --pp "$pp" --vpp 2)
((pp == 1)) || layout=("distributed.pp_size=$pp" distributed.vpp_size=2 distributed.pipeline.pp_schedule=interleaved_1f1b)

recipe=recipes/bench/mixtral_42m.yaml
model=(train.steps=7 "train.global_batch_size=$((16 * ep))" train.micro_batch_size=1 model.num_layers=4
  model.hidden_size=256 model.num_attention_heads=8 model.num_query_groups=8 model.vocab_size=512
  dataset.seq_length=128 model.moe.num_experts=8 model.moe.router_topk=2 model.moe.ffn_hidden_size=256
  model.moe.shared_expert_ffn_hidden_size=512 "distributed.ep_size=$ep" distributed.strategy=megatron_ddp
  debug.route=balanced debug.compute_slowdown=8 checkpoint.at_end=false "${layout[@]}" "${everywhere[@]}")

# train <name> <setting>...
train() { train_recipe "$1" $recipe "$ranks" "${model[@]}" "${@:2}"; }

# estimates <setting>...: prints what the plan expects of the parts, by which a run orders its passes
estimates() {
  # shellcheck disable=SC2154
  "$mtrain" --recipe $recipe "dataset.train=$work/set" train.threads=1 "${model[@]}" "$@" --dry-run \
    --world-size "$ranks" 2>&1 | tr -s ' \n' ' ' |
    grep -oE -- '--estimate [a-z]+=[0-9.e+-]+(,[0-9.e+-]+){2}'
}

pairs=comm_overlap.overlap_moe_expert_parallel_comm=true
delay=comm_overlap.delay_wgrad_compute=true
shared=model.moe.shared_expert_overlap=true
chunks=comm_overlap.moe_dispatch_chunks=$((8 / ep))
names=(off pairs "pairs, delayed weights" "shared expert" "$((8 / ep)) chunks" "shared expert and chunks")
settings=("" "$pairs" "$pairs $delay" "$shared" "$chunks" "$shared $chunks")
options=("" "--moe-overlap" "--moe-overlap --delay-wgrad" "--shared-overlap" "--chunks $((8 / ep))" "--shared-overlap --chunks $((8 / ep))")

# simulate <ms of an exchange> <ms of its latency> <option>...: prints the step, and the exposed shares in all and in pairs
simulate() {
  local exchange=$1 latency=$2
  shift 2
  # shellcheck disable=SC2086
  "$mtrain" schedule "${shape[@]}" --micro 16 --layers $((4 / pp / ((pp > 1) + 1))) $parts --part "exchange=$exchange,$exchange" --exchange-latency "$latency" "$@" | awk '
    /^step/ { step = $2 + 0 }
    /exchanges/ { total += $3; exposed += $3 * $5 / 100; if ($1 == "paired") pairs = $5 }
    END { print step, (total > 0 ? 100 * exposed / total : 0), pairs + 0 }'
}

train free
train traced --trace "$work/trace.json"
parts=$("$(dirname "$0")/part_times.py" "$work/trace.json" 2)
free=$(median free step_ms) bytes=$(median free comm.ep.bytes)
for share in $shares; do
  gbps=$(link_gbps "$bytes" "$free" "$share")
  link=()
  ((share == 0)) || link=("comm.link.gbps=$gbps" comm.link.only=ep)
  say "ep $ep, pp $pp: a step without a link takes $free ms and sends $bytes bytes over ep; on a link of $gbps Gbit/s that takes $share % of it"
  : >"$work/times"
  for ((round = 1; round <= rounds; ++round)); do
    train free
    before=$(median free step_ms)
    say "free $before" >>"$work/times"
    for i in "${!names[@]}"; do
      # shellcheck disable=SC2086
      train run "${link[@]}" ${settings[i]}
      train free
      after=$(median free step_ms)
      say "free $after" >>"$work/times"
      say "$i $(awk "BEGIN { print 2 * $(median run step_ms) / ($before + $after) }") $(median run comm.ep.busy_ms) $(median run comm.ep.exposed_ms) $(median run comm.ep.paired_busy_ms) $(median run comm.ep.paired_exposed_ms) $(median run comm.ep.idle_ms) $(median run compute.starved_ms)" >>"$work/times"
      before=$after
    done
  done
  base=$(median_free)
  # A rank of pp has 4 / pp layers, each of which exchanges rows four times in a micro-batch. What an exchange takes
  # beyond its share of the link is latency. In pairs the numbers of rows travel on another stream.
  exchange=$(awk -v n=$((4 * 16 * 4 / pp)) '$1 == 1 { busy += $3; ++runs } END { print busy / runs / n }' "$work/times")
  latency=$(awk "BEGIN { latency = $exchange - $share / 100 * $free / (4 * 16 * 4 / $pp); print (latency > 0 ? latency : 0) }")
  simulated_free=$(simulate 0 0)
  for i in "${!names[@]}"; do
    awk -v i="$i" '$1 == i { print $2, $3, $4, $5, $6, $7, $8 }' "$work/times" | sort -g | awk -v name="${names[i]}" '
      { v[NR] = $1; busy += $2; exposed += $3; paired += $4; left += $5; idle += $6; starved += $7 }
      END {
        m = v[int((NR + 1) / 2)]
        printf "  %-26s step %.2f x free (%.2f to %.2f)  exposed %5.0f of %5.0f ms (%3.0f %%)  in pairs %5.0f of %5.0f (%3.0f %%)  idle %4.0f, starved %4.0f ms\n",
          name, m, v[1], v[NR], exposed / NR, busy / NR, (busy > 0 ? 100 * exposed / busy : 0),
          left / NR, paired / NR, (paired > 0 ? 100 * left / paired : 0), idle / NR, starved / NR
      }'
    # shellcheck disable=SC2086
    expected=$(estimates "${link[@]}" ${settings[i]}) || die "the dry run prints no estimates"
    # shellcheck disable=SC2086
    simulate "$exchange" "$latency" $expected ${options[i]} | awk -v base="$base" -v free="${simulated_free%% *}" '
      { printf "    %-24s step %.2f x free  exposed %.0f %%  in pairs %.0f %%\n", "simulated", (base + $1 - free) / base, $2, $3 }'
  done
done
