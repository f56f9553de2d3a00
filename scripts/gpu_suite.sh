#!/usr/bin/env bash
# Everything that a machine with GPUs can prove and measure, within 8 minutes: kernels against the CPU's, training against
# the CPU's, speed and memory against PyTorch, memory errors and races of the kernels, layouts of ranks against one rank,
# and what their overlap hides.
#   scripts/gpu_suite.sh [--device cuda|cpu] [--build build/release] [--output folder, default build/gpu_suite]
#     [--minutes 8] [--only word,word...] [--dry-run]
#     --device cpu   the layouts alone, on the CPU: that the list itself is right
#     --build        a build folder, or what scripts/carry_build.sh packed, which is unpacked there and never built
#     --only         the parts with one of these words in their name
#     --dry-run      lists the parts with their limits, and runs none
# Programs that are there are used as they are; what is missing in a build folder is built. Every part has a limit of its
# own and ends with the suite's; what the time does not suffice for, and what needs more GPUs than there are, is listed as
# not run. After every part the output folder has the results so far, and nothing else: summary.md and summary.json (date,
# GPU, commit, results, tables) and logs.tar.gz. Ends with 1 where something failed, after running all of it.
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
running='' logs=$output
if ((!dry)); then
  work=$(mktemp -d)
  logs=$work/logs
  mkdir -p "$logs" "$output"
  trap 'rm -rf "$work"' EXIT
  trap '[[ -z $running ]] || kill -TERM "$running"; end=0' TERM INT
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
# What the numbers were taken with.
machine() {
  timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$logs/gpus"
  timeout 20 nvidia-smi
  timeout 20 "$build/apps/mtrain/mtrain" --version
  timeout 20 python3 -c 'from importlib.metadata import distributions as all
print(*sorted({f"{d.name} {d.version}" for d in all() if (d.name or "").startswith(("nvidia-c", "nvidia-nccl", "torch", "triton"))}), sep="\n")'
  nproc
  free -g
}
((dry)) || [[ $device == cpu ]] || machine >"$logs/machine.log" 2>&1 || true

failed=0
# record <name> <result> <seconds>, and what there is by now: the machine may be gone before the end.
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
skip() {
  wanted "$1" || return 0
  say "== $1: not run: $2"
  ((dry)) || record "$1" "not run: $2" 0
}
# part <name> <seconds at most> <command...>: its result and time, and a log of its own
part() {
  local name=$1 limit=$2 log="$logs/${1// /_}.log" began=$SECONDS left=$((end - SECONDS)) code=0
  shift 2
  wanted "$name" || return 0
  if ((dry)); then
    printf '%4d s  %s: %s\n' "$limit" "$name" "$*"
    return 0
  fi
  if ((left < 5)); then
    skip "$name" "the time is spent"
    return 0
  fi
  if [[ $1 == "$build"/* && ! -x $1 ]]; then
    record "$name" "FAILED: there is no $1" 0
    failed=1
    return 0
  fi
  ((limit < left)) || limit=$left
  say "== $name, at most $limit s"
  # Into a file, since a process that cannot be ended would keep a pipe open.
  : >"$log"
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
  running=$!
  tail -n +1 -s 0.2 -f --pid="$running" "$log" &
  wait "$running" || code=$?
  if ((code > 128)) && kill -0 "$running" 2>/dev/null; then wait "$running" || code=$?; fi # a signal came to the suite
  running=''
  wait
  case $code in
    0) record "$name" passed $((SECONDS - began)) ;;
    124 | 137) record "$name" "FAILED: longer than $limit s" $((SECONDS - began)) && failed=1 ;;
    *) record "$name" "FAILED: ended with $code" $((SECONDS - began)) && failed=1 ;;
  esac
}
# program <path in the build folder> <its target>
program() {
  ((!dry)) && [[ ! -x $build/$1 ]] || return 0
  ((!carried)) || return 0
  cmake --build "$build" --target "$2" >/dev/null || say "the build of $2 failed"
}
# sanitized <name> <tool> <seconds> <tests>...
sanitized() {
  local name=$1 tool=$2 limit=$3 sanitizer
  shift 3
  if sanitizer=$(command -v compute-sanitizer) || ((dry)); then
    part "$name" "$limit" "${each_test[@]}" --jobs 4 --under "${sanitizer:-compute-sanitizer} --tool $tool --error-exitcode 1" \
      "$build/test/cuda/test_cuda" "$@"
  else
    skip "$name" "there is no compute-sanitizer"
  fi
}
each_test=(scripts/bench/each_test.py)
export MTRAIN_BUILD=$build
if [[ $device == cuda ]]; then
  program test/cuda/test_cuda test_cuda
  program test/cuda/test_cuda_training test_cuda_training
  program scripts/bench/bench_cuda bench_cuda
  part "kernels against the CPU" 100 "${each_test[@]}" --each 90 "$build/test/cuda/test_cuda"
  part "training against the CPU" 60 "${each_test[@]}" "$build/test/cuda/test_cuda_training"
  most=280
  [[ -z $only ]] || most=540 # the other parts want no time
  ((most < end - SECONDS)) || most=$((end - SECONDS))
  part "speed against PyTorch" "$most" scripts/bench/compare_gpu.py --build "$build" --output "$logs/compare" --seconds $((most - 10))
  part "speed of the kernels" 30 "$build/scripts/bench/bench_cuda"
  # Products are cuBLASLt's own kernels, and attention's many shapes would take all of the time.
  sanitized "kernels under memcheck" memcheck 45 '~matmul*' '~products*' '~attention:*'
  sanitized "kernels under racecheck" racecheck 45 'norms*,cross*,sums*,column*,the first*,embeddings: the backward*'
fi
part "layouts" 150 scripts/bench/layouts.py --device "$device" --build "$build" --output "$logs/layouts"
if [[ $device == cuda ]]; then
  for kind in dp tp cp pp; do
    if ((gpus >= 2)); then
      part "overlap of $kind" 120 "scripts/bench/overlap_$kind.sh" $((gpus < 4 ? 2 : 4)) 0 1 train.device=cuda
    else
      skip "overlap of $kind" "1 GPU for 2 ranks"
    fi
  done
  sanitized "attention under racecheck" racecheck 60 'attention: results*'
fi
((!dry)) || exit 0
say "$output/summary.md"
exit $failed
