#!/usr/bin/env bash
# Trains a tiny model for 3 steps with the program of one build, continues it, and lets it write: the whole path
# from text to text, in a folder of its own. Under a sanitizer build this is its run over real training.
#   scripts/smoke.sh [build folder, default build/release]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
build_folder=${1:-build/release}
mtrain=$build_folder/apps/mtrain/mtrain
[[ -x $mtrain ]] || die "$mtrain is not built"
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66${TSAN_OPTIONS:+:$TSAN_OPTIONS}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Any text will do; that of the recipes is always here.
cat recipes/*.yaml >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" --validation-fraction 0.2 --validation-split tail

run_training() {
  "$mtrain" --recipe recipes/quickstart.yaml "dataset.train=$work/set_train" "dataset.validation=$work/set_valid" \
    "train.run_dir=$work/run" model.num_layers=2 model.hidden_size=64 model.num_attention_heads=4 \
    model.num_query_groups=2 dataset.seq_length=64 train.global_batch_size=4 train.micro_batch_size=2 \
    train.threads=2 validation.every_steps=2 validation.steps=1 checkpoint.every_steps=2 lr_scheduler.warmup_steps=1 \
    debug.stream_sanitizer=true "$@"
}
run_training train.steps=3 mixed_precision="${SMOKE_PRECISION:-fp32}"
run_training train.steps=5 mixed_precision="${SMOKE_PRECISION:-fp32}" checkpoint.load=latest
steps=$(grep -c '"loss"' "$work/run/metrics.jsonl")
((steps == 5)) || die "metrics.jsonl holds $steps steps instead of 5"
text=$("$mtrain" generate --run "$work/run" --prompt "train:" --tokens 8)
[[ $text == train:* ]] || die "generate did not begin with its prompt: $text"
say "smoke: 3 steps, 2 more after resuming, and a sample"
