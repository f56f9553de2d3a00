#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU.
#   scripts/test.sh [--sanitizers]
#     --sanitizers   afterwards the same tests under AddressSanitizer with UndefinedBehaviorSanitizer and under
#                    ThreadSanitizer: two more builds, and programs that run several times slower (for the night)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

sanitizers=0
for option in "$@"; do
  case $option in
    --sanitizers) sanitizers=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $option; the only one is --sanitizers" ;;
  esac
done

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

phase "packages" scripts/install-deps.sh --check
phase "checks" scripts/check.sh
phase "tests of the checks" python3 -B scripts/check_selftest.py
phase "build: release" build release
phase "tests: release" run_tests release
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
