#!/usr/bin/env bash
# Tests what generate, eval, import, export and a training do with ids: a Hugging Face folder whose tokenizer has more ids
# than the model has rows, data without a tokenizer, and the numbers that eval prints for programs.
#   test/process/eval_test.sh <mtrain>
set -u
mtrain=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$work/out" "$work/err"
  failures=$((failures + 1))
}

# expect <what> <exit code> <text>... -- <arguments of mtrain>...: requires that the output has all texts.
expect() {
  local what=$1 code=$2
  local -a texts=()
  shift 2
  while [[ $1 != -- ]]; do texts+=("$1") && shift; done
  shift
  timeout 100 "$mtrain" "$@" >"$work/out" 2>"$work/err" </dev/null
  local got=$?
  ((got == code)) || fail "$what: exit code $got instead of $code"
  local text
  for text in "${texts[@]}"; do
    grep -qF -- "$text" "$work/out" "$work/err" || fail "$what: nothing says: $text"
  done
}
# silent <what> <text>: requires that the last command did not print this.
silent() { grep -qF -- "$2" "$work/out" "$work/err" && fail "$1: something says: $2"; }

# A folder like that of Gemma 3 1B: the tokenizer has a token beyond the rows of the embedding.
hf=$(cd "$(dirname "$0")/../golden/hf" && pwd)
model=$work/llama
cp -r "$hf/llama" "$model" && cp "$hf"/expected/tokenizer/* "$model"
python3 - "$model" <<'PYTHON'
import json, sys
path = sys.argv[1] + "/tokenizer.json"
tokenizer = json.load(open(path))
added = dict(tokenizer["added_tokens"][-1], id=64, content="[PAD]")
tokenizer["added_tokens"].append(added)
json.dump(tokenizer, open(path, "w"))
assert json.load(open(sys.argv[1] + "/config.json"))["vocab_size"] == 64
PYTHON
for _ in {1..40}; do printf 'Any words will do, as long as they are of letters: there are many.\n\n'; done >"$work/words.txt"
sed '59s/words/[PAD] words/' "$work/words.txt" >"$work/padded.txt"
for name in words padded; do
  expect "a build of $name" 0 "tokens" -- data build --input "$work/$name.txt" --output "$work/$name" --split blank-line --tokenizer "$model"
done
expect "an evaluation" 0 "nats per token" "bits per byte" -- eval --model "$model" --data "$work/words"
expect "an evaluation of data with the token" 2 "padded.bin (token " "of document 29, in sample" 'id 64 ("[PAD]")' \
  "vocabulary has 64 ids" -- eval --model "$model" --data "$work/padded"
expect "a text" 0 "Any" -- generate --model "$model" --prompt "Any words" --tokens 20
expect "a prompt with the token" 2 'of the prompt has the id 64 ("[PAD]")' "vocabulary has 64 ids" -- \
  generate --model "$model" --prompt "Any [PAD] words"
expect "an import" 0 "written" -- import hf "$model" --output "$work/imported"
expect "a text of the import" 0 "Any" -- generate --model "$work/imported" --prompt "Any words" --tokens 5
base=(model.from="$model" tokenizer.path="$model" dataset.seq_length=32 train.steps=2 train.global_batch_size=2
  train.micro_batch_size=1 train.threads=1 mixed_precision=fp32)
echo "model: {}" >"$work/empty.yaml"
expect "a training" 0 "saved" -- --recipe "$work/empty.yaml" "${base[@]}" dataset.train="$work/words" \
  train.run_dir="$work/run" checkpoint.save_consolidated=final
silent "a training" "names no tokenizer"
expect "a training on the token" 2 "padded.bin" 'id 64 ("[PAD]")' -- --recipe "$work/empty.yaml" "${base[@]}" \
  dataset.train="$work/padded" train.run_dir="$work/padded_run" train.steps=60
expect "an export" 0 "written" -- export hf "$work/run" --output "$work/exported"
expect "an evaluation of the export" 0 "nats per token" -- eval --model "$work/exported" --data "$work/words"

# With --json, stdout has nothing but the numbers, with the same keys in every case.
for settings in "" "--stride 5"; do
  # shellcheck disable=SC2086  # two words
  expect "numbers" 0 -- eval --model "$model" --data "$work/words" --json $settings
  python3 - "$work/out" "$settings" <<'PYTHON' 2>"$work/err" || fail "numbers of $settings"
import json, math, sys
lines = open(sys.argv[1]).read().splitlines()
assert len(lines) == 1, lines
e = json.loads(lines[0])
assert list(e) == ["model", "data", "nats_per_token", "bits_per_byte", "perplexity", "tokens", "bytes", "samples",
                   "sample_tokens", "stride"], e
assert math.isclose(e["perplexity"], math.exp(e["nats_per_token"]))
assert math.isclose(e["bits_per_byte"], e["nats_per_token"] * e["tokens"] / e["bytes"] / math.log(2))
assert e["stride"] == (5 if sys.argv[2] else None) and e["sample_tokens"] == 64, e
PYTHON
done

# Data built with a tokenizer that the recipe does not name.
own=(model.vocab_size=512 model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 dataset.seq_length=32
  train.steps=2 train.global_batch_size=2 train.micro_batch_size=1 train.threads=1 mixed_precision=fp32)
python3 - "$model" "$work/wide" <<'PYTHON'
import json, shutil, sys
shutil.copytree(sys.argv[1], sys.argv[2])
path = sys.argv[2] + "/tokenizer.json"
tokenizer = json.load(open(path))
for i in range(65, 400):
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][-1], id=i, content=f"[{i}]"))
json.dump(tokenizer, open(path, "w"))
PYTHON
sed 's/words/[300] words/' "$work/words.txt" >"$work/wide.txt"
expect "a build of wide ids" 0 "tokens" -- data build --input "$work/wide.txt" --output "$work/ids" --split blank-line --tokenizer "$work/wide"
expect "a training without a tokenizer" 0 "names no tokenizer" "ids above 256" -- --recipe "$work/empty.yaml" \
  "${own[@]}" dataset.train="$work/ids" train.run_dir="$work/unnamed"
expect "a text of unknown tokens" 2 "names no tokenizer" "--tokenizer" -- generate --run "$work/unnamed" --prompt a
expect "an evaluation of unknown tokens" 2 "names no tokenizer" "--tokenizer" -- eval --model "$work/unnamed" --data "$work/ids"
expect "a text of tokens that are named" 0 "Any" -- generate --run "$work/unnamed" --prompt Any --tokens 3 --tokenizer "$work/wide"
expect "an evaluation of tokens that are named" 0 "bits per byte" -- \
  eval --model "$work/unnamed" --data "$work/ids" --tokenizer "$work/wide/tokenizer.json"
expect "an evaluation without texts" 0 "nats per token, perplexity" -- \
  eval --model "$work/unnamed" --data "$work/ids" --tokenizer NullTokenizer
expect "a tokenizer as a setting" 2 "has no effect" "--tokenizer" -- \
  eval --model "$work/unnamed" --data "$work/ids" --tokenizer byte tokenizer.path="$work/wide"
expect "a training by NullTokenizer" 0 "saved" -- --recipe "$work/empty.yaml" "${own[@]}" dataset.train="$work/ids" \
  train.run_dir="$work/null" tokenizer.type=NullTokenizer
silent "a training by NullTokenizer" "names no tokenizer"
expect "a text by NullTokenizer" 2 "tokenizer" "--tokenizer" -- generate --run "$work/null" --prompt a
expect "an evaluation by NullTokenizer" 0 "nats per token, perplexity" -- eval --model "$work/null" --data "$work/ids"
expect "a training by another tokenizer" 2 "the largest id of the tokenizer" -- --recipe "$work/empty.yaml" "${own[@]}" \
  dataset.train="$work/ids" train.run_dir="$work/named" tokenizer.path="$model"
expect "fewer steps than there are" 0 "nothing to do" "step 2" "train.steps is 1" -- --recipe "$work/empty.yaml" "${own[@]}" \
  dataset.train="$work/ids" train.run_dir="$work/unnamed" checkpoint.load=latest train.steps=1
# The length of a run in epochs.
for i in {1..60}; do printf 'verse %d has %d words, or more\n\n' "$i" $((i * i)); done >"$work/verses.txt"
expect "data of bytes" 0 "tokens" -- data build --input "$work/verses.txt" --output "$work/verses" --split blank-line --validation-fraction 0.2
cat >"$work/short.yaml" <<YAML
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: $work/verses_train, validation: $work/verses_valid, seq_length: 32}
train: {epochs: 1.5, global_batch_size: 8, micro_batch_size: 8, threads: 1, device: cpu, log_every: 1}
validation: {every_steps: 2, steps: 0}
optimizer: {lr: 1.0e-2}
lr_scheduler: {warmup_steps: 2}
checkpoint: {keep: 1, at_end: false}
mixed_precision: fp32
YAML
short=(--recipe "$work/short.yaml")
expect "a plan of epochs" 0 ": 1.5 epochs" -- "${short[@]}" --dry-run
steps=$(sed -n 's/^ *steps *\([0-9]*\): 1.5 epochs.*/\1/p' "$work/out")
((steps > 4)) || fail "a plan of epochs: no steps"
expect "a printed recipe of epochs" 0 "steps: $steps " "derived, by train.epochs=1.5" -- "${short[@]}" --print-recipe
expect "a plan of epochs without data" 0 "1.5 epochs (steps unknown without the data)" -- \
  "${short[@]}" --dry-run dataset.train="$work/nothing"
expect "a run of epochs" 0 "train.epochs=1.5 of " "1 to $steps (train.epochs=1.5)" "$steps steps make" -- \
  "${short[@]}" train.run_dir="$work/epochs"
expect "a run of as many steps" 0 "1 to $steps," -- "${short[@]}" train.run_dir="$work/steps" train.steps="$steps"
losses() { grep -o '^{"step":[0-9]*,.*"loss":[^,]*' "$work/$1/metrics.jsonl" | sed 's/,.*,/,/'; }
[[ -n $(losses epochs) && $(losses epochs) == "$(losses steps)" ]] || fail "epochs give other losses than their steps"
# A batch of another size, from any step on: a run of epochs ends with the same sample.
last_tokens() { grep '"loss"' "$work/$1/metrics.jsonl" | tail -n 1 | sed 's/.*"tokens":\([0-9]*\).*/\1/'; }
batch() { echo "train.global_batch_size=$1 train.micro_batch_size=$1 train.run_dir=$work/batches checkpoint.at_end=true"; }
# shellcheck disable=SC2046  # several words
expect "a run of small batches" 0 "saving and ending" -- "${short[@]}" $(batch 2) train.exit_interval=$((2 * steps))
# shellcheck disable=SC2046
expect "larger batches" 0 "train.global_batch_size 2 -> 8" \
  "step $((2 * steps + 1)) begins with sample $((4 * steps)), counted from 0; a step of the learning-rate schedule is now 8 samples" \
  "$((2 * steps + 1)) to " -- "${short[@]}" $(batch 8) checkpoint.load=latest train.exit_interval=$((2 * steps + 1))
# shellcheck disable=SC2046
expect "smaller batches" 0 "train.global_batch_size 8 -> 4" "begins with sample $((4 * steps + 8))" -- \
  "${short[@]}" $(batch 4) checkpoint.load=latest
((8 * 32 * (steps - 1) < $(last_tokens batches) && $(last_tokens batches) <= 8 * 32 * steps)) ||
  fail "after changes of the batch $(last_tokens batches) tokens are read, and without them $(last_tokens epochs)"
# shellcheck disable=SC2046
expect "a finished run of epochs" 0 "none left of" -- "${short[@]}" $(batch 4) checkpoint.load=latest
expect "steps beside epochs" 0 "2, which are less than train.epochs=1" -- "${short[@]}" train.steps=2 train.epochs=1 --dry-run
expect "epochs of data that are gone" 2 "there is no file $work/nothing" -- "${short[@]}" dataset.train="$work/nothing"

# The best checkpoint: a run that was killed in a save continues the ranking after its restart, while its loss
# grows.
best=("${short[@]}" train.run_dir="$work/best" checkpoint.keep_best=1)
link=$work/best/checkpoints/best
expect "a run that keeps the best" 0 "(best so far, kept as best)" "saved $work/best/checkpoints/step-00000004" \
  "the 1 newest and the 1 with the lowest" -- "${best[@]}" train.steps=4
[[ $(readlink "$link") == step-00000004 ]] || fail "the link names $(readlink "$link")"
more=(checkpoint.load=latest train.steps=8 optimizer.lr=2 lr_scheduler.style=constant checkpoint.at_end=true)
expect "a run that is killed in a save" 137 "continuing after step 4" -- "${best[@]}" "${more[@]}" \
  checkpoint.every_steps=6 debug.fault.at=save debug.fault.step=6 debug.fault.kill=true
[[ $(readlink "$link") == step-00000004 ]] || fail "a killed save has moved the link to $(readlink "$link")"
expect "a run that gets worse" 0 "continuing after step 4" "saved $work/best/checkpoints/step-00000008" -- "${best[@]}" "${more[@]}"
silent "a run that gets worse" "best so far"
[[ $(ls "$work/best/checkpoints") == $'best\nlatest\nstep-00000004\nstep-00000008' ]] ||
  fail "there are $(ls "$work/best/checkpoints")"
expect "an evaluation of the best" 0 "nats per token" -- eval --model "$link"
expect "a text of the best" 0 "verse" -- generate --model "$link/" --prompt verse --tokens 3
expect "an export of the best" 0 "written" -- export hf "$link" --output "$work/best_hf"
expect "a run that continues from the best" 0 "continuing after step 4 of $work/best/checkpoints/step-00000004" \
  "step-00000008 is kept as" -- "${best[@]}" train.steps=5 checkpoint.load="$link"
((failures == 0)) && echo "all well"
exit $((failures > 0))
