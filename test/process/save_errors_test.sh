#!/usr/bin/env bash
# Tests what runs do when their disks fail: saves that fail, checkpoints that cannot be read, hosts that do not see the
# folder of checkpoints.
#   test/process/save_errors_test.sh <mtrain> <mtrain-launch> <library of files that fail>
set -u
mtrain=$(realpath "$1") launch=$(realpath "$2") library=$(realpath "$3")
work=$(mktemp -d)
mounted=
trap '[[ -z $mounted ]] || umount "$mounted"; rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $1"
  tail -n 15 "$work/out" | sed 's/^/    /'
  failures=$((failures + 1))
}
export MTRAIN_FAILING_FILES=$work/faults
seq 1 4000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null || exit 1
cat >"$work/r.yaml" <<YAML
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2, ffn_hidden_size: 32}
tokenizer: byte
dataset: {train: $work/set, seq_length: 16}
train: {steps: 6, global_batch_size: 4, micro_batch_size: 2, threads: 1, log_every: 1, device: cpu}
optimizer: {lr: 1e-3}
lr_scheduler: {style: constant}
mixed_precision: fp32
checkpoint: {every_steps: 1, keep: 0}
YAML
# train <ranks> <run> <setting>...: sets $code
train() {
  local ranks=$1 run=$2
  shift 2
  if ((ranks == 1)); then
    LD_PRELOAD=$library "$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/$run" "$@" >"$work/out" 2>&1
  else
    LD_PRELOAD=$library "$launch" --nproc_per_node="$ranks" --recipe "$work/r.yaml" "train.run_dir=$work/$run" \
      distributed.strategy=fsdp2 "$@" >"$work/out" 2>&1
  fi
  code=$?
}
expect_code() { ((code == $2)) || fail "$1: exit code $code instead of $2"; }
expect_text() { grep -qF -- "$2" "$work/out" || fail "$1: nothing says: $2"; }
expect_no_leftovers() {
  local left
  left=$(find "$work/$2" \( -name '*.tmp*' -o -name '.probe*' -o -name '.clock*' -o -name '.lock*' \) 2>/dev/null)
  [[ -z $left ]] || fail "$1: leftovers: $left"
}
expect_steps() {
  local steps
  steps=$(find "$work/$2/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | sed 's/step-0*//' | tr '\n' ' ')
  [[ $steps == "$3" ]] || fail "$1: the checkpoints are '$steps' instead of '$3'"
}
ENOSPC=28 EROFS=30 EIO=5 EDQUOT=122 EACCES=13 ENOENT=2

rm -f "$work/faults"
train 1 whole
expect_code "a run without faults" 0
losses() {
  python3 - "$work/$1/metrics.jsonl" <<'PY'
import json, sys
print([r["loss"] for r in map(json.loads, open(sys.argv[1])) if "loss" in r])
PY
}
expected=$(losses whole)

for ranks in 1 2; do
  # --- one save fails: the run continues, and the next save succeeds ---
  for fault in "w $ENOSPC step-00000003.tmp" "m $EROFS step-00000003.tmp" "w $EIO step-00000003.tmp" "c $EDQUOT step-00000003.tmp" \
    "n $EIO step-00000003.tmp"; do
    what="$ranks ranks, $fault"
    rm -rf "$work/run"
    echo "$fault" >"$work/faults"
    train "$ranks" run
    expect_code "$what" 0
    expect_text "$what" "step 3 is not saved: "
    [[ $(grep -c "is not saved" "$work/out") == 1 ]] || fail "$what: not one line"
    expect_text "$what" "training continues"
    expect_steps "$what" run "1 2 4 5 6 "
    expect_no_leftovers "$what" run
    [[ $(losses run) == "$expected" || $ranks != 1 ]] || fail "$what: other losses"
    grep -q '"checkpoint.failed_saves":1' "$work/run/metrics.jsonl" || fail "$what: no metric"
    ! grep -q '"checkpoint.failed_saves":2' "$work/run/metrics.jsonl" || fail "$what: a second failure"
  done
  # --- one rank alone cannot write: all ranks continue, and the rank and its file are named ---
  if ((ranks == 2)); then
    rm -rf "$work/run"
    echo "w $ENOSPC step-00000003.tmp 1" >"$work/faults"
    train "$ranks" run
    expect_code "a full disk on rank 1" 0
    expect_text "a full disk on rank 1" "step 3 is not saved: rank 1: "
    expect_text "a full disk on rank 1" "weights-00001.safetensors"
    expect_steps "a full disk on rank 1" run "1 2 4 5 6 "
    expect_no_leftovers "a full disk on rank 1" run
  fi
  # --- three in a row end it, and so does the first one with on_error: stop ---
  rm -rf "$work/run"
  printf 'w %d step-00000002.tmp\nw %d step-00000003.tmp\nw %d step-00000004.tmp\n' $ENOSPC $ENOSPC $ENOSPC >"$work/faults"
  train "$ranks" run
  expect_code "$ranks ranks, three failures" 1
  expect_text "$ranks ranks, three failures" "step 4 is not saved: "
  expect_text "$ranks ranks, three failures" "the third failure in a row"
  expect_text "$ranks ranks, three failures" "No space left on device"
  expect_text "$ranks ranks, three failures" "the newest checkpoint is $work/run/checkpoints/step-00000001"
  expect_steps "$ranks ranks, three failures" run "1 "
  expect_no_leftovers "$ranks ranks, three failures" run
  rm -rf "$work/run"
  train "$ranks" run checkpoint.on_error=stop
  expect_code "$ranks ranks, stop" 1
  expect_text "$ranks ranks, stop" "step 2 is not saved: "
  # --- two failures in a row, then none ---
  rm -rf "$work/run"
  printf 'w %d step-00000002.tmp\nw %d step-00000003.tmp\nw %d step-00000005.tmp\n' $ENOSPC $ENOSPC $ENOSPC >"$work/faults"
  train "$ranks" run
  expect_code "$ranks ranks, two failures and one" 0
  expect_text "$ranks ranks, two failures and one" "one more failure in a row ends the run"
  expect_steps "$ranks ranks, two failures and one" run "1 4 6 "
  # --- a failure at the end ---
  for settings in checkpoint.at_end=true checkpoint.at_end=false; do
    rm -rf "$work/run"
    echo "w $EIO step-00000006.tmp" >"$work/faults"
    train "$ranks" run $settings
    expect_code "$ranks ranks, the end, $settings" 1
    expect_text "$ranks ranks, the end, $settings" "step 6 is not saved: "
    expect_text "$ranks ranks, the end, $settings" "Input/output error"
    expect_steps "$ranks ranks, the end, $settings" run "1 2 3 4 5 "
  done
  # --- a checkpoint that cannot be read is not a damaged one ---
  rm -f "$work/faults"
  train "$ranks" whole2 train.steps=3
  cp -r "$work/whole2" "$work/copy2"
  for fault in "r $EIO step-00000003/optimizer-00000.safetensors" "o $EACCES step-00000003/weights-00000.safetensors" \
    "o $EACCES step-00000003/state.json" "r $EIO step-00000003/index.json"; do
    echo "$fault" >"$work/faults"
    train "$ranks" whole2 checkpoint.load=latest
    expect_code "$ranks ranks, $fault" 1
    expect_text "$ranks ranks, $fault" "step-00000003/"
    expect_steps "$ranks ranks, $fault" whole2 "1 2 3 "
  done
  rm -f "$work/faults"
  # --- a damaged one is set aside on all ranks ---
  printf 'x' | dd of="$work/whole2/checkpoints/step-00000003/optimizer-00000.safetensors" bs=1 conv=notrunc status=none \
    seek=$(($(stat -c %s "$work/whole2/checkpoints/step-00000003/optimizer-00000.safetensors") - 9))
  train "$ranks" whole2 checkpoint.load=latest
  expect_code "$ranks ranks, damage" 0
  expect_text "$ranks ranks, damage" "step-00000003.damaged"
  expect_text "$ranks ranks, damage" "continuing after step 2"
  [[ $(losses whole2) == "$expected" || $ranks != 1 ]] || fail "$ranks ranks, damage: other losses"
  # --- damage that one rank alone sees: nothing is renamed ---
  if ((ranks == 2)); then
    rm -rf "$work/whole2" && mv "$work/copy2" "$work/whole2"
    printf 'x' | dd of="$work/whole2/checkpoints/step-00000003/optimizer-00000.safetensors" bs=1 conv=notrunc status=none \
      seek=$(($(stat -c %s "$work/whole2/checkpoints/step-00000003/optimizer-00000.safetensors") - 9))
    echo "r $EIO step-00000003/optimizer-00000.safetensors 0" >"$work/faults"
    train "$ranks" whole2 checkpoint.load=latest
    expect_code "damage, and an error on rank 0" 1
    expect_steps "damage, and an error on rank 0" whole2 "1 2 3 "
    rm -f "$work/faults"
  fi
  rm -rf "$work/whole2" "$work/copy2"
done

# --- a second signal while a save is being written in the background: the checkpoint before it stays ---
for ranks in 1 2; do
  what="$ranks ranks, a second signal"
  rm -rf "$work/run"
  echo "w -1 step-00000003.tmp" >"$work/faults"
  if ((ranks == 1)); then program=("$mtrain"); else program=("$launch" --nproc_per_node=2); fi
  LD_PRELOAD=$library "${program[@]}" --recipe "$work/r.yaml" "train.run_dir=$work/run" distributed.strategy=fsdp2 \
    checkpoint.async=true train.steps=100000 >"$work/out" 2>&1 &
  pid=$!
  for ((i = 0; i < 600; i++)); do compgen -G "$work/run/checkpoints/step-00000003.tmp-*" >/dev/null && break || sleep 0.05; done
  sleep 0.3  # training continues until its next save
  kill -TERM $pid
  sleep 1.5
  kill -0 $pid 2>/dev/null || fail "$what: the first signal does not wait for the write"
  kill -TERM $pid
  for ((i = 0; i < 100; i++)); do kill -0 $pid 2>/dev/null && sleep 0.05 || break; done
  kill -0 $pid 2>/dev/null && fail "$what: it waits for the write"
  rm -f "$work/faults"
  wait $pid
  code=$?
  expect_code "$what" 143
  expect_text "$what" "the last $( ((ranks == 1)) || echo "complete ")checkpoint is $work/run/checkpoints/step-00000002"
  expect_steps "$what" run "1 2 $(cd "$work/run/checkpoints" && compgen -G 'step-00000003.tmp-*' | sed 's/step-0*//') "
  [[ $(cat "$work/run/checkpoints/latest") == step-00000002 ]] || fail "$what: latest is not step 2"
  "$mtrain" checkpoint verify "$work/run/checkpoints/step-00000002" >"$work/out" 2>&1 || fail "$what: step 2 is damaged"
  train "$ranks" run checkpoint.load=latest
  expect_code "$what, the next start" 0
  expect_text "$what, the next start" "continuing after step 2"
  expect_steps "$what, the next start" run "1 2 3 4 5 6 "
  expect_no_leftovers "$what, the next start" run
  [[ $(losses run | tr -d ' ' | tr ',' '\n' | tail -n 4) == $(echo "$expected" | tr -d ' ' | tr ',' '\n' | tail -n 4) || $ranks != 1 ]] ||
    fail "$what: other losses"
done

# --- a Hugging Face form that can neither be written nor removed is made again with the next save ---
for ranks in 1 2; do
  what="$ranks ranks, a form that stays"
  rm -rf "$work/run"
  consolidated=$work/run/checkpoints/step-00000003/consolidated
  printf 'w %d /consolidated.tmp-\nd %d model.safetensors\n' $EIO $EIO >"$work/faults"
  LD_PRELOAD=$library "$launch" --nproc_per_node="$ranks" --recipe "$work/r.yaml" "train.run_dir=$work/run" train.steps=3 \
    checkpoint.every_steps=0 checkpoint.save_consolidated=every >"$work/out" 2>&1
  code=$?
  expect_code "$what" 0
  expect_text "$what" "for transformers; the checkpoint itself is complete"
  [[ ! -e $consolidated ]] || fail "$what: it has the name of a complete one"
  rm -f "$work/faults"
  "$mtrain" checkpoint verify "${consolidated%/*}" >"$work/out" 2>&1 || fail "$what: the checkpoint is damaged"
  train "$ranks" run checkpoint.load=latest train.steps=3 checkpoint.every_steps=0 checkpoint.save_consolidated=every
  expect_code "$what, the next start" 0
  "$mtrain" export hf "${consolidated%/*}" --output "$work/export" >/dev/null || fail "$what: no export"
  diff -r "$consolidated" "$work/export" >/dev/null || fail "$what: it is not an export"
  rm -rf "$work/export"
  expect_no_leftovers "$what, the next start" run
done

# --- the folder of checkpoints disappears under a run: it is made again ---
rm -rf "$work/run"
LD_PRELOAD=$library "$mtrain" --recipe "$work/r.yaml" "train.run_dir=$work/run" train.steps=100000 checkpoint.every_steps=5 \
  checkpoint.keep=2 >"$work/out" 2>&1 &
pid=$!
for ((i = 0; i < 600; i++)); do [[ -e $work/run/checkpoints/latest ]] && break || sleep 0.05; done
mv "$work/run/checkpoints" "$work/gone"  # while a save may be writing
for ((i = 0; i < 600; i++)); do [[ -e $work/run/checkpoints/latest ]] && break || sleep 0.05; done
kill -TERM $pid
wait $pid
code=$?
expect_code "a deleted folder of checkpoints" 0
[[ -e $work/run/checkpoints/latest ]] || fail "the folder of checkpoints is not made again"

# --- a disk of a few MB: space is asked first, and both numbers are named ---
mkdir "$work/disk"
if mount -t tmpfs -o size=2m tmpfs "$work/disk" 2>/dev/null; then
  mounted=$work/disk
  train 2 small "checkpoint.dir=$work/disk/checkpoints" model.hidden_size=64 model.ffn_hidden_size=128 checkpoint.keep=1
  expect_code "a small disk" 1
  expect_text "a small disk" "of free space, and a checkpoint needs"
  find "$work/disk" -name '*.tmp*' | grep -q . && fail "a small disk: leftovers"
  mount -o remount,size=64m "$work/disk"
  train 2 small "checkpoint.dir=$work/disk/checkpoints" model.hidden_size=64 model.ffn_hidden_size=128 checkpoint.load=latest
  expect_code "a larger disk" 0
  # --- space for a checkpoint, but not for its Hugging Face form as well ---
  rm -rf "$work/disk/checkpoints" "$work/small"
  mount -o remount,size=4m "$work/disk"
  train 2 small "checkpoint.dir=$work/disk/checkpoints" model.hidden_size=128 model.ffn_hidden_size=256 checkpoint.keep=1 \
    checkpoint.every_steps=0 checkpoint.save_consolidated=final
  expect_code "a disk without space for a form" 0
  expect_text "a disk without space for a form" "the checkpoint itself is complete: rank 0: "
  expect_text "a disk without space for a form" "of free space, and a checkpoint needs"
  [[ -e $work/disk/checkpoints/step-00000006/index.json ]] || fail "a disk without space for a form: no checkpoint"
  find "$work/disk" -name 'consolidated*' | grep -q . && fail "a disk without space for a form: leftovers"
  rm -rf "$work/disk/checkpoints"
  # --- full for a while ---
  rm -rf "$work/disk/checkpoints"
  mount -o remount,size=4m "$work/disk"
  (
    for ((i = 0; i < 2000; i++)); do [[ -e $work/disk/again/step-00000100 ]] && break || sleep 0.01; done
    head -c 4M /dev/zero >"$work/disk/filler" 2>/dev/null
    for ((i = 0; i < 2000; i++)); do grep -q "is not saved" "$work/out" && break || sleep 0.01; done
    rm "$work/disk/filler"
  ) &
  train 1 again "checkpoint.dir=$work/disk/again" checkpoint.keep=1 checkpoint.every_steps=100 train.steps=1500
  wait $!
  expect_code "a disk that is full for a while" 0
  expect_text "a disk that is full for a while" "of free space, and a checkpoint needs"
  [[ -e $work/disk/again/step-00001500 ]] || fail "the last step is not saved"
else
  echo "cannot mount a tmpfs here: a full and a read-only disk are tested by errors of system calls"
fi

# --- two hosts: one does not see the folder, and is named; one that sees it late, or a save of it, is waited for ---
hosts() {
  local pids=() node
  for node in 0 1; do
    LD_PRELOAD=$library "$launch" --nnodes=2 --nproc_per_node=1 --node_rank="$node" --master_addr=127.0.0.1 --local_addr=127.0.0.1 \
      --master_port="$1" --recipe "$work/r.yaml" "train.run_dir=$work/hosts" distributed.strategy=ddp comm.timeout_s="$2" \
      >"$work/out.$node" 2>&1 &
    pids+=($!)
  done
  wait "${pids[0]}"
  code=$?
  wait "${pids[1]}"
  cat "$work"/out.[01] >"$work/out"
}
port=$((20000 + RANDOM % 12000))  # below the ports that the kernel hands out
echo "o $ENOENT .probe- 1" >"$work/faults"
hosts "$port" 4
expect_code "a blind host" 2
expect_text "a blind host" "did not appear within 2 s on $(uname -n) (rank 1)"
expect_no_leftovers "a blind host" hosts
late=$work/hosts/checkpoints/step-00000003
(
  sleep 4
  echo "s $ENOENT ${late##*/}.tmp 1" >"$work/faults"  # now the folder of a save
  for ((i = 0; i < 600; i++)); do compgen -G "$late.tmp-*" >/dev/null && break || sleep 0.05; done
  sleep 4
  [[ ! -e $late ]] || touch "$work/not_late"
  rm -f "$work/faults"
) &
blinds=$!
rm -rf "$work/hosts"
hosts $((port + 1)) 120
wait $blinds
expect_code "a late host" 0
[[ ! -e $work/not_late ]] || fail "a late host: step 3 is saved before both hosts see its folder"
expect_steps "a late host" hosts "1 2 3 4 5 6 "

((failures == 0)) || exit 1
echo "runs survive their disks"
