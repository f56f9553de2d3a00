#!/usr/bin/env bash
# From a bare Debian machine to a trained model: installs what is missing, builds, prepares the data, trains
# recipes/quickstart.yaml, compares its validation loss with a bigram table's and prints a sample.
#   scripts/quickstart.sh [--cuda | --built] [section.field=value ...]
#     --cuda                builds for CUDA even if this machine has no GPU; without it, CUDA is then left out
#     --built               takes the programs in build/release/bin as they are
#     section.field=value   settings that win over the recipe's
# Ctrl-C saves and ends the training; the next call continues it. A finished run is kept under another name.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cuda=0 built=0
case ${1:-} in
  -h | --help) usage && exit 0 ;;
  --cuda) cuda=1 && shift ;;
  --built) built=1 && shift ;;
esac
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
mtrain=build/release/bin/mtrain # built below; an older build may have left one elsewhere

# A folder that is configured already keeps its configuration, so that nothing is built twice.
configure() {
  local log
  local -a options=(-DMTRAIN_CPU_KERNELS=HOST -DMTRAIN_CUDA=OFF)
  if compgen -G '/proc/driver/nvidia/gpus/*' >/dev/null || nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    options=(-DMTRAIN_CPU_KERNELS=HOST)
  fi
  if ((cuda)); then
    options=(-DMTRAIN_CUDA=ON)
  elif [[ -e build/release/build.ninja ]]; then
    options=()
  fi
  log=$(cmake --preset release "${options[@]}" 2>&1) || { say "$log" && return 1; }
  sed -n 's/^-- mtrain: /  /p' <<<"$log"
}
# show_progress: reads ninja's output. On a terminal its status is one line that changes; elsewhere one line for
# each tenth of the work. Other output, such as a compiler's error, is printed as it is.
show_progress() {
  local line done all told=-1 wide
  wide=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)[^]]*\]\ (.*) ]]; then
      done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
      [[ ${BASH_REMATCH[3]} != 'Re-checking globbed'* ]] || continue
      if [[ -t 1 ]]; then
        line="  $done of $all, $SECONDS s: ${BASH_REMATCH[3]##*/}"
        printf '\r\033[K%s' "${line:0:wide - 1}"
        told=0
      elif ((10 * done / all > told)); then
        told=$((10 * done / all))
        say "  $done of $all, $SECONDS s"
      fi
    elif [[ $line != 'ninja: no work to do.' && $line != 'ninja: Entering directory'* ]]; then
      if [[ -t 1 ]] && ((told >= 0)); then printf '\r\033[K'; fi
      say "$line"
    fi
  done
  if [[ -t 1 ]] && ((told >= 0)); then printf '\r\033[K'; fi
}
build_programs() {
  configure || return 1
  cmake --build --preset release -j "$(build_jobs)" --target mtrain mtrain-launch 2>&1 | show_progress
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

# A stopped run has no mark of its end and resumes; a finished run is renamed.
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
  "$mtrain" generate --model "$run" --prompt "And it came to pass" --tokens 220 --temperature 0.7
}

settings=("$@")
if ((!built)); then
  phase "packages" scripts/install-deps.sh --corpus
  phase "build" build_programs
fi
phase "data" prepare_data
phase "training: $recipe" train
phase "evaluation" evaluate
phase "sample" sample
print_phases
say "run folder $run: metrics.jsonl, recipe.yaml, checkpoints/"
if [[ $(command -v mtrain) -ef $mtrain ]]; then
  say "another sample: mtrain generate --model $run --prompt 'In the beginning'"
else
  say "for this shell to find mtrain and mtrain-launch:"
  say "export PATH=\"$PWD/$(dirname "$mtrain"):\$PATH\""
  say "then, for another sample: mtrain generate --model $run --prompt 'In the beginning'"
fi
((beaten)) || die "the model's loss is not below the bigram table's: train longer"
