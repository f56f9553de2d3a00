#!/usr/bin/env bash
# Tests the full path from text to text with the mtrain of one build, in a folder of its own: trains a tiny model
# for a few steps, at once and in two parts, and generates text. In a sanitizer build this checks a real training.
#   scripts/smoke.sh [build folder, default build/release]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
build_folder=${1:-build/release}
mtrain=$(program_path mtrain "$build_folder")
[[ -x $mtrain ]] || die "$mtrain is not built"
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66${TSAN_OPTIONS:+:$TSAN_OPTIONS}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}

work=$(mktemp -d)
training=
trap '[[ -z $training ]] || kill -KILL "$training" 2>/dev/null; rm -rf "$work"' EXIT
# Any text will do; the recipes are always here.
cat recipes/*.yaml >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" --validation-fraction 0.2 --validation-split tail

# The schedule does not depend on train.steps, so that runs of any length agree.
settings=(--recipe recipes/quickstart.yaml "dataset.train=$work/set_train" "dataset.validation=$work/set_valid"
  model.num_layers=2 model.hidden_size=64 model.num_attention_heads=4 model.num_query_groups=2 dataset.seq_length=64
  train.global_batch_size=4 train.micro_batch_size=2 train.threads=2 validation.every_steps=2 validation.steps=1
  checkpoint.every_steps=2 lr_scheduler.warmup_steps=1 lr_scheduler.decay_steps=100
  debug.stream_sanitizer=true mixed_precision="${SMOKE_PRECISION:-fp32}")
# run_training <run> [setting...]
run_training() { "$mtrain" "${settings[@]}" "train.run_dir=$work/$1" "${@:2}"; }
losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$work/$1/metrics.jsonl"; }

run_training whole train.steps=5
run_training run train.steps=3
run_training run train.steps=5 checkpoint.load=latest
[[ $(losses whole | wc -l) == 5 ]] || die "the metrics of 5 steps are: $(losses whole)"
[[ $(losses run) == "$(losses whole)" ]] ||
  die "the losses of a resumed run and of an uninterrupted one differ:"$'\n'"$(paste <(losses run) <(losses whole))"

# A run saves and ends when its terminal goes away, and continues when a reader of its output goes away. Under nohup
# a run survives the signal; this one must not, even if the tests run under nohup.
env --default-signal=HUP "$mtrain" "${settings[@]}" "train.run_dir=$work/hung" train.steps=5000 >"$work/hung.log" 2>&1 &
training=$!
for ((i = 0; i < 600; ++i)); do
  [[ -s $work/hung/metrics.jsonl ]] && break
  sleep 0.1
done
kill -HUP "$training"
wait "$training" || die "SIGHUP ended the run with exit code $?: $(tail -n 3 "$work/hung.log")"
grep -q '^signal 1: ' "$work/hung.log" || die "SIGHUP was not noticed: $(tail -n 3 "$work/hung.log")"
compgen -G "$work/hung/checkpoints/step-*" >/dev/null || die "SIGHUP ended the run without a checkpoint"
training=
{ run_training unheard train.steps=5 2>&1 || echo $? >"$work/status"; } | true
[[ ! -e $work/status ]] || die "without a reader of its messages the run ended with exit code $(cat "$work/status")"
[[ $(losses unheard) == "$(losses whole)" ]] || die "without a reader of its messages the run did not finish"

text=$("$mtrain" generate --run "$work/run" --prompt "train:" --tokens 8)
[[ $text == train:* ]] || die "generate did not begin with its prompt: $text"
say "smoke: 5 steps, the same with a restart, a hang-up, a lost reader, and a sample"
