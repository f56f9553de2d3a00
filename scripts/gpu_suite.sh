#!/usr/bin/env bash
# Tests and measures on a machine with GPUs, within 8 minutes, all that needs a GPU: kernels and training against the
# CPU's, speed and memory against PyTorch, memory errors and races of the kernels, layouts of ranks against one rank,
# and how much communication their overlap hides.
#   scripts/gpu_suite.sh [--device cuda|cpu] [--build build/release] [--output folder, default build/gpu_suite]
#     [--minutes 8] [--only word,word...] [--dry-run]
#     --device cpu   runs the layouts alone, on the CPU, to test their list
#     --build        a build folder, or the output of scripts/carry_build.sh, which is unpacked there and never built
#     --only         the parts with one of these words in their name
#     --dry-run      lists the parts with the most and the least time that they get, and runs none
# Programs in the build folder are used as they are; missing ones are built. Every part has a time limit of its own, and
# leaves the later parts the least time that they need. Parts for which the time does not suffice, or which need more
# GPUs than there are, are listed as not run. After every part the output folder has the results so far, and nothing else:
# summary.md and summary.json (date, GPU, commit, results, tables) and logs.tar.gz. The exit code is 1 if a part failed,
# after all parts have run.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

device=cuda build=build/release output=build/gpu_suite minutes=8 only='' dry=0
while (($#)); do
  case $1 in
    --device) device=${2:-} && shift 2 ;;
    --build) build=${2:-} && shift 2 ;;
    --output) output=${2:-} && shift 2 ;;
    --minutes) minutes=${2:-} && shift 2 ;;
    --only) only=${2:-} && shift 2 ;;
    --dry-run) dry=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $1" ;;
  esac
done
[[ $device == cuda || $device == cpu ]] || die "--device is cuda or cpu, not $device"
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--minutes is a number, not $minutes"
# The parts in their order, with times in seconds. most: the part is ended after this time. least: the parts before it
# leave it at least this time, and it is not begun with less; it has more if they leave more.
parts=(
  # most least name
  '100   5 kernels against the CPU' # the first: begun in any case
  ' 60  30 training against the CPU'
  '540  60 speed against PyTorch' # one model; takes all that the parts after it do not need
  ' 30  15 speed of the kernels'
  ' 45  30 kernels under memcheck'
  ' 45  30 kernels under racecheck'
  '300  60 layouts' # as many cases as fit
  '120  20 overlap of dp'
  '120  20 overlap of tp'
  '120  20 overlap of cp'
  '120  20 overlap of pp'
  ' 60  30 attention under racecheck'
)
part_end=2 # seconds at the end of each part, in which its processes end and the report is written
end=$((SECONDS + $(awk "BEGIN { print int(60 * $minutes) }")))
gpus=0
[[ $device == cpu ]] || gpus=$(nvidia-smi -L 2>/dev/null | wc -l || true)
((dry || gpus > 0)) || [[ $device == cpu ]] || die "no GPU: nvidia-smi lists none; --device cpu runs the layouts on the CPU"

carried=0
if [[ -e $build/carry.tar.gz ]]; then
  carried=1
  commit=$(cat "$build/commit")
  ((dry)) || { mkdir -p "$build/unpacked" && tar -xzf "$build/carry.tar.gz" -C "$build/unpacked"; }
  build=$build/unpacked
else
  commit=$(git describe --always --dirty 2>/dev/null || echo 'no commit')
fi
running='' stopped='' failed=0 logs=$output
if ((!dry)); then
  work=$(mktemp -d)
  logs=$work/logs
  mkdir -p "$logs" "$output"
  trap 'rm -rf "$work"' EXIT
  # stop <signal>: ends what runs and begins nothing more.
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
# Prints the machine and versions with which the numbers were measured.
machine() {
  timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$logs/gpus"
  timeout 20 nvidia-smi
  timeout 20 "$(program_path mtrain "$build")" --version
  timeout 20 python3 -c 'from importlib.metadata import distributions as all
print(*sorted({f"{d.name} {d.version}" for d in all() if (d.name or "").startswith(("nvidia-c", "nvidia-nccl", "torch", "triton"))}), sep="\n")'
  nproc
  free -g
}
((dry)) || [[ $device == cpu ]] || machine >"$logs/machine.log" 2>&1 || true

# record <name> <result> <seconds>: adds a result and writes the report, since the machine may be gone before the end.
record() {
  printf '%s\t%s\t%s\n' "$@" >>"$logs/parts.tsv"
  scripts/bench/gpu_report.py --logs "$logs" --commit "$commit" --device "$device" --output "$output/summary" &&
    tar -czf "$work/logs.tar.gz" -C "$work" logs && mv "$work/logs.tar.gz" "$output/logs.tar.gz" ||
    say "the report could not be written"
}
wanted() {
  local word
  local -a words
  [[ -n $only ]] || return 0
  IFS=, read -ra words <<<"$only"
  for word in "${words[@]}"; do [[ $1 != *"$word"* ]] || return 0; done
  return 1
}
# why_not <part>: prints what this machine lacks for the part
why_not() {
  case $1 in
    layouts) ;;
    overlap*) ((gpus >= 2)) || say "1 GPU for 2 ranks" ;;
    *check) ((dry)) || command -v compute-sanitizer >/dev/null || say "there is no compute-sanitizer" ;;
  esac
}
# allow <part>: sets limit to the seconds that the part may take now, and most and least from the table
allow() {
  local row name a_most a_least later=0 kept=0
  for row in "${parts[@]}"; do
    read -r a_most a_least name <<<"$row"
    if [[ $name == "$1" ]]; then
      most=$a_most least=$a_least later=1
    elif ((later)) && [[ $device == cuda && -z $(why_not "$name") ]] && wanted "$name"; then
      kept=$((kept + a_least + part_end))
    fi
  done
  ((later)) || die "the table of parts lacks $1"
  limit=$((end - SECONDS - kept))
  ((limit >= least)) || limit=$least
  ((limit <= most)) || limit=$most
}
skip() {
  say "== $1: not run: $2"
  ((dry)) || record "$1" "not run: $2" 0
}
# part <name> <command...>: runs the command with a log of its own, and records its result and time
part() {
  local name=$1 log="$logs/${1// /_}.log" began=$SECONDS code=0 lacking left word not_run result
  shift
  wanted "$name" || return 0
  lacking=$(why_not "$name")
  allow "$name"
  left=$((end - SECONDS))
  if [[ -n $stopped ]]; then
    skip "$name" "the suite was ended by $stopped"
    return 0
  elif [[ -n $lacking ]]; then
    skip "$name" "$lacking"
    return 0
  elif ((dry)); then
    printf '%4d s, at least %2d s  %s: %s\n' "$limit" "$least" "$name" "$*"
    return 0
  elif ((left < least)); then
    skip "$name" "the time is spent: of $least s that it needs $((left > 0 ? left : 0)) s are left"
    return 0
  fi
  for word in "$@"; do
    if [[ $word == "$build"/* && ! -x $word ]]; then
      say "== $name: there is no $word"
      record "$name" "FAILED: there is no $word" 0
      failed=1
      return 0
    fi
  done
  say "== $name, at most $limit s"
  # Into a file, since a process that cannot be ended would keep a pipe open.
  : >"$log"
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
  running=$!
  [[ -z $stopped ]] || kill -TERM "$running"
  tail -n +1 -s 0.2 -f --pid="$running" "$log" &
  wait "$running" || code=$?
  if ((code > 128)) && kill -0 "$running" 2>/dev/null; then wait "$running" || code=$?; fi # the suite itself got a signal
  running=''
  wait
  not_run=$(tail -n 1 "$log" | grep -oE '[1-9][0-9]* not run$' || true)
  if ((code == 0)); then
    record "$name" "passed${not_run:+, $not_run}" $((SECONDS - began))
    return 0
  fi
  failed=1
  if [[ -n $stopped ]]; then
    result="the suite was ended by $stopped"
  elif ((code == 124 || code == 137)); then
    result="longer than $limit s"
    ((limit == most)) || result+=", all that was left to it of $most s"
  else
    result="ended with $code"
  fi
  record "$name" "FAILED: $result" $((SECONDS - began))
}
# program <path in the build folder> <its target>
program() {
  ((!dry)) && [[ ! -x $build/$1 ]] || return 0
  ((!carried)) || return 0
  cmake --build "$build" --target "$2" >/dev/null || say "the build of $2 failed"
}
# sanitized <name> <tool> <tests>...
sanitized() {
  part "$1" "${each_test[@]}" --jobs 4 --under "compute-sanitizer --tool $2 --error-exitcode 1" "$build/test/cuda/test_cuda" "${@:3}"
}
each_test=(scripts/bench/each_test.py)
export MTRAIN_BUILD=$build
# The comparison and the layouts end by themselves before their limit, and list what they have not run.
ending=10 each=()
if [[ $device == cuda ]]; then
  program test/cuda/test_cuda test_cuda
  program test/cuda/test_cuda_training test_cuda_training
  program scripts/bench/bench_cuda bench_cuda
  part "kernels against the CPU" "${each_test[@]}" --each 90 "$build/test/cuda/test_cuda"
  part "training against the CPU" "${each_test[@]}" "$build/test/cuda/test_cuda_training"
  allow "speed against PyTorch"
  part "speed against PyTorch" scripts/bench/compare_gpu.py --build "$build" --output "$logs/compare" --seconds $((limit - ending))
  part "speed of the kernels" "$build/scripts/bench/bench_cuda"
  # GEMMs run cuBLASLt's own kernels, and the many shapes of attention would take all of the time.
  sanitized "kernels under memcheck" memcheck '~matmul*' '~products*' '~attention:*'
  sanitized "kernels under racecheck" racecheck 'norms*,cross*,sums*,column*,the first*,embeddings: the backward*'
  each=(--each 45) # what hangs leaves time to the others
fi
allow "layouts"
part "layouts" scripts/bench/layouts.py --device "$device" --build "$build" --output "$logs/layouts" --seconds $((limit - ending)) "${each[@]}"
if [[ $device == cuda ]]; then
  for kind in dp tp cp pp; do
    part "overlap of $kind" "scripts/bench/overlap_$kind.sh" $((gpus < 4 ? 2 : 4)) 0 1 train.device=cuda
  done
  sanitized "attention under racecheck" racecheck 'attention: results*'
fi
((!dry)) || exit 0
say "$output/summary.md"
exit $failed
