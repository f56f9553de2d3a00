#!/usr/bin/env bash
# How much of the gradient reduction ddp hides: the same training with overlap on and off, over an emulated link on
# which communication takes a given share of the compute time.
#   scripts/bench/overlap_dp.sh [ranks, default 4] [share in per cent, default 50]
# Steps of the two runs and exposed time are medians; the link delays completion without burning CPU.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
ranks=${1:-4} share=${2:-50}
launch=build/release/apps/mtrain-launch/mtrain-launch mtrain=build/release/apps/mtrain/mtrain
[[ -x $launch ]] || die "$launch is not built"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seq 1 200000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null

# train <name> <setting>...
train() {
  local name=$1
  shift
  rm -rf "${work:?}/$name"
  "$launch" --nproc_per_node="$ranks" --recipe recipes/bench/b.yaml "dataset.train=$work/set" train.steps=14 \
    dataset.seq_length=256 train.micro_batch_size=1 train.global_batch_size="$ranks" distributed.strategy=ddp \
    model.vocab_size=1024 train.threads=1 ddp.bucket_size=3000000 train.log_every=100 "train.run_dir=$work/$name" "$@" >"$work/$name.log" 2>&1 ||
    { cat "$work/$name.log" && die "training failed"; }
}
# median <name> <field>: without the first steps
median() {
  sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$work/$1/metrics.jsonl" | tail -n +5 | sort -g |
    awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

train free
compute=$(median free step_ms) bytes=$(median free comm.dp_grad.bytes)
gbps=$(awk "BEGIN { print $bytes * 8 / ($share / 100 * $compute * 1e-3) / 1e9 }")
say "$ranks ranks: a step of $compute ms sends $bytes bytes; a link of $gbps Gbit/s takes $share % of that time"
for round in 1 2 3; do
  for overlap in false true; do train "$overlap" "comm.link.gbps=$gbps" ddp.overlap_grad_reduce=$overlap; done
  awk -v off="$(median false step_ms)" -v on="$(median true step_ms)" -v busy="$(median true comm.dp_grad.busy_ms)" \
    -v off_exposed="$(median false comm.dp_grad.exposed_ms)" -v exposed="$(median true comm.dp_grad.exposed_ms)" -v round="$round" 'BEGIN {
      printf "round %d: step %.0f ms without overlap, %.0f ms with (%.2f x); exposed %.0f ms without, %.0f ms with (%.0f %%)\n",
        round, off, on, off / on, off_exposed, exposed, 100 * exposed / off_exposed }'
done
