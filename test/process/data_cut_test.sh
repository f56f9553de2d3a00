#!/usr/bin/env bash
# Tests that a run ends with the name of the file if its data set is truncated meanwhile, on one rank and on
# several.
#   test/process/data_cut_test.sh <mtrain> <mtrain-launch>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2")
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill -KILL $pid 2>/dev/null; rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$work/out" | tail -n 20
  failures=$((failures + 1))
}
seq 1 20000 >"$work/text"
cat >"$work/r.yaml" <<YAML
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: $work/set, seq_length: 32}
train: {steps: 1000000, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
mixed_precision: fp32
YAML
for case in "1 bin 0" "2 bin 50001" "2 idx 0"; do
  read -r ranks suffix bytes <<<"$case"
  rm -f "$work"/set.*
  "$mtrain" data build --input "$work/text" --output "$work/set" >"$work/out" 2>&1 || fail "data build"
  run=$work/$ranks-$suffix
  if ((ranks == 1)); then command=("$mtrain"); else command=("$launch" --nproc_per_node="$ranks"); fi
  "${command[@]}" --recipe "$work/r.yaml" "train.run_dir=$run" >"$work/out" 2>&1 &
  pid=$!
  for ((i = 0; i < 400; i++)); do
    grep -q '"loss"' "$run/metrics.jsonl" 2>/dev/null && break
    sleep 0.05
  done
  truncate -s "$bytes" "$work/set.$suffix"
  for ((i = 0; i < 400; i++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  kill -0 "$pid" 2>/dev/null && fail "$case: the run goes on" && kill -KILL "$pid"
  wait "$pid"
  code=$?
  pid=
  ((code == 1)) || fail "$case: exit code $code instead of 1"
  grep -q "error: .*$work/set.$suffix" "$work/out" || fail "$case: $work/set.$suffix is not named"
  if ((ranks > 1)); then
    grep -q "mtrain-launch: error: rank [01] failed: .*$work/set.$suffix" "$work/out" || fail "$case: the launcher does not name the file"
  fi
done
exit $((failures > 0))
