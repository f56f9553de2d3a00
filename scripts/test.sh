#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU, then the tests of arithmetic once more as on
# CPUs with narrower instruction sets than this one's.
#   scripts/test.sh [--quick] [--nightly] [--sanitizers]
#     --quick        the unit tests alone, built and run as they are: no packages, checks, trainings or processes; for
#                    the minute between two edits
#     --nightly      all tests under the narrower instruction sets, not only those of arithmetic
#     --sanitizers   afterwards the same tests under AddressSanitizer with UndefinedBehaviorSanitizer and under
#                    ThreadSanitizer: two more builds, and programs that run several times slower (for the night)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

sanitizers=0 nightly=0 quick=0
for option in "$@"; do
  case $option in
    --quick) quick=1 ;;
    --sanitizers) sanitizers=1 ;;
    --nightly) nightly=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $option; the options are --quick, --nightly and --sanitizers" ;;
  esac
done
((quick == 0 || sanitizers + nightly == 0)) || die "--quick goes alone"

closing_lines=()
# Runs every test of one build. ThreadSanitizer needs the memory layout that setarch -R gives where the kernel
# randomises addresses by more bits than it can follow.
run_tests() {
  local preset=$1 log=build/$1/test.log status=0
  local -a under=()
  if [[ $preset == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then under=(setarch "$(uname -m)" -R); fi
  "${under[@]}" ctest --preset "$preset" --no-tests=error 2>&1 | tee "$log" || status=1
  closing_lines+=("$(printf '%-8s %s' "$preset" "$(grep -E 'tests passed|No tests were found' "$log" | tail -n 1)")")
  ((status == 0)) || return 1
  "${under[@]}" scripts/smoke.sh "build/$preset"
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
# The instruction sets that MTRAIN_CPU_ISA can ask for here, but the widest, which is used without asking. Tiles count.
narrower_sets() {
  if grep -qw avx512f /proc/cpuinfo && grep -qw amx_bf16 /proc/cpuinfo; then echo avx512; fi
  if grep -qw avx512f /proc/cpuinfo; then echo avx2; fi
  if grep -qw avx2 /proc/cpuinfo; then echo generic; fi
}
# run_as_on <instruction set>
run_as_on() {
  local -a which=(--label-regex numeric)
  ((nightly == 0)) || which=()
  local log=build/release/test_$1.log status=0
  MTRAIN_CPU_ISA=$1 ctest --preset release --no-tests=error "${which[@]}" 2>&1 | tee "$log" || status=1
  closing_lines+=("$(printf '%-8s %s' "$1" "$(grep 'tests passed' "$log" | tail -n 1)")")
  return "$status"
}

if ((quick)); then
  phase "build: unit tests" build release unit_tests
  phase "unit tests" ctest --preset release --parallel "$(nproc)" --no-tests=error --tests-regex '^unit_'
  print_phases
  exit
fi

phase "machine" show_machine
phase "packages" scripts/install-deps.sh --check
phase "checks" scripts/check.sh
phase "tests of the checks" python3 -B scripts/check_selftest.py
phase "build: release" build release
phase "tests: release" run_tests release
for set in $(narrower_sets); do phase "tests: release, as on $set" run_as_on "$set"; done
if ((sanitizers)); then
  for preset in asan tsan; do
    phase "build: $preset" build "$preset"
    phase "tests: $preset" run_tests "$preset"
  done
fi
print_phases
say "== result"
for line in "${closing_lines[@]}"; do say "$line"; done
# ctest's own closing line of the release build ends the output.
grep 'tests passed' build/release/test.log | tail -n 1
