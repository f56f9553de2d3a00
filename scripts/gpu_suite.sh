#!/usr/bin/env bash
# Tests and measures mtrain on a machine with GPUs within 9.3 minutes. It checks the machine, measures kernels and
# trainings beside the predictions, and compares both with the CPU. It lists the kernels that the libraries choose,
# compares speed and memory with PyTorch, and looks for memory errors and races. A second call, --part 2, compares
# layouts of ranks with one rank, measures how much communication their overlap hides, and runs the other kernels
# under compute-sanitizer.
#   scripts/gpu_suite.sh --output FOLDER [--part 1|2] [--build build/release] [--minutes 9.3] [--only word,word...]
#     [--device cuda|cpu] [--dry-run] [path=value...]
#     --output       gets the results, and nothing else; default build/gpu_suite
#     --build        a build folder, or the output of scripts/carry_build.sh, which is unpacked there and never built
#     --only         the parts with one of these words in their name
#     --device cpu   runs the layouts alone, on the CPU, to test their list
#     --dry-run      lists the parts in their order with their seconds and the sum, and runs none; needs no GPU
#     path=value     a setting of all trainings, such as debug.own_attention=true
# Programs in the build folder are used as they are; missing ones are built before the minutes begin. Every part has
# a time limit of its own: its planned seconds, and more if the parts after it keep theirs. Parts for which the time
# does not suffice, or which need GPUs, memory or tools that are missing, are listed as not run. After the first
# training that fails, gpu_ladder.py looks for the suspect, and later trainings leave the suspect out; not if memory was
# short. Results are written after each part: summary.md and summary.json (answers, date, GPU, commit, results,
# predictions, tables) and logs.tar.gz. If the suite is ended early, only the part that runs is lost. After all parts
# have run, the exit code is 1 if a part failed, and 3 if none failed and one took too long.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

device=cuda build=build/release output=build/gpu_suite minutes=9.3 only='' dry=0 call=1
settings=()
while (($#)); do
  case $1 in
    --part) call=${2:-} && shift 2 ;;
    --device) device=${2:-} && shift 2 ;;
    --build) build=${2:-} && shift 2 ;;
    --output) output=${2:-} && shift 2 ;;
    --minutes) minutes=${2:-} && shift 2 ;;
    --only) only=${2:-} && shift 2 ;;
    --dry-run) dry=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) die "unknown option $1" ;;
    *=*) settings+=("$1") && shift ;;
    *) die "what is $1? Settings are path=value" ;;
  esac
done
[[ $device == cuda || $device == cpu ]] || die "--device is cuda or cpu, not $device"
[[ $call == 1 || $call == 2 ]] || die "--part is 1 or 2, not $call"
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--minutes is a number, not $minutes"
[[ $device == cuda ]] || call=2
# The parts in their order: the first six answer the questions at the head of the report. Times are in seconds. plan: the part gets this time if the parts after it keep their
# least. most: the part is ended after this time, which it gets if the parts after it keep their plan. least: the
# part does not begin with less.
parts=(
  # call plan most least name
  '1  10  20  5 smoke'
  '1  90 120 30 kernels against the CPU'
  '1  30  60 15 training against the CPU'
  '1  20  40 12 train 1.5B'
  '1  14  30 10 profile of 1.5B'
  '1  30  50 15 names of the kernels'
  '1  25  40 10 speed of the kernels'
  '1  28  60 20 train 7B'
  '1  14  30 10 train 1.5B in fp8'
  '1  14  30 10 train 1.5B at micro-batch 16'
  '1  10  30  6 speed of experts'
  '1  20  40 12 train 2.6B with experts'
  '1  16  30 12 train 2.6B with experts, no graphs'
  '1  65 110 40 PyTorch 1.5B'
  '1  65 110 40 PyTorch 7B'
  '1  45  60 20 a training under memcheck'
  '1  28  45 12 reductions under racecheck'
  '2 178 400 60 layouts' # as many cases as fit
  '2  25  60 10 speed in fp32'
  '2  50 100 35 PyTorch 124M'
  '2  90 120 30 kernels under memcheck'
  '2  60  90 30 attention under racecheck'
  '2  34 100 20 overlap of dp'
  '2  34 100 20 overlap of tp'
  '2  34 100 20 overlap of cp'
  '2  34 100 20 overlap of pp'
)
ladder_most=90 ladder_least=20
part_end=2 # seconds at the end of each part, in which its processes end and the report is written
all_seconds=$(awk "BEGIN { print int(60 * $minutes + 0.5) }")
end=$((SECONDS + all_seconds))
gpus=0
[[ $device == cpu ]] || gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
((dry || gpus > 0)) || [[ $device == cpu ]] || die "no GPU: nvidia-smi lists none; --device cpu runs the layouts on the CPU, --dry-run lists the parts"

carried=0
if [[ -e $build/carry.tar.gz ]]; then
  carried=1
  commit=$(cat "$build/commit")
  ((dry)) || { mkdir -p "$build/unpacked" && tar -xzf "$build/carry.tar.gz" -C "$build/unpacked"; }
  build=$build/unpacked
else
  commit=$(git describe --always --dirty 2>/dev/null || echo 'no commit')
fi
mtrain=$(program_path mtrain "$build")
running='' stopped='' watching='' failed=0 timed_out=0 logs=$output
if ((!dry)); then
  work=$(mktemp -d)
  logs=$work/logs
  mkdir -p "$logs" "$output"
  trap '[[ -z $watching ]] || kill "$watching" 2>/dev/null; rm -rf "$work"' EXIT
  # stop <signal>: ends the running part and begins no other.
  stop() {
    stopped=$1 failed=1
    [[ -z $running ]] || kill -TERM "$running"
  }
  trap 'stop SIGTERM' TERM
  trap 'stop SIGINT' INT
fi

# cuBLASLt, cuDNN and NCCL are loaded by name: from where PyTorch's packages have them, else from the toolkit.
cuda_libraries() {
  python3 -c 'import glob, sys; print(*(f for p in sys.path if p for f in sorted(glob.glob(p + "/nvidia/*/lib"))), sep="\n")' || true
  printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda/lib
}
if [[ $device == cuda ]]; then
  found=$(cuda_libraries | while read -r folder; do [[ ! -d $folder ]] || printf '%s:' "$folder"; done)
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${found%:} PATH=$PATH:/usr/local/cuda/bin
fi
# Records facts of the machine, and its clocks, watts and degrees twice a second until the end.
watch_machine() {
  {
    timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$logs/gpus"
    timeout 20 nvidia-smi
    timeout 20 "$mtrain" --version
    timeout 20 python3 -c 'from importlib.metadata import distributions as all
print(*sorted({f"{d.name} {d.version}" for d in all() if (d.name or "").startswith(("nvidia-c", "nvidia-nccl", "torch", "triton"))}), sep="\n")'
    nproc
    free -g
  } >"$logs/machine.log" 2>&1 || true
  nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu,utilization.gpu,clocks.mem,memory.used \
    --format=csv,noheader,nounits -i 0 -lms 500 >"$logs/clocks.csv" 2>&1 </dev/null &
  watching=$!
}
((dry)) || [[ $device == cpu ]] || watch_machine

# report: writes the report, since the machine may be gone before the end.
report() {
  scripts/bench/gpu_report.py --logs "$logs" --commit "$commit" --device "$device" --output "$output/summary" ||
    say "the report could not be written"
}
# record <name> <result> <why> <seconds> <seconds allowed> <begin>: adds a result and writes report and logs
record() {
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$@" "$(now)" >>"$logs/parts.tsv"
  report
  [[ $2 == running ]] || { tar -czf "$work/logs.tar.gz" -C "$work" logs 2>/dev/null && mv "$work/logs.tar.gz" "$output/logs.tar.gz"; } || true
}
now() { date '+%Y/%m/%d %H:%M:%S'; } # the format of nvidia-smi
wanted() {
  local word
  local -a words
  [[ -n $only ]] || return 0
  IFS=, read -ra words <<<"$only"
  for word in "${words[@]}"; do [[ $1 != *"$word"* ]] || return 0; done
  return 1
}
# memory_of_gpu: prints the MiB of the first GPU, on which trainings run, or nothing if nvidia-smi has no figure
memory_of_gpu() {
  timeout 20 nvidia-smi -i 0 --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | grep -xE '[0-9]+' || true
}
least_for_7b=122880 # MiB; weights, gradients and AdamW's state of 7B take 113 GiB
gpu_mib=''
((dry)) || [[ $device == cpu ]] || gpu_mib=$(memory_of_gpu)
# why_not <part>: prints what this machine lacks for the part
why_not() {
  ((!dry)) || return 0
  case $1 in
    overlap*) ((gpus >= 2)) || say "1 GPU for 2 ranks" ;;
    *7B) ((${gpu_mib:-$least_for_7b} >= least_for_7b)) || say "the GPU has $gpu_mib of $least_for_7b MiB" ;;
    *check) command -v compute-sanitizer >/dev/null || say "there is no compute-sanitizer" ;;
    names*) command -v ncu >/dev/null || command -v nsys >/dev/null || say "there is neither ncu nor nsys" ;;
  esac
}
pretended=0 # seconds that a dry run's parts so far would have taken
# look: sets `left` to the seconds that a part can have if it is the last
look() { left=$(((dry ? all_seconds - pretended : end - SECONDS) - part_end)); }
# allow <part>: sets `limit` to the seconds that the part may take now, `plan`, `most` and `least` to those of the
# table, and `kept` to the least seconds that the parts after it need.
allow() {
  local row name a_call a_plan a_most a_least later=0 planned=0 left
  look
  kept=0
  for row in "${parts[@]}"; do
    read -r a_call a_plan a_most a_least name <<<"$row"
    if [[ $name == "$1" ]]; then
      plan=$a_plan most=$a_most least=$a_least later=1
    elif ((later)) && runs_here "$name" "$a_call" && [[ -z $(why_not "$name") ]]; then
      kept=$((kept + a_least + part_end)) planned=$((planned + a_plan + part_end))
    fi
  done
  ((later)) || die "the table of parts lacks $1"
  limit=$((left - kept))
  ((limit <= plan)) || limit=$plan
  ((limit >= left - planned)) || limit=$((left - planned))
  ((limit >= least)) || limit=$least
  ((limit <= most)) || limit=$most
}
# runs_here <part> <its call>: whether this call of the suite has the part
runs_here() { [[ $2 == "$call" && ($device == cuda || $1 == layouts) ]] && wanted "$1"; }
call_of() {
  local row name a_call
  for row in "${parts[@]}"; do
    read -r a_call _ _ _ name <<<"$row"
    [[ $name != "$1" ]] || { say "$a_call" && return; }
  done
  say "$call" # a ladder
}
skip() {
  say "== $1: not run: $2"
  ((dry)) || record "$1" "not run" "$2" 0 0 "$(now)"
}
dry_seconds=0 dry_parts=0
# pretend <part> <command...>: prints the command that a dry run does not run
pretend() {
  ((dry_parts)) || say "  from seconds  least  part"
  printf '%6d %7d %6d  %s: %s\n' "$pretended" "$limit" "$least" "$1" "${*:2}"
  dry_parts=$((dry_parts + 1)) dry_seconds=$((dry_seconds + limit)) pretended=$((pretended + limit + part_end))
}
timed_out_code=3 # the exit code of scripts if something took too long and nothing failed
no_memory_code=4 # of gpu_train.py
# result_of <exit code> <seconds> <log>: sets result and why
result_of() {
  local said
  said=$(tail -n 1 "$3" | tr '\t' ' ' | cut -c 1-300)
  result=failed why="ended with $1: $said"
  if [[ -n $stopped ]]; then
    why="the suite was ended by $stopped"
  elif (($1 == 0)); then
    result=passed why=$said
  elif (($1 == 124 || ($1 == 137 && $2 >= limit))); then
    result='timed out' why="longer than $limit s"
    ((limit == most)) || why+=", all that was left to it of $most s"
  elif (($1 == timed_out_code)); then
    result='timed out' why=$said
  fi
}
# part <name> <command...>: runs the command with a log of its own, and records its result and time. Sets result and code.
part() {
  local name=$1 log="$logs/${1// /_}.log" began=$SECONDS begin lacking left word
  shift
  result='not run' code=0 begin=$(now)
  runs_here "$name" "$(call_of "$name")" || return 0
  lacking=$(why_not "$name")
  look
  if [[ -n $stopped ]]; then
    skip "$name" "the suite was ended by $stopped"
  elif [[ -n $lacking ]]; then
    skip "$name" "$lacking"
  elif ((left < least)); then
    skip "$name" "the time is spent: of $least s that it needs $((left > 0 ? left : 0)) s are left"
  elif ((dry)); then
    pretend "$name" "$@"
  else
    for word in "$@"; do
      [[ $word == "$build"/* && ! -x $word ]] || continue
      say "== $name: there is no $word"
      failed=1 result=failed
      record "$name" failed "there is no $word" 0 0 "$begin"
      return 0
    done
    say "== $name, at most $limit s"
    record "$name" running "" 0 "$limit" "$begin"
    execute "$log" "$@"
    result_of "$code" $((SECONDS - began)) "$log"
    [[ $result != failed ]] || failed=1
    [[ $result != 'timed out' ]] || timed_out=1
    record "$name" "$result" "$why" $((SECONDS - began)) "$limit" "$begin"
  fi
}
# execute <log> <command...>: sets code. Its output goes into a file, since a process that cannot be ended would keep a pipe
# open.
execute() {
  local log=$1 shown
  shift
  : >"$log"
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
  running=$!
  [[ -z $stopped ]] || kill -TERM "$running"
  tail -n +1 -s 0.2 -f --pid="$running" "$log" &
  shown=$!
  wait "$running" || code=$?
  if ((code > 128)) && kill -0 "$running" 2>/dev/null; then wait "$running" || code=$?; fi # the suite itself got a signal
  running=''
  wait "$shown" || true
}
# make_program <path in the build folder> <its target>
make_program() {
  ((!dry)) && [[ ! -x $build/$1 ]] || return 0
  ((!carried)) || return 0
  # scripts/quickstart.sh may have left CUDA and the tests out when it configured this folder.
  [[ $build != build/release ]] || cmake --preset release -DMTRAIN_CUDA=ON -DMTRAIN_TESTS=ON -DMTRAIN_CPU_KERNELS=ALL >/dev/null || true
  cmake --build "$build" --target "$2" >/dev/null || say "the build of $2 failed"
}
# simple <part> <command...>
simple() {
  allow "$1"
  part "$@"
}
ending=2 # seconds: scripts with --seconds end by themselves before their limit, and list what they have not done
laddered=0
# train <part> <output> <model> <what> <setting...>: mtrain alone. After the first training that does not pass, a ladder
# looks for the suspect, and the trainings after it leave it out. No rung of it helps where memory is short.
train() {
  local name=$1 result_file=$logs/$2 what=$4
  local -a command=(scripts/bench/gpu_train.py "$3" --build "$build" --name "${1#train }" --warmup 3 --steps 5)
  shift 4
  allow "$name"
  part "$name" "${command[@]}" --what "$what" --output "$result_file" --seconds $((limit - ending)) "${settings[@]}" "$@"
  [[ $result == failed || $result == 'timed out' ]] && ((!laddered && code != no_memory_code)) && [[ -z $stopped ]] || return 0
  laddered=1 most=$ladder_most least=$ladder_least
  limit=$((end - SECONDS - kept - part_end))
  ((limit <= most)) || limit=$most
  ((limit >= least)) || {
    skip "ladder of $name" "the time is spent: $((limit > 0 ? limit : 0)) s are left to it"
    return 0
  }
  part "ladder of $name" "${command[@]}" --what ladder --output "$logs/ladder" --seconds $((limit - ending)) "${settings[@]}" "$@"
  leave_out
}
# Trainings after the ladder leave out the suspect that it has found.
leave_out() {
  local found
  while read -r found; do
    say "== later trainings run with $found"
    if [[ $found == [A-Z]* ]]; then export "${found?}"; else settings+=("$found"); fi
  done < <(scripts/bench/gpu_ladder.py --found "$logs/ladder.json")
}
# beside_torch <part> <model>
beside_torch() {
  allow "$1"
  # PyTorch must not be measured with the blocking launches that a ladder may have chosen.
  part "$1" env -u CUDA_LAUNCH_BLOCKING scripts/bench/compare_gpu.py --models "$2" --build "$build" --output "$logs/compare_$2" --alone "$logs" \
    --seconds $((limit - 3 * ending)) "${settings[@]}"
}
each_test=(scripts/bench/each_test.py)
# sanitized <part> <tool> <tests>...
sanitized() {
  simple "$1" "${each_test[@]}" --jobs 4 --under "compute-sanitizer --tool $2 --error-exitcode 1" "$build/test/cuda/test_cuda" "${@:3}"
}
export MTRAIN_BUILD=$build
each=()
if [[ $device == cuda ]]; then
  make_program test/cuda/test_cuda test_cuda
  make_program test/cuda/test_cuda_training test_cuda_training
  make_program scripts/bench/bench_cuda bench_cuda
  end=$((SECONDS + all_seconds)) # building does not use this time
  allow "smoke"
  part "smoke" scripts/bench/gpu_smoke.py --mtrain "$mtrain" --seconds $((limit - ending))
  simple "kernels against the CPU" "${each_test[@]}" --each 60 "$build/test/cuda/test_cuda"
  simple "training against the CPU" "${each_test[@]}" --each 25 "$build/test/cuda/test_cuda_training"
  train "train 1.5B" train_gpu_1b gpu_1b train
  train "profile of 1.5B" profile_gpu_1b gpu_1b profile
  allow "names of the kernels"
  part "names of the kernels" scripts/bench/gpu_kernels.py --build "$build" --output "$logs/kernels" --seconds $((limit - ending)) "${settings[@]}"
  simple "speed of the kernels" "$build/scripts/bench/bench_cuda" 20 bf16
  train "train 7B" train_gpu_7b gpu_7b train
  train "train 1.5B in fp8" train_gpu_1b_fp8 gpu_1b train mixed_precision.fp8=hybrid
  train "train 1.5B at micro-batch 16" train_gpu_1b_micro16 gpu_1b train train.micro_batch_size=16
  simple "speed of experts" "$build/scripts/bench/bench_cuda" 20 experts
  train "train 2.6B with experts" train_gpu_moe gpu_moe train
  train "train 2.6B with experts, no graphs" train_gpu_moe_single gpu_moe train --like "$logs/train_gpu_moe.json" train.enable_cuda_graph=false
  beside_torch "PyTorch 1.5B" gpu_1b
  beside_torch "PyTorch 7B" gpu_7b
  simple "a training under memcheck" scripts/bench/gpu_memcheck.sh "${settings[@]}"
  sanitized "reductions under racecheck" racecheck 'norms*,cross*,sums*,column*,the first*,embeddings: the backward*'
  each=(--each 45) # a test that hangs leaves time to the others
fi
allow "layouts"
part "layouts" scripts/bench/layouts.py --device "$device" --build "$build" --output "$logs/layouts" --seconds $((limit - 10)) "${each[@]}"
if [[ $device == cuda ]]; then
  simple "speed in fp32" "$build/scripts/bench/bench_cuda" 20 fp32
  beside_torch "PyTorch 124M" gpu_124m
  # GEMMs run cuBLASLt's own kernels, and the many shapes of attention would take all of the time.
  sanitized "kernels under memcheck" memcheck '~matmul*' '~products*' '~attention:*'
  sanitized "attention under racecheck" racecheck 'attention: results*'
  for kind in dp tp cp pp; do
    simple "overlap of $kind" "scripts/bench/overlap_$kind.sh" $((gpus < 4 ? 2 : 4)) 0 1 train.device=cuda
  done
fi
if ((dry)); then
  say "$dry_parts parts of $dry_seconds s in all; $pretended s with $part_end s at the end of each, of the $all_seconds s there are"
  exit 0
fi
say "$output/summary.md"
((!failed)) || exit 1
((!timed_out)) || exit $timed_out_code
