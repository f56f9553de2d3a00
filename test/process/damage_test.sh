#!/usr/bin/env bash
# Tests that the program finds a flipped bit anywhere in a checkpoint, ends with exit code 1, names the file, also in
# log.txt, and changes nothing else: 6 bits, or as many as MTRAIN_DAMAGED_BITS says.
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
go_on() { "$mtrain" --recipe "$work/r.yaml" train.steps=3 checkpoint.load=latest >"$work/out" 2>&1; }
hashes() { (cd "$work/run" && find . -type f ! -name ".*" ! -name log.txt | sort | xargs sha256sum); }

RANDOM=11
mapfile -t files < <(find "$step" -type f ! -name recipe.yaml | sort)
for ((i = 0; i < ${MTRAIN_DAMAGED_BITS:-6}; ++i)); do
  file=${files[i % ${#files[@]}]}
  byte=$(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$file"))) bit=$((RANDOM % 8))
  cp "$file" "$work/sound"
  old=$(od -An -tu1 -j "$byte" -N 1 "$file")
  printf "\\x$(printf %02x $((old ^ (1 << bit))))" | dd of="$file" bs=1 seek="$byte" conv=notrunc status=none
  before=$(hashes)
  go_on
  code=$?
  what="bit $bit of byte $byte of ${file##*/}"
  [[ $code == 1 ]] || fail "$what: exit code $code"
  grep -qF "${file##*/}" "$work/out" || fail "$what: the file is not named"
  tail -n 3 "$work/run/log.txt" | grep -qF "${file##*/}" || fail "$what: log.txt does not name the file"
  [[ $(hashes) == "$before" ]] || fail "$what: the run folder has changed"
  cp "$work/sound" "$file"
done

echo "# a comment" >>"$step/recipe.yaml"
sed -i 's/hidden_size: 16/hidden_size: 32/' "$step/recipe.yaml"
go_on || fail "a changed copy of the recipe"
[[ $(grep -c "recipe.yaml differs" "$work/out") == 1 ]] || fail "a changed copy of the recipe is one warning"
grep -q "continuing after step 2" "$work/out" || fail "the run that goes on"
((failures == 0)) || exit 1
echo "all damage was found"
