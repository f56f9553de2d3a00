#!/usr/bin/env bash
# Installs missing packages, builds, and runs every test of the programs and the library that needs no GPU.
#   scripts/test.sh [--nightly] [--sanitizers]
#   scripts/test.sh --quick | --ci | --times
#     --nightly         also the CUDA kernels on an emulation of CUDA, and all tests under the narrower instruction sets of
#                       older CPUs; every layout with every model and precision of its table, not one of them in turn, over
#                       more steps;
#                       every bit of a small checkpoint
#                       is flipped; 200 random pairs of signals to trainings; a training is killed at each system call
#                       of a save (where strace is installed); and every fuzz target for 60 s (or MTRAIN_FUZZ_SECONDS),
#                       and the tests of plans, communication, imported models and damaged checkpoints, under
#                       AddressSanitizer with UndefinedBehaviorSanitizer
#     --sanitizers      then repeats the tests under AddressSanitizer with UndefinedBehaviorSanitizer, and under
#                       ThreadSanitizer: two more builds, whose programs run several times slower (takes hours)
#     --quick           builds and runs the unit tests alone, without packages, checks, trainings and processes
#     --ci              what CI runs after the tests: arithmetic under the narrower instruction sets; where nvcc is
#                       installed, the build that GPUs run, with cuDNN's frontend and CUTLASS; the CUDA kernels on an
#                       emulation of CUDA; and a part of --sanitizers: parsers, files and the launcher under
#                       AddressSanitizer with UndefinedBehaviorSanitizer; communication, devices and two steps of each
#                       parallelism under ThreadSanitizer
#     --times           runs nothing: prints what the last run cost, by phase, suite, test and target of the build
# With MTRAIN_ENDS_AT (seconds since 1970), parts of --ci are left out if there is no time to build or begin them; the
# last lines say so.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

sanitizers=0 nightly=0 alone=
for option in "$@"; do
  case $option in
    --quick | --ci) alone=$option ;;
    --times) exec python3 -B scripts/test_times.py ;;
    --sanitizers) sanitizers=1 ;;
    --nightly) nightly=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $option; the options are --nightly, --sanitizers, --quick, --ci and --times" ;;
  esac
done
[[ -z $alone ]] || (($# == 1)) || die "$alone takes no other option"

# More cases of the tests that flip bits of checkpoints, and of the tables of layouts.
((nightly == 0)) || export MTRAIN_ALL_DAMAGE=1 MTRAIN_DAMAGED_BITS=50 MTRAIN_ALL_CASES=1

closing_lines=()
# as_of <preset> <command...>: runs the command, under tsan by setarch -R, since ThreadSanitizer fails if the kernel
# randomizes addresses by too many bits.
as_of() {
  local -a under=()
  if [[ $1 == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then under=(setarch "$(uname -m)" -R); fi
  "${under[@]}" "${@:2}"
}
# test_jobs: prints how many tests run at once. Ranks of a training wait for each other, so that two trainings leave a
# third of two cores idle.
test_jobs() { echo $(($(nproc) * 3 / 2)); }
# run_ctest <preset> [ctest option...]
run_ctest() {
  local preset=$1 log=build/$1/test.log status=0
  as_of "$preset" ctest --preset "$preset" --parallel "$(test_jobs)" --no-tests=error "${@:2}" 2>&1 | tee "$log" || status=1
  closing_lines+=("$(printf '%-8s %s' "$preset" "$(grep -E 'tests passed|No tests were found' "$log" | tail -n 1)")")
  return "$status"
}
# Runs every test of one build but those of the emulated CUDA.
run_tests() {
  run_ctest "$1" --label-exclude '^emulator$' || return 1
  as_of "$1" scripts/smoke.sh "build/$1"
}
# Builds and runs the tests of CUDA kernels on the CPU.
run_emulator() {
  local log=build/$1/test_emulator.log status=0
  local -a needs=(--no-tests=error)
  [[ $1 != tsan ]] || needs=() # ThreadSanitizer's build has no emulated CUDA
  build "$1" emulator_tests || return 1
  as_of "$1" ctest --preset "$1" --parallel "$(test_jobs)" --label-regex '^emulator$' "${needs[@]}" 2>&1 | tee "$log" || status=1
  closing_lines+=("$(printf '%-8s emulated CUDA: %s' "$1" "$(grep -E 'tests passed|No tests were found' "$log" | tail -n 1)")")
  return "$status"
}

# seconds_left: prints how long it is until MTRAIN_ENDS_AT; a day where that is not set.
seconds_left() { echo $((${MTRAIN_ENDS_AT:-0} > 0 ? MTRAIN_ENDS_AT - $(date +%s) : 86400)); }
# phase_in_time <seconds> <name> <command...>: as phase(), if so many seconds are left.
phase_in_time() {
  if (($(seconds_left) >= $1)); then
    phase "${@:2}"
  else
    closing_lines+=("left out, since CI's time would not have sufficed: $2")
  fi
}

# The CPU decides which kernels run, and how fast.
show_machine() {
  lscpu | grep -E '^(Model name|CPU\(s\)|L[123].? cache)' || true
  local flag
  printf 'instruction sets:'
  for flag in avx2 avx512f avx512_bf16 amx_bf16; do
    if grep -qw "$flag" /proc/cpuinfo; then printf ' %s' "$flag"; fi
  done
  printf '\n'
}
# Prints the instruction sets to which MTRAIN_CPU_ISA can be set here, except for the widest, which is the default.
narrower_sets() {
  if grep -qw avx512f /proc/cpuinfo && grep -qw amx_bf16 /proc/cpuinfo; then echo avx512; fi
  if grep -qw avx512f /proc/cpuinfo; then echo avx2; fi
  if grep -qw avx2 /proc/cpuinfo; then echo generic; fi
}
# run_as_on <instruction set>
run_as_on() {
  local -a which=(--label-regex numeric)
  ((nightly == 0)) || which=(--label-exclude '^emulator$')
  local log=build/release/test_$1.log status=0
  MTRAIN_CPU_ISA=$1 ctest --preset release --parallel "$(test_jobs)" --no-tests=error "${which[@]}" 2>&1 | tee "$log" || status=1
  closing_lines+=("$(printf '%-8s %s' "$1" "$(grep 'tests passed' "$log" | tail -n 1)")")
  return "$status"
}

# Tests ranks that die, hang and restart under the launcher of the asan build. The ranks themselves are of the release
# build, since other tests run their code under the sanitizers; the launcher finds them on the path.
run_launcher() {
  local log=build/asan/launch.log status=0
  PATH=$PWD/$(dirname "$(program_path mtrain)"):$PATH UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    test/process/launch_test.sh "$(program_path mtrain)" "$(program_path mtrain-launch build/asan)" 2>&1 |
    tee "$log" || status=1
  closing_lines+=("asan     launcher: $( ((status == 0)) && echo passed || echo failed)")
  return "$status"
}

build_fuzzers() {
  local -a configure_options=(-DMTRAIN_TESTS=ON)
  build fuzz
}
# Runs every fuzz target. An input that crashes one, hangs for 10 s or takes 2 GB is kept in build/fuzz/found.
run_fuzzers() {
  local program name failed=0 count=0
  mkdir -p build/fuzz/found
  while read -r program; do
    name=$(basename "$program")
    mkdir -p "build/fuzz/corpus/$name"
    "$program" -max_total_time="${MTRAIN_FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/found/$name-" "build/fuzz/corpus/$name" || failed=1
    count=$((count + 1))
  done <build/fuzz/fuzz_targets.txt
  closing_lines+=("fuzz     $count targets: $( ((failed == 0)) && echo passed || echo "failed, see build/fuzz/found")")
  ((failed == 0 && count > 0))
}

# Builds with a sanitizer. Fails without a message if the time ends first.
build_in_time() {
  local seconds status=0
  seconds=$(seconds_left)
  ((seconds > 0)) || return 124
  cmake --preset "$1" "${configure_options[@]}" || return 1
  timeout "$seconds" cmake --build --preset "$1" -j "$(build_jobs)" --target "${@:2}" || status=$?
  return "$status"
}
# sanitize <preset> <target>...: builds and tests the unit tests and programs among the targets. The tests take a
# few minutes, so the time limit ends that much before CI's.
sanitize() {
  local preset=$1 status=0 tests
  build_in_time "$@" || status=$?
  if ((status == 124)); then
    closing_lines+=("$(printf '%-8s left out, since its build would not have ended in time: %s' "$preset" "${*:2}")")
    return 0
  fi
  ((status == 0)) || return "$status"
  tests=$(printf '%s\n' "${@:2}" | sed -n 's/^test_//p' | paste -sd '|')
  run_ctest "$preset" --tests-regex "^($tests)\$" || return 1
  [[ $preset != asan ]] || run_launcher
}

# Fetches headers of engines for GPUs. Without a network they are left out, and the closing lines say so.
fetch_engines() {
  local option log=build/release/fetch.log status
  for option in --cudnn-frontend --cutlass; do
    # A source of CUTLASS takes up to 3.9 GB, and another compiler runs beside it.
    if [[ $option == --cutlass ]] && (($(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo) < 6)); then
      closing_lines+=("engines  $option left out: less than 6 GiB of memory are free")
      continue
    fi
    status=0
    timeout 120 scripts/install-deps.sh "$option" 2>&1 | tee "$log" || status=$?
    case $status in
      0) ;;
      3 | 124) closing_lines+=("engines  $option could not be fetched: $(tail -n 1 "$log")") ;;
      *) return 1 ;;
    esac
  done
}
# Builds the release folder as users of a GPU do, with cuDNN's frontend and CUTLASS, and runs the tests of attention's
# plans and graphs, which need no GPU. The five sources take 2 minutes, and up to 6 on the slowest machines; the tests
# take up to 3.
test_engines() {
  local -a configure_options=(-DMTRAIN_TESTS=ON -DMTRAIN_CUDA=AUTO -DMTRAIN_CPU_KERNELS=ALL)
  local -a targets=(mtrain test_cuda test_cuda_training)
  local log=build/release/engines.log status=0 has
  if ! grep -q '^CMAKE_CUDA_COMPILER:.*=/' build/release/CMakeCache.txt; then
    closing_lines+=("engines  left out, since there is no nvcc")
    return 0
  fi
  fetch_engines || return 1
  cmake --preset release "${configure_options[@]}" 2>&1 | tee "$log" || return 1
  has=$(grep -oE 'CUTLASS [A-Z]+, cuDNN.s frontend [A-Z]+' "$log")
  if ninja -C build/release -t query test_cudnn >/dev/null 2>&1; then targets+=(test_cudnn test_cudnn_graphs); fi
  build_in_time release "${targets[@]}" || status=$?
  if ((status == 124)); then
    closing_lines+=("engines  left out, since their build would not have ended in time")
    return 0
  fi
  ((status == 0)) || return "$status"
  if [[ ${targets[*]} != *test_cudnn* ]]; then
    closing_lines+=("engines  built with $has; no test of them runs without cuDNN's frontend")
    return 0
  fi
  ctest --preset release --parallel "$(test_jobs)" --no-tests=error --tests-regex '^cudnn' 2>&1 | tee "$log" || status=1
  closing_lines+=("engines  built with $has: $(grep 'tests passed' "$log" | tail -n 1)")
  return "$status"
}

print_result() {
  [[ ! -d build/release ]] || print_phases >build/release/phases.txt
  print_phases
  say "== result"
  for line in "${closing_lines[@]}"; do say "$line"; done
}

# Builds every test that can be built here, whatever scripts/quickstart.sh left out when it configured the folder.
build_all() {
  local -a configure_options=(-DMTRAIN_TESTS=ON -DMTRAIN_CUDA=AUTO -DMTRAIN_CPU_KERNELS=ALL)
  build release tests
}
configure_options=(-DMTRAIN_TESTS=ON -DMTRAIN_CPU_KERNELS=ALL)
case $alone in
  --quick)
    phase "packages" scripts/install-deps.sh --tests
    phase "build: unit tests" build release unit_tests
    phase "unit tests" run_ctest release --tests-regex '^unit_'
    ;;
  --ci)
    phase "packages" scripts/install-deps.sh --tests
    phase "build: release" build release tests bench fuzz_targets
    for set in $(narrower_sets); do phase_in_time 200 "tests: release, as on $set" run_as_on "$set"; done
    phase_in_time 600 "engines of GPUs" test_engines
    phase_in_time 700 "tests: emulated CUDA" run_emulator release
    phase "tsan" sanitize tsan test_unit_comm test_unit_device
    phase "asan" sanitize asan test_unit_storage test_unit_launch test_unit_data test_unit_recipe mtrain-launch
    phase "tsan: steps" sanitize tsan test_overlap_steps
    ;;
esac
if [[ -n $alone ]]; then
  print_result
  exit
fi

((nightly == 0)) || export MTRAIN_SIGNAL_PAIRS=200
phase "machine" show_machine
phase "packages" scripts/install-deps.sh --check --tests
checks=(scripts/check.sh)
((nightly == 0)) || checks+=(--all)
phase "checks" "${checks[@]}"
phase "tests of the checks" python3 -B scripts/check_selftest.py
phase "build: release" build_all
phase "tests: release" run_tests release
if ((nightly)); then
  for set in $(narrower_sets); do phase "tests: release, as on $set" run_as_on "$set"; done
  phase "tests: emulated CUDA" run_emulator release
  if command -v strace >/dev/null; then
    phase "kills of a save" python3 -B test/process/killed_save_test.py "$(program_path mtrain)" "$(program_path mtrain-launch)" --nightly
  else
    closing_lines+=("kills of a save: left out, since strace is missing")
  fi
  phase "hosts that come and go" python3 -B test/process/elastic_test.py "$(program_path mtrain)" "$(program_path mtrain-launch)" \
    build/release/test/libother_host_name.so --nightly
  phase "leaders that etcd elects" python3 -B test/process/etcd_test.py "$(program_path mtrain)" "$(program_path mtrain-launch)" \
    build/release/test/libother_host_name.so --nightly
  phase "faults in every phase" python3 -B test/process/faults_test.py "$(program_path mtrain)" "$(program_path mtrain-launch)" --nightly
  phase "packages of the fuzz targets" scripts/install-deps.sh --fuzz
  phase "build: fuzz" build_fuzzers
  phase "fuzz targets" run_fuzzers
  phase "build: asan" build asan test_unit_plan test_unit_comm test_unit_interchange test_unit_checkpoint
  phase "tests: asan" run_ctest asan --tests-regex '^unit_(plan|comm|interchange|checkpoint)$'
fi
if ((sanitizers)); then
  for preset in asan tsan; do
    phase "build: $preset" build "$preset"
    phase "tests: $preset" run_tests "$preset"
    phase "tests: emulated CUDA, $preset" run_emulator "$preset"
  done
fi
print_result
# ctest's own closing line of the release build ends the output.
grep 'tests passed' build/release/test.log | tail -n 1
