#!/usr/bin/env bash
# Tests that the program finds a flipped bit anywhere in a checkpoint: 6 bits, or as many as MTRAIN_DAMAGED_BITS says.
# With the checkpoint's path it ends with exit code 1, names the file, and changes nothing. With `latest` it sets the
# checkpoint aside, continues from the one before it with the same result, and names the file, also in log.txt.
#   test/process/damage_test.sh <mtrain>
set -u
mtrain=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $1"
  cat "$work/out"
  failures=$((failures + 1))
}
seq 1 4000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || exit 1
cat >"$work/r.yaml" <<YAML
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, ffn_hidden_size: 16}
tokenizer: byte
dataset: {train: $work/set, seq_length: 16}
train: {steps: 2, global_batch_size: 2, micro_batch_size: 2, run_dir: $work/run}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
checkpoint: {every_steps: 1, keep: 0}
YAML
"$mtrain" --recipe "$work/r.yaml" >"$work/out" 2>&1 || fail "the run"
step=$work/run/checkpoints/step-00000002
go_on() { "$mtrain" --recipe "$work/r.yaml" train.steps=3 checkpoint.load="$1" >"$work/out" 2>&1; }
hashes() { (cd "$work/run" && find . -type f ! -name ".*" ! -name log.txt | sort | xargs sha256sum); }
weights() { sha256sum <"$work/run/checkpoints/step-00000003/weights-00000.safetensors"; }
cp -r "$work/run" "$work/sound"
go_on latest || fail "a sound run"
expected=$(weights)
rm -rf "$work/run" && cp -r "$work/sound" "$work/run"

RANDOM=11
mapfile -t files < <(find "$step" -type f ! -name recipe.yaml | sort)
for ((i = 0; i < ${MTRAIN_DAMAGED_BITS:-6}; ++i)); do
  file=${files[i % ${#files[@]}]}
  byte=$(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$file"))) bit=$((RANDOM % 8))
  old=$(od -An -tu1 -j "$byte" -N 1 "$file")
  printf "\\x$(printf %02x $((old ^ (1 << bit))))" | dd of="$file" bs=1 seek="$byte" conv=notrunc status=none
  before=$(hashes)
  go_on "$step"
  code=$?
  what="bit $bit of byte $byte of ${file##*/}"
  [[ $code == 1 ]] || fail "$what: exit code $code"
  grep -qF "${file##*/}" "$work/out" || fail "$what: the file is not named"
  [[ $(hashes) == "$before" ]] || fail "$what: the run folder has changed"
  "$mtrain" checkpoint verify "$step" >"$work/out" 2>&1
  code=$?
  [[ $code == 1 ]] || fail "$what: exit code $code of mtrain checkpoint verify"
  grep -qF "${file##*/}" "$work/out" || fail "$what: mtrain checkpoint verify does not name the file"
  go_on latest || fail "$what: no fallback"
  grep -F "${file##*/}" "$work/run/log.txt" | grep -qF "step-00000002.damaged" || fail "$what: log.txt does not name the file"
  [[ -e $step.damaged ]] || fail "$what: the damaged checkpoint is not kept"
  [[ $(weights) == "$expected" ]] || fail "$what: other weights"
  rm -rf "$work/run" && cp -r "$work/sound" "$work/run"
done

echo "# a comment" >>"$step/recipe.yaml"
sed -i 's/hidden_size: 16/hidden_size: 32/' "$step/recipe.yaml"
go_on latest || fail "a changed copy of the recipe"
[[ $(grep -c "recipe.yaml differs" "$work/out") == 1 ]] || fail "a changed copy of the recipe is one warning"
grep -q "continuing after step 2" "$work/out" || fail "the run that goes on"
((failures == 0)) || exit 1
echo "all damage was found"
