#!/usr/bin/env bash
# Tests mtrain checkpoint: list, show, verify, diff, reshard and prune, of a small run, at widths of 60 and 200 columns.
#   test/process/checkpoint_command_test.sh <mtrain>
set -u
mtrain=$(realpath "$1")
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || { kill -KILL $pid; wait $pid; } 2>/dev/null; rm -rf "$work"' EXIT
program=("$mtrain" checkpoint) shown_lines=15
source "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
lacks() { ! grep -qF -- "$2" "$work/out" || fail "$1: it says: $2"; }
names() { (cd "$run/checkpoints" && find . -mindepth 1 -maxdepth 1 ! -name '.*' -printf '%f ' | tr ' ' '\n' | sort | tr '\n' ' '); }

seq 1 4000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" --validation-fraction 0.2 --validation-split tail >/dev/null || exit 1
cat >"$work/r.yaml" <<YAML
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, ffn_hidden_size: 16}
tokenizer: byte
dataset: {train: $work/set_train, validation: $work/set_valid, seq_length: 16}
train: {steps: 12, global_batch_size: 2, micro_batch_size: 2, threads: 1}
validation: {every_steps: 4, steps: 1}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
checkpoint: {every_steps: 2, keep: 0, keep_best: 1}
YAML
run=$work/run
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$run" >"$work/out" 2>&1 || fail "the run"
step=$run/checkpoints/step-00000006

expect "list" 0 "checkpoint " "validation loss" "step-00000002" "step-00000012" complete latest best KiB -- list "$run"
[[ $(grep -c complete "$work/out") == 6 ]] || fail "list: not 6 checkpoints"
cp "$work/out" "$work/list"
expect "list of the folder" 0 -- list "$run/checkpoints"
cmp -s "$work/out" "$work/list" || fail "list: a folder of checkpoints has another list than its run"
expect "list of one" 0 step-00000012 -- list "$step"
expect "list of nothing" 2 "holds no checkpoints" hint -- list "$work"
expect "show of samples" 0 "samples" " 12" -- show "$step"
expect "show" 0 "1 rank: fsdp2, tp 1 x pp 1 x cp 1" " lines, xxh3-128 " "layers.*.mlp.down.weight" \
  "F32" "16 x 16" "optimizer: " -- show "$step"
expect "show of the newest" 0 "validation loss" "over 2 samples" -- show "$run"
if command -v script >/dev/null; then  # on a terminal of 60 columns
  for command in "list '$run'" "show '$run'" "diff '$step' '$run'"; do
    script -qec "stty cols 60; '$mtrain' checkpoint $command" /dev/null </dev/null >"$work/out" 2>&1
    tr -d '\r' <"$work/out" | grep -v "$work" | awk 'length($0) > 60' >"$work/wide"
    [[ ! -s $work/wide ]] || fail "$command: wider than 60 columns: $(head -n 1 "$work/wide")"
  done
fi
expect "verify" 0 "step-00000006: sound; " -- verify "$step"
expect "verify of all" 0 "step-00000002: sound; " "step-00000012: sound; " -- verify "$run"
expect "a checkpoint and itself" 0 "tensors are equal" -- diff "$step" "$step"
expect "two checkpoints" 1 "largest difference" "layers.1.mlp.down.weight" "tensors differ" -- diff "$step" "$run"
expect "all of two checkpoints" 1 "tensors differ" -- diff "$step" "$run" --all
lacks "all of two checkpoints" "--all shows"

expect "reshard" 0 "written: $work/four/step-00000006 (" "in 8 files" -- reshard "$step" --output "$work/four" --ranks 4
[[ $(ls "$work/four/step-00000006"/weights-*.safetensors | wc -l) == 4 ]] || fail "reshard: not 4 files of weights"
expect "reshard and its source" 0 "tensors are equal" -- diff "$step" "$work/four"
expect "verify of reshard" 0 "step-00000006: sound; " -- verify "$work/four"
expect "reshard of the newest" 0 "written: $work/one/step-00000012 (" "in 2 files" -- reshard "$run" --output "$work/one" --files 1
expect "reshard over a folder" 2 "$work/four exists already" hint -- reshard "$step" --output "$work/four" --ranks 2
expect "reshard without a number" 2 "--ranks" -- reshard "$step" --output "$work/five"
expect "reshard to no files" 2 "--ranks" -- reshard "$step" --output "$work/five" --ranks 0
expect "reshard of nothing" 2 "holds no complete checkpoint" -- reshard "$work" --output "$work/five" --ranks 2
[[ ! -e $work/five ]] || fail "a reshard that is refused leaves a folder"
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/from_four" "checkpoint.load=$work/four" train.steps=8 >"$work/out" 2>&1 ||
  fail "a run from a reshard"
losses() { grep -o '^{"step":[78],.*"loss":[^,]*' "$1/metrics.jsonl" | sed 's/,.*,/,/'; }
[[ -n $(losses "$run") && $(losses "$run") == "$(losses "$work/from_four")" ]] || fail "a run from a reshard has other losses"

size=$(stat -c %s "$step/optimizer-00000.safetensors")
cp "$step/optimizer-00000.safetensors" "$work/sound"
printf '\xff\xff' | dd of="$step/optimizer-00000.safetensors" bs=1 seek=$((size - 3)) conv=notrunc status=none
expect "verify of a bad block" 1 "optimizer-00000.safetensors is damaged: bytes 0 to" "(the header, tensor" "1 of 1 checkpoint is damaged: 1 fault" -- verify "$step"
expect "verify of a run with a bad block" 1 "1 of 6 checkpoints are damaged" "step-00000008: sound" -- verify "$run"
expect "diff of a bad block" 1 "is damaged" -- diff "$step" "$run"
truncate -s 10 "$step/weights-00000.safetensors"
expect "list of a damaged one" 0 damaged "weights-00000.safetensors is damaged: it has 10 bytes" -- list "$run"

# Copies stay if no checkpoint has their step. A part that another host wrote is its replica.
mkdir "$work/local"
"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/copied" train.steps=3 "checkpoint={every_steps: 0, at_end: false, keep_best: 0, local: $work/local}" \
  >"$work/out" 2>&1 || fail "a run with local copies"
copies=$(echo "$work/local/$(uname -n)"/copied-*)
expect "list of local copies" 0 "replica of" "0 of 1" complete "step 2: all 1 parts are here" -- list "$work/local"
cp "$work/out" "$work/list"
expect "list of a host's copies" 0 -- list "$work/local/$(uname -n)"
cmp -s "$work/out" "$work/list" || fail "list: the copies of a host differ"
expect "list of a run's copies" 0 -- list "$copies/"
cmp -s "$work/out" "$work/list" || fail "list: the copies of a run differ"
mv "$work/local/$(uname -n)" "$work/local/other-host"
expect "list of a replica" 0 "other-host" "$(uname -n)" -- list "$work/local"
truncate -s 10 "$work/local"/other-host/copied-*/step-00000002.*/weights-00000.safetensors
expect "list of a damaged copy" 0 damaged "weights-00000.safetensors has 10 bytes" "step 2: 0 of 1 parts are here" -- list "$work/local"

expect "prune without a rule" 2 "no rule says what to keep" hint -- prune "$run"
expect "prune to 0" 2 "--keep" -- prune "$run" --keep 0
before=$(names)
expect "a dry run of prune" 0 "would delete" "step-00000002" "With --yes they are deleted" -- prune "$run" --keep 1 --keep-every 4
lacks "a dry run of prune" "would delete $step"
lacks "a dry run of prune" "step-00000008"
[[ $(names) == "$before" ]] || fail "a dry run of prune has deleted something"
expect "prune" 0 "deleting" "deleted" -- prune "$run" --keep 1 --keep-every 4 --yes
[[ $(names) == "best latest step-00000004 step-00000006 step-00000008 step-00000012 " ]] || fail "prune leaves: $(names)"
expect "prune again" 0 "0 of 3 checkpoints" -- prune "$run" --keep 1 --keep-every 4 --yes

"$mtrain" --recipe "$work/r.yaml" "train.run_dir=$run" checkpoint.load=latest train.steps=1000000 validation.every_steps=500000 >"$work/log" 2>&1 &
pid=$!
for ((i = 0; i < 400; i++)); do [[ -e $run/checkpoints/step-00000014 ]] && break || sleep 0.05; done
expect "prune of a run that trains" 2 "a run is saving checkpoints in" hint -- prune "$run" --keep 1 --yes
expect "list of a run that trains" 0 latest -- list "$run"
((failures == 0)) || exit 1
echo "checkpoints are listed, checked, compared, rewritten and deleted"
