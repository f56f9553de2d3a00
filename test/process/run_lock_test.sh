#!/usr/bin/env bash
# Tests that a run folder has one run at a time, with the locks of the file system and without.
#   test/process/run_lock_test.sh <mtrain> <mtrain-launch> <library that takes the locks away>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2") no_locks=$(realpath "$3")
work=$(mktemp -d)
pids=
trap 'kill -KILL $pids 2>/dev/null; rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $1"
  for file in "$work"/out.*; do sed "s|^|    ${file##*/}: |" "$file" | tail -n 12; done
  failures=$((failures + 1))
}

seq 1 20000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || fail "data build"
cat >"$work/r.yaml" <<YAML
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: $work/set, seq_length: 32}
train: {steps: 1000000, global_batch_size: 2, micro_batch_size: 2, threads: 1, log_every: 1}
checkpoint: {every_steps: 50}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
mixed_precision: fp32
YAML
# start <letter> <run> <setting>...: starts a training, whose process is $pid
start() {
  local letter=$1 run=$2
  shift 2
  "$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/$run" "$@" >"$work/out.$letter" 2>&1 &
  pid=$!
  pids="$pids $pid"
}
await_step() {
  local i
  for ((i = 0; i < 400; i++)); do
    [[ -e $work/$1/checkpoints/latest ]] && return
    sleep 0.05
  done
  fail "$1 saves nothing"
}
# refused <what> <letter> <pid> <owner>: that start ends with exit code 2 and names the owner
refused() {
  wait "$3"
  local code=$?
  ((code == 2)) || fail "$1: exit code $code instead of 2"
  grep -q "is in use by process $4 on $(uname -n) since" "$work/out.$2" || fail "$1: process $4 is not named"
}
end() {
  kill -TERM "$1"
  wait "$1" || fail "the run that has the folder ends with $?"
}
one_owner() {
  python3 - "$work/$1/metrics.jsonl" <<'PY' || fail "$1: the metrics are of more than one run"
import json, sys
steps = [s["step"] for s in map(json.loads, open(sys.argv[1])) if "loss" in s]
sys.exit(steps != list(range(1, len(steps) + 1)))
PY
  [[ ! -e $work/$1/.lock ]] || fail "$1: the file of the lock is left"
}

for locks in with without; do
  if [[ $locks == without ]]; then export LD_PRELOAD=$no_locks; fi
  # --- two starts at the same time ---
  start a "$locks" && a=$pid
  start b "$locks" && b=$pid
  for ((i = 0; i < 400; i++)); do
    kill -0 "$a" 2>/dev/null && kill -0 "$b" 2>/dev/null || break
    sleep 0.05
  done
  if kill -0 "$a" 2>/dev/null; then first=$a; else first=$b; fi
  if [[ $first == "$a" ]]; then refused "two starts $locks locks" b "$b" "$a"; else refused "two starts $locks locks" a "$a" "$b"; fi
  await_step "$locks"
  # --- a second start, while the first trains ---
  start c "$locks" checkpoint.load=latest
  refused "a start of the same run $locks locks" c "$pid" "$first"
  start c "other_$locks" "checkpoint.dir=$work/$locks/checkpoints" checkpoint.load=latest
  refused "a run with the same checkpoints $locks locks" c "$pid" "$first"
  began=$SECONDS
  "$launch" --nproc_per_node=2 --recipe "$work/r.yaml" "train.run_dir=$work/$locks" \
    train.micro_batch_size=1 distributed.strategy=ddp >"$work/out.c" 2>&1 &
  refused "a start of two ranks $locks locks" c $! "$first"
  ((SECONDS - began < 15)) || fail "two ranks wait for $((SECONDS - began)) s"
  "$mtrain" eval --model "$work/$locks" --data "$work/set" >"$work/out.c" 2>&1 || fail "an evaluation of a run that trains"
  end "$first"
  one_owner "$locks"
  # --- the folder of a run that was killed is free ---
  start a "$locks" checkpoint.load=latest && first=$pid
  for ((i = 0; i < 400; i++)); do
    grep -q "continuing after" "$work/out.a" && break
    sleep 0.05
  done
  kill -KILL "$first"
  wait "$first" 2>/dev/null
  start b "$locks" checkpoint.load=latest
  for ((i = 0; i < 400; i++)); do
    grep -q "continuing after" "$work/out.b" && break
    sleep 0.05
  done
  grep -q "continuing after" "$work/out.b" || fail "a start after a kill $locks locks"
  kill -KILL "$pid"
  warnings=$(grep -c "has no locks" "$work/out.b")
  [[ $warnings == "$([[ $locks == without ]] && echo 1 || echo 0)" ]] || fail "$warnings warnings $locks locks"
done

# --- a run whose lease another run has taken ends before it saves again ---
start a lost && first=$pid
await_step lost
printf 'kind lease\nhost elsewhere\npid 7\npids x\nstarted 2026-01-02T03:04:05Z\njob thief\nattempt 0\n' >"$work/lost/.lock"
for ((i = 0; i < 400; i++)); do
  kill -0 "$first" 2>/dev/null || break
  sleep 0.05
done
kill -KILL "$first" 2>/dev/null
wait "$first"
code=$?
((code == 1)) || fail "a run without its lease: exit code $code instead of 1"
grep -q "has been taken by process 7 on elsewhere" "$work/out.a" || fail "a lost lease is not named"
grep -q thief "$work/lost/.lock" || fail "the file of the other run is gone"
exit $((failures > 0))
