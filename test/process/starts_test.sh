#!/usr/bin/env bash
# Tests that ten starts of a recipe give the same weights, bit for bit: in fp32 and bf16, on one to three threads, alone
# and beside work that disturbs every measurement.
#   test/process/starts_test.sh <mtrain>
set -u
mtrain=$(realpath "$1")
work=$(mktemp -d)
busy=
trap '[[ -z $busy ]] || kill $busy 2>/dev/null; rm -rf "$work"' EXIT
seq 1 20000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || exit 1
# Matrices of several tiles and with edges; the sum over 640 is divided into two blocks.
cat >"$work/r.yaml" <<YAML
model: {num_layers: 2, hidden_size: 72, num_attention_heads: 4, ffn_hidden_size: 640}
tokenizer: byte
dataset: {train: $work/set, seq_length: 64}
train: {steps: 4, global_batch_size: 4, micro_batch_size: 2}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
YAML
failures=0
for precision in fp32 bf16_mixed; do
  for start in 1 2 3 4 5 6 7 8 9 10; do
    if ((start == 6)); then
      for _ in $(seq "$(nproc)"); do
        while :; do :; done &
        busy="$busy $!"
      done
    fi
    "$mtrain" --recipe "$work/r.yaml" mixed_precision=$precision train.threads=$((start % 3 + 1)) \
      "train.run_dir=$work/$precision-$start" >"$work/out" 2>&1 || {
      cat "$work/out"
      failures=$((failures + 1))
    }
  done
  [[ -z $busy ]] || kill $busy 2>/dev/null
  wait 2>/dev/null
  busy=
  hashes=$(sha256sum "$work/$precision"-*/checkpoints/*/weights-00000.safetensors | awk '{ print $1 }' | sort | uniq -c)
  echo "$precision: $hashes"
  [[ $(awk '{ print $1 }' <<<"$hashes") == 10 ]] || {
    echo "FAILED: ten starts in $precision did not leave the same weights"
    failures=$((failures + 1))
  }
done
exit $((failures > 0))
