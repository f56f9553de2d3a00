#!/usr/bin/env bash
# Tests runs that end while their next step has begun ahead: at Ctrl-C, at exit_duration_in_mins and at the last step. A
# run that continues them has the weights of a run whose steps never begin ahead, bit for bit.
#   test/process/early_end_test.sh <mtrain> <mtrain-launch>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2")
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill -KILL $pid 2>/dev/null; rm -rf "$work"' EXIT
shown_lines=15
source "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
seq 1 20000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || exit 1
# Of several ranks, only steps that are not timed begin ahead: the first ten, and then every 1000th, are timed.
cat >"$work/r.yaml" <<YAML
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, ffn_hidden_size: 64, hidden_dropout: 0.1}
tokenizer: byte
dataset: {train: $work/set, seq_length: 32}
train: {global_batch_size: 4, micro_batch_size: 1, threads: 1, log_every: 1000}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
YAML
# train <ranks> <setting>...: starts a training; a job in the background ignores SIGINT by default
train() {
  local ranks=$1
  local -a program=("$mtrain")
  shift
  ((ranks == 1)) || program=("$launch" "--nproc_per_node=$ranks")
  env --default-signal=INT "${program[@]}" --recipe "$work/r.yaml" "$@" >"$work/out" 2>&1 </dev/null &
  pid=$!
}
ended() {
  wait $pid
  code=$?
  pid=
}
steps_of() { cat "$1/metrics.jsonl" 2>/dev/null | grep -c '"step_ms"'; }
weights_of() { (cd "$1/checkpoints/$(printf 'step-%08d' "$2")" && sha256sum weights-*.safetensors) 2>/dev/null; }
# same_weights <what> <run> <ranks> <step>: `run` has the weights of a run without steps ahead
same_weights() {
  train "$3" "train.run_dir=$work/plain" "train.steps=$4" train.time_every=1 debug.trace="$work/trace.json"
  ended
  ((code == 0)) || fail "$1: a run without steps ahead ends with $code"
  [[ -n $(weights_of "$2" "$4") && $(weights_of "$2" "$4") == "$(weights_of "$work/plain" "$4")" ]] || fail "$1: other weights"
  rm -rf "$work/plain"
}

for ranks in 1 2; do
  run=$work/run$ranks
  train $ranks "train.run_dir=$run" train.steps=1000000
  for ((i = 0; i < 1200 && $(steps_of "$run") < 25; ++i)); do sleep 0.05; done
  kill -INT $pid
  ended
  last=$(tail -n 1 "$run/metrics.jsonl" | grep -oE '"step": ?[0-9]+' | tr -cd 0-9)
  echo "$ranks ranks: Ctrl-C ended the run after step $last"
  [[ -n $(weights_of "$run" "$last") ]] || fail "Ctrl-C: no checkpoint of step $last (exit code $code)"
  # The step that had begun is computed again, and the last step is reached while none is ahead.
  train $ranks "train.run_dir=$run" "train.steps=$((last + 3))" checkpoint.load=latest
  ended
  ((code == 0)) || fail "the run that continues ends with $code"
  same_weights "Ctrl-C, $ranks ranks" "$run" $ranks $((last + 3))
done

run=$work/late
train 1 "train.run_dir=$run" train.steps=1000000 train.exit_duration_in_mins=0.03
ended
last=$(tail -n 1 "$run/metrics.jsonl" | grep -oE '"step": ?[0-9]+' | tr -cd 0-9)
echo "exit_duration_in_mins ended the run after step $last"
((code == 0 && last > 2)) || fail "exit_duration_in_mins: exit code $code after step $last"
train 1 "train.run_dir=$run" "train.steps=$((last + 3))" checkpoint.load=latest
ended
((code == 0)) || fail "the run that continues ends with $code"
same_weights "exit_duration_in_mins" "$run" 1 $((last + 3))
((failures == 0)) && echo "all well"
exit $((failures > 0))
