#!/usr/bin/env bash
# How much communication context parallelism hides: the same training with overlap off and on, over an emulated link on
# which what the attention sends takes a given share of the attention's time.
#   scripts/bench/overlap_cp.sh [ranks, default 4] [share in per cent, default 60; 0: the real link alone] [rounds, default 3] [setting...]
# Steps and exposed times are medians. The link delays completion without burning CPU, but ranks that share a core wait
# for each other: figures mean something where every rank has a core. Further settings hold for every run.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
ranks=${1:-4} share=${2:-60} rounds=${3:-3}
everywhere=("${@:4}")
launch=build/release/apps/mtrain-launch/mtrain-launch mtrain=build/release/apps/mtrain/mtrain
[[ -x $launch ]] || die "$launch is not built"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seq 1 200000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null

# train <name> <setting>...: the last word on a setting is the run's
train() {
  local name=$1
  shift
  rm -rf "${work:?}/$name"
  "$launch" --nproc_per_node="$ranks" --recipe recipes/bench/a.yaml "dataset.train=$work/set" train.steps=12 \
    dataset.seq_length=4096 train.micro_batch_size=1 train.global_batch_size=1 model.vocab_size=512 model.num_query_groups=8 \
    distributed.strategy=megatron_ddp "distributed.cp_size=$ranks" train.threads=1 train.log_every=100 \
    "train.run_dir=$work/$name" "${everywhere[@]}" "$@" >"$work/$name.log" 2>&1 || { cat "$work/$name.log" && die "training failed"; }
}
# median <name> <field>: without the first steps; 0 where no step has it
median() {
  sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$work/$1/metrics.jsonl" | tail -n +5 | sort -g |
    awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : 0 }'
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
  gbps=$(awk "BEGIN { share = $share; print (share > 0 ? $bytes * 8 / (share / 100 * $attended * 1e-3) / 1e9 : 0) }")
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
