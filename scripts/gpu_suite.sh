#!/usr/bin/env bash
# Everything that a machine with GPUs can prove and measure: kernels against the CPU's, training against the CPU's,
# layouts of ranks against one rank, what their overlap hides, and the kernels' speed.
#   scripts/gpu_suite.sh [--device cuda|cpu] [--build build/release] [--output folder, default build/gpu_suite]
#     --device cpu   the layouts alone, on the CPU: that the list itself is right
# Programs that are there are used as they are; what is missing is built. Cases for which there are too few GPUs are
# listed as not run: every rank needs one of its own. Ends with 1 where something failed, after running all of it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

device=cuda build=build/release output=build/gpu_suite
while (($#)); do
  case $1 in
    --device) device=${2:-} && shift 2 ;;
    --build) build=${2:-} && shift 2 ;;
    --output) output=${2:-} && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $1" ;;
  esac
done
[[ $device == cuda || $device == cpu ]] || die "--device is cuda or cpu, not $device"
mkdir -p "$output"
summary=$output/summary.md
printf '# GPU suite, %s, %s\n\n' "$(git describe --always --dirty 2>/dev/null || echo 'no commit')" "$(date -u +%F)" >"$summary"
failed=0
# part <name> <command...>: into the summary, and a log of its own
part() {
  local name=$1 log="$output/${1// /_}.log" began=$SECONDS result=passed
  shift
  say "== $name"
  if ! "$@" 2>&1 | tee "$log"; then
    result=FAILED
    failed=1
  fi
  printf -- '- %s: %s, %d s\n' "$name" "$result" $((SECONDS - began)) >>"$summary"
}
skip() {
  say "== $1: not run: $2"
  printf -- '- %s: not run: %s\n' "$1" "$2" >>"$summary"
}
# program <path in the build folder> <its target>
program() { [[ -x $build/$1 ]] || cmake --build "$build" --target "$2" >/dev/null; }

gpus=0
[[ $device == cpu ]] || gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
if [[ $device == cuda ]]; then
  ((gpus > 0)) || die "no GPU: nvidia-smi lists none; --device cpu runs the layouts on the CPU"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed 's/^/- GPU: /' >>"$summary"
  program test/cuda/test_cuda test_cuda
  program test/cuda/test_cuda_training test_cuda_training
  part "kernels against the CPU" "$build/test/cuda/test_cuda"
  part "training against the CPU" "$build/test/cuda/test_cuda_training"
  if sanitizer=$(command -v compute-sanitizer); then
    for tool in memcheck racecheck; do
      part "kernels under $tool" timeout 120 "$sanitizer" --tool "$tool" --error-exitcode 1 "$build/test/cuda/test_cuda"
    done
  else
    skip "kernels under compute-sanitizer" "there is no compute-sanitizer"
  fi
fi
export MTRAIN_BUILD=$build
part "layouts" scripts/bench/layouts.py --device "$device" --build "$build" --output "$output/layouts"
if [[ $device == cuda ]]; then
  for kind in dp tp cp pp; do
    if ((gpus >= 2)); then
      part "overlap of $kind" "scripts/bench/overlap_$kind.sh" $((gpus < 4 ? 2 : 4)) 0 1 train.device=cuda
    else
      skip "overlap of $kind" "1 GPU for 2 ranks"
    fi
  done
  program scripts/bench/bench_cuda bench_cuda
  part "speed of the kernels" "$build/scripts/bench/bench_cuda"
fi
[[ ! -e $output/layouts.md ]] || { printf '\n' && cat "$output/layouts.md"; } >>"$summary"
say "$summary"
exit $failed
