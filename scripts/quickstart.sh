#!/usr/bin/env bash
# From a bare Debian machine to a trained model: installs what is missing, builds, prepares the data, trains
# recipes/quickstart.yaml, compares its validation loss with a bigram table's and prints a sample.
#   scripts/quickstart.sh [section.field=value ...]      settings that win over the recipe's
# Ctrl-C saves and ends the training; the next call continues it. A finished run is kept under another name.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
recipe=recipes/quickstart.yaml
run=runs/quickstart
for setting in "$@"; do
  [[ $setting == *=* || $setting == '~'* ]] || die "$setting is not a setting (section.field=value)"
  field=${setting%%=*} field=${field#cfg.} field=${field//-/_}
  case $field in
    train.run_dir | train.output_dir) run=${setting#*=} ;;
    checkpoint.load | checkpoint.restore_from | checkpoint.dir | checkpoint.save | checkpoint.checkpoint_dir)
      die "$setting: this script keeps checkpoints in the run folder and continues them itself; give train.run_dir, or
  call mtrain with this setting" ;;
  esac
done
[[ -n $run && $run != */ ]] || die "train.run_dir=$run is not the name of a folder"
prefix=data/quickstart
mtrain=$(program_path mtrain)

build_release() {
  if [[ ! -x $mtrain ]]; then
    build release mtrain
    return
  fi
  # At a second call there is usually nothing to build; ninja's two lines about that are hidden.
  cmake --build --preset release -j "$(build_jobs)" --target mtrain 2>&1 |
    sed -uE '/Re-checking globbed directories|^ninja: no work to do/d'
}

prepare_data() {
  local file fresh=1
  scripts/corpus.sh || return 1
  for file in "$prefix"_{train,valid}.{bin,idx}; do
    [[ -s $file && $file -nt $prefix.txt ]] || fresh=0
  done
  if ((fresh)); then
    say "${prefix}_train and ${prefix}_valid are up to date"
    return 0
  fi
  "$mtrain" data build --input "$prefix.txt" --output "$prefix" --tokenizer byte --split blank-line \
    --validation-fraction 0.05
}

# A stopped run has no mark of its end and is continued; a finished run is renamed.
claim_run_folder() {
  local n=1
  [[ -d $run ]] || return 0
  if [[ ! -e $run/finished ]]; then
    resume=(checkpoint.load=latest)
    return 0
  fi
  while [[ -e $run-$n ]]; do ((++n)); done
  mv "$run" "$run-$n"
  say "the earlier run is kept in $run-$n"
}

interrupted=0
resume=()
train() {
  claim_run_folder || return 1
  trap 'interrupted=1' INT TERM
  "$mtrain" --recipe "$recipe" "${resume[@]}" "${settings[@]}" || return 1
  trap - INT TERM
  if ((interrupted)); then
    say "stopped; scripts/quickstart.sh continues this run, rm -r $run forgets it"
    exit 130
  fi
  touch "$run/finished"
}

beaten=1
evaluate() {
  local model bigram
  model=$(sed -n 's/.*"validation_loss":\([0-9.eE+-]*\).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
  bigram=$("$mtrain" data bigram --train "${prefix}_train" --valid "${prefix}_valid" |
    sed -n 's/.*loss \([0-9.]*\).*/\1/p')
  [[ -n $model && -n $bigram ]] || { say "no loss found in $run/metrics.jsonl or from the bigram" && return 1; }
  printf 'held-out text, nats per byte:  model %.3f   bigram table %.3f\n' "$model" "$bigram"
  if awk "BEGIN { exit !($model < $bigram) }"; then
    awk "BEGIN { printf \"a byte of it is %.2f times as probable to the model, on average\n\", exp($bigram - $model) }"
  else
    beaten=0
  fi
}

sample() {
  "$mtrain" generate --run "$run" --prompt "And it came to pass" --tokens 400 --temperature 0.7
}

settings=("$@")
phase "packages" scripts/install-deps.sh --corpus
phase "build" build_release
phase "data" prepare_data
phase "training: $recipe" train
phase "evaluation" evaluate
phase "sample" sample
print_phases
say "run folder $run: metrics.jsonl, recipe.yaml, checkpoints/"
((beaten)) || die "the model has not come below the bigram table: train longer"
say "another sample: $mtrain generate --run $run --prompt 'In the beginning'"
