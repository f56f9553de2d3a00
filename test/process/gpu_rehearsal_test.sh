#!/usr/bin/env bash
# Rehearses scripts/gpu_suite.sh without a GPU: every part of the first call, and the parts of the second that need
# one GPU. The scripts are those of the suite, mtrain is real and runs on the CPU, and stand-ins replace the rest.
# The test finds misspelt options and names of tests.
#   test/process/gpu_rehearsal_test.sh <mtrain>
set -u
mtrain=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source test/process/gpu_stand_ins.sh
make_stand_ins
# If the real program is built, the names of test cases come from it: a filter without a match is a mistake.
real=$(dirname "$mtrain")/../test/cuda/test_cuda
if [[ -x $real ]]; then
  while read -r filter; do
    [[ $("$real" --list-test-names-only "$filter" 2>/dev/null | grep -c .) -gt 0 ]] || { : >"$work/out" && fail "no test case of $real is $filter"; }
  done < <(grep -E '^ *sanitized "' scripts/gpu_suite.sh | grep -oE "'[^']+'" | tr -d "'~" | tr , '\n')
fi

# The real program knows the settings that the stand-in for mtrain leaves out on a CPU.
: >"$work/out"
for recipe in gpu_1b gpu_7b gpu_124m gpu_moe; do
  while read -r setting; do
    "$mtrain" --recipe "recipes/bench/$recipe.yaml" train.device=cuda $setting --print-recipe >"$work/out" 2>&1 || fail "$recipe with $setting"
  done < <(python3 -B -c 'import sys; sys.path.insert(0, "scripts/bench"); import gpu_ladder
print(*sorted({s for _, settings, _ in gpu_ladder.rungs_for(True) for s in settings}), "mixed_precision.fp8=hybrid", sep="\n")')
done

suite 0 --part 1 "${tiny[@]}"
summary=$work/result/summary.md
says "$summary" "**17 parts: 17 passed, 0 failed, 0 timed out, 0 not run**"
says "$summary" "| copy of 1 GiB, read and written | from 4.2 to 4.4 TB/s | 4.29 | as predicted |"
says "$summary" "| memory-bound kernels, the slowest | at least 80 % of a copy | 70 | SHORT: 0.88 of the least |"
says "$summary" "| 1.5B at micro-batch 16 | passed |"
says "$summary" "- products on Hopper's tensor cores: yes (nvjet_tst"
says "$summary" "- attention by cuDNN: yes"
says "$summary" "| GEMMs of experts by CUTLASS, the slowest in bf16 | at least 500 TFLOP/s | 480 | SHORT: 0.96 of the least |"
says "$summary" "| 2.6B with experts, no graphs | passed |"
grep -qE '^\| train 1.5B \| [0-9]+ \| 1980 \| 1980 \| 650 \|' "$summary" || grep -qF "Clocks and power" "$summary" || fail "no clocks in the summary"
python3 - "$work/result/summary.json" >>"$work/out" 2>&1 <<'PYTHON' || fail "summary.json"
import json, sys
found = json.load(open(sys.argv[1]))
rows = {p["what"]: p for p in found["predictions"]}
for what in ("1.5B", "7B", "1.5B in fp8 beside bf16", "7B beside torch.compile", "2.6B with experts, graphs beside single launches"):
    assert rows[what]["measured"] is not None, what
assert set(found["train"]) == {"1b", "7b", "1b_fp8", "1b_micro16", "moe", "moe_single"}, found["train"].keys()
assert all(good for row in found["train"].values() for _, good in row["checks"]), found["train"]
# PyTorch was compared with the training that was measured before, and not with a second one.
compared = {row["model"]: row["mtrain"]["tokens_per_s"] for row in found["compare"]}
assert compared["gpu_1b"] == found["train"]["1b"]["mtrain"]["tokens_per_s"], compared
assert found["profile"]["1b"]["mtrain"]["operations"], found["profile"]
PYTHON

suite 0 --part 2 --only memcheck,racecheck,overlap,PyTorch "${tiny[@]}"
says "$summary" "| gpu_124m | 16 x 64, 4 |"
says "$summary" "| kernels under memcheck | passed |"
says "$summary" "| overlap of tp | not run |  |  | 1 GPU for 2 ranks |"
((failures == 0)) && echo "all well"
exit $((failures > 0))
