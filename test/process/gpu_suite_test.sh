#!/usr/bin/env bash
# Tests scripts/gpu_suite.sh without a GPU, with stand-ins for nvidia-smi, compute-sanitizer, PyTorch and the programs
# that need a GPU, and the real mtrain on the CPU: what the suite runs, what it reports about each part, and that a part
# that fails or hangs does not stop the others.
#   test/process/gpu_suite_test.sh <mtrain>
set -u
mtrain=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source test/process/gpu_stand_ins.sh
make_stand_ins racecheck
tests "$build/test/cuda/test_cuda_training" '[[ $1 != norms* ]] || { echo the GPU lied; exit 3; }'

# A dry run needs no GPU, leaves nothing, and names the order, the seconds of each part, and their sum.
mv "$work/bin/nvidia-smi" "$work/bin/hidden"
suite 0 --dry-run
mv "$work/bin/hidden" "$work/bin/nvidia-smi"
[[ ! -e $work/result ]] || fail "a dry run left files"
says "$work/out" "17 parts of 524 s in all; 558 s with 2 s at the end of each, of the 558 s there are"
awk '$1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+$/ { if ($1 != at) exit 1; at += $2 + 2; if ($2 < $3) exit 1; ++n } END { exit n != 17 }' "$work/out" ||
  fail "the parts of a dry run do not follow each other"
[[ $(sed -n 's/.*[0-9]  \([a-zA-Z ]*[a-zA-Z]\)[^:]*: .*/\1/p' "$work/out" | head -n 3 | tr '\n' ,) == "smoke,kernels against the CPU,training against the CPU," ]] ||
  fail "the order of a dry run"
# With less time, each part still leaves those after it their least, and parts that do not fit are named.
suite 0 --dry-run --minutes 7
says "$work/out" "17 parts of 386 s in all; 420 s with"
suite 0 --dry-run --minutes 4
says "$work/out" "== a training under memcheck: not run: the time is spent: of 20 s that it needs"
suite 0 --dry-run --part 2
says "$work/out" "--each 45"
says "$work/out" "overlap of pp"
suite 0 --device cpu --dry-run
lacks "$work/out" "--each"
says "$work/out" "1 parts of"
suite 1 --part 3
says "$work/out" "--part is 1 or 2, not 3"
suite 1 somewhere
says "$work/out" "what is somewhere? Settings are path=value"

# A part that fails, and the sanitizer's finding, are reported; the other parts run.
suite 1 --only "kernels against,training against,speed of the kernels,racecheck"
says "$work/result/summary.md" "| kernels against the CPU | passed |"
says "$work/result/summary.md" "| training against the CPU | FAILED |"
says "$work/result/summary.md" "| ended with 1: 2 test cases, 1 failed, 0 timed out, 0 not run |"
says "$work/out" "FAILED (3)  norms, of rows"
says "$work/out" "the GPU lied"
says "$work/result/summary.md" "| reductions under racecheck | FAILED |"
says "$work/result/summary.md" "**4 parts: 2 passed, 2 failed, 0 timed out, 0 not run**"
says "$work/result/summary.md" "| 1.5B, bf16, 8192 tokens | add | 10.0 | 3000 GB/s | 70.0 %, short |  |"
says "$work/result/summary.md" "- GPU: NVIDIA H200, 580.0, 143771 MiB"
lacks "$work/result/summary.md" "layouts"
python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
assert found["date"] and found["commit"] and [p["result"] for p in found["parts"]].count("passed") == 2, found' \
  "$work/result/summary.json" || fail "summary.json"
tar -tzf "$work/result/logs.tar.gz" | grep -q training_against_the_CPU.log || fail "no log of the training"

# A test case is named as its program understands it.
says "$work/out" "passed  sums [all]"
tests "$build/test/cuda/test_cuda" '[[ $1 == "norms\\, of rows" || $1 == "sums \\[all]" ]]'
suite 0 --only "kernels against"
tests "$build/test/cuda/test_cuda" 'echo "No test cases matched"'
suite 1 --only "kernels against"
says "$work/out" "FAILED (no test)"

# A part that hangs leaves the others their time, is counted separately from failures, and reports what it has done.
# Parts that do not fit do not begin.
tests "$build/test/cuda/test_cuda_training" 'true'
stub "$build/scripts/bench/bench_cuda" 'echo "copy of 1 GiB  500.0 us  4295 GB/s"; sleep 600'
suite 3 --minutes 0.5 --only "speed of the kernels,train 7B,1.5B in fp8" "${tiny[@]}"
# A part that ran for 10.1 s reads 10 or 11: the clock counts full seconds.
matches "$work/result/summary.md" '^\| speed of the kernels \| TIMED OUT \| 1[0-4] \| 10 \| longer than 10 s, all that was left to it of 40 s \|$'
says "$work/result/summary.md" "| copy of 1 GiB, read and written | from 4.2 to 4.4 TB/s | 4.29 | as predicted |"
says "$work/result/summary.md" "| train 7B | not run |  |  | the time is spent: of 20 s that it needs"
says "$work/result/summary.md" "| train 1.5B in fp8 | passed |"
says "$work/result/summary.md" "**3 parts: 1 passed, 0 failed, 1 timed out, 1 not run**"
# The cases that ran before the end are reported.
tests "$build/test/cuda/test_cuda" '[[ $1 == sums* ]] || sleep 600'
timeout 3 scripts/bench/each_test.py "$build/test/cuda/test_cuda" >"$work/out" 2>&1 && fail "each_test.py was ended and passes"
says "$work/out" "passed  sums [all]"
says "$work/out" "not run  norms, of rows"
# A single case that hangs is a time-out as well.
got=0
scripts/bench/each_test.py --each 1 "$build/test/cuda/test_cuda" >"$work/out" 2>&1 || got=$?
((got == 3)) || fail "each_test.py ends with $got after a time-out"
says "$work/out" "TIMED OUT (longer than 1 s)  norms, of rows"
says "$work/out" "2 test cases, 0 failed, 1 timed out, 0 not run"

stub "$build/scripts/bench/bench_cuda" "$speeds"

# If the suite is ended, the folder has the results so far, and nothing else.
tests "$build/test/cuda/test_cuda" 'true'
tests "$build/test/cuda/test_cuda_training" 'sleep 600'
for signal in TERM INT; do # a job in the background ignores SIGINT by default
  rm -rf "$work/result"
  PATH=$work/bin:$PATH env --default-signal=INT scripts/gpu_suite.sh --output "$work/result" --build "$build" \
    --only "speed,kernels against,training against,racecheck" >"$work/out" 2>&1 &
  suite=$!
  for ((i = 0; i < 200; ++i)); do
    ! grep -qs "training against the CPU | running" "$work/result/summary.md" || break
    sleep 0.1
  done
  ((i < 200)) || fail "no result while the suite runs"
  sleep 0.5
  kill -"$signal" "$suite"
  ! wait "$suite" || fail "a suite that was ended ends with 0"
  says "$work/result/summary.md" "| kernels against the CPU | passed |"
  says "$work/result/summary.md" "| training against the CPU | FAILED |"
  says "$work/result/summary.md" "| reductions under racecheck | not run |  |  | the suite was ended by SIG$signal |"
  [[ $(ls "$work/result" | tr '\n' ' ') == "logs.tar.gz summary.json summary.md " ]] || fail "files: $(ls "$work/result")"
done
# A kill also loses only the part that runs.
rm -rf "$work/result"
PATH=$work/bin:$PATH scripts/gpu_suite.sh --output "$work/result" --build "$build" --only "kernels against,training against" >"$work/out" 2>&1 &
suite=$!
for ((i = 0; i < 200; ++i)); do
  ! grep -qs "training against the CPU | running" "$work/result/summary.md" || break
  sleep 0.1
done
kill -KILL "$suite"
wait "$suite" 2>/dev/null
says "$work/result/summary.md" "**2 parts: 1 passed, 0 failed, 0 timed out, 0 not run, 1 running**"
tar -tzf "$work/result/logs.tar.gz" | grep -q kernels_against_the_CPU.log || fail "no log of the part before"
tests "$build/test/cuda/test_cuda_training" 'true'

# After a training that fails, the ladder finds the rung that passes, and later trainings use that rung.
mtrain_stub '[[ $* == *debug.own_attention=true* || $* == *--print-recipe* ]] || { echo "cuDNN failed" >&2; exit 1; }'
suite 1 --only "1.5B in fp8,7B" "${tiny[@]}"
says "$work/result/summary.md" "| train 7B | FAILED |"
says "$work/result/summary.md" "**it passes with own attention: debug.own_attention=true**"
says "$work/result/summary.md" "| as it is | failed |"
says "$work/result/summary.md" "| no CUDA graphs | failed |"
says "$work/out" "== later trainings run with debug.own_attention=true"
says "$work/result/summary.md" "| train 1.5B in fp8 | passed |"
# The ladder for the user's own training.
got=0
scripts/bench/gpu_ladder.py --seconds 60 -- "$build/bin/mtrain" --recipe recipes/bench/gpu_1b.yaml "dataset.train=$work/none" \
  "${tiny[@]}" >"$work/out" 2>&1 || got=$?
((got == 1)) || fail "gpu_ladder.py: exit code $got"
says "$work/out" "no rung passed"
mtrain_stub ''

# 7B needs more memory than an H100 has: neither program trains it there.
GPU_MIB=81559 suite 0 --only "7B,1.5B in fp8" "${tiny[@]}"
says "$work/result/summary.md" "| train 7B | not run |  |  | the GPU has 81559 of 122880 MiB |"
says "$work/result/summary.md" "| PyTorch 7B | not run |  |  | the GPU has 81559 of 122880 MiB |"
says "$work/result/summary.md" "**3 parts: 1 passed, 0 failed, 0 timed out, 2 not run**"
# No rung of the ladder helps a training without memory, which leaves the ladder to one that has a suspect.
mtrain_stub '[[ $* == *--print-recipe* || $* == *debug.own_attention=true* ]] ||
  if [[ $* == *fp8* ]]; then echo "cuDNN failed" >&2; exit 1; else echo "error: out of GPU memory: 9 MiB requested" >&2; exit 1; fi'
suite 1 --only "7B,1.5B in fp8,1.5B at micro-batch 16" "${tiny[@]}"
says "$work/result/summary.md" "| train 7B | FAILED |"
says "$work/result/summary.md" "| ended with 4: failed; no memory; no memory for micro-batches of 4;"
lacks "$work/out" "ladder of train 7B"
says "$work/result/summary.md" "| ladder of train 1.5B in fp8 | passed |"
mtrain_stub ''

# Of a model with experts, CUTLASS is a suspect too; without the training by graphs, the other has nothing to compare with.
mtrain_stub '[[ $* == *debug.own_grouped_gemm=true* || $* == *--print-recipe* ]] || { echo "CUTLASS failed" >&2; exit 1; }'
suite 1 --only "with experts" "${tiny[@]}"
says "$work/result/summary.md" "**it passes with own GEMMs of experts: debug.own_grouped_gemm=true**"
says "$work/result/summary.md" "not so: there are losses of train_gpu_moe.json to compare with"
mtrain_stub ''

# PyTorch does not get the variable that a ladder may have found.
torch_stub "[[ -z \${CUDA_LAUNCH_BLOCKING:-} ]] || exit 1; $torch_result"
export CUDA_LAUNCH_BLOCKING=1
suite 0 --part 2 --only "PyTorch 124M" "${tiny[@]}"
unset CUDA_LAUNCH_BLOCKING
says "$work/result/summary.md" "| PyTorch 124M | passed |"
torch_stub "$torch_result"

# Building a missing program does not use the suite's minutes: the part could not begin with less than 10 s.
mv "$build/scripts/bench/bench_cuda" "$work/bench_cuda"
stub "$work/bin/cmake" "sleep 5; mv '$work/bench_cuda' '$build/scripts/bench/bench_cuda'"
suite 0 --minutes 0.25 --only "speed of the kernels"
says "$work/result/summary.md" "| speed of the kernels | passed |"
rm "$work/bin/cmake"

# The packed archive is unpacked, and nothing is built.
mkdir -p "$work/carry"
tar -czf "$work/carry/carry.tar.gz" -C "$build" bin scripts test/cuda/test_cuda
echo abc1234 >"$work/carry/commit"
suite 1 --build "$work/carry" --only "against the"
says "$work/result/summary.md" "| kernels against the CPU | passed |"
says "$work/result/summary.md" "| there is no $work/carry/unpacked/test/cuda/test_cuda_training |"
tar -czf "$work/carry/carry.tar.gz" -C "$build" bin scripts test
suite 0 --build "$work/carry" --only "kernels against"
says "$work/result/summary.md" "# GPU suite, abc1234"

# A program that is missing, or does not start, is named in one line.
scripts/bench/each_test.py "$work/nothing" >"$work/out" 2>&1 && fail "each_test.py overlooked a missing program"
says "$work/out" "no list of test cases: $work/nothing cannot be started: No such file or directory"
scripts/bench/each_test.py --under "$work/nothing --tool x" "$build/test/cuda/test_cuda" >"$work/out" 2>&1 && fail "each_test.py --under"
says "$work/out" "FAILED ($work/nothing cannot be started: No such file or directory)  sums [all]"

# Against PyTorch, whose last line is made up; mtrain really trains, and its operations are listed.
tiny=("${tiny[@]/train.global_batch_size=16/train.global_batch_size=4}")
stub "$work/bin/torch" '[[ "$*" != *"\"micro_batch\": 4"* ]] || { echo "torch.OutOfMemoryError: CUDA out of memory" >&2; exit 1; }
echo "{\"torch\": \"0\", \"attention\": \"FLASH\", \"attention_ms\": {}, \"parameters\": 1, \"step_ms\": [1000, 1000], \"losses\": [5.0],
  \"memory_allocated\": 1048576, \"operations\": [[\"gemm\", 2.0, \"matmul\"]], \"operations_ms\": 2.0}" | tr -d "\n"'
got=0
PATH=$work/bin:$PATH python3 scripts/bench/compare_gpu.py --build "$build" --models gpu_1b --python "$work/bin/torch" --device cpu \
  --steps 2 --warmup 1 --seconds 100 --output "$work/compare" "${tiny[@]}" >"$work/out" 2>&1 || got=$?
((got == 0)) || fail "compare_gpu.py: exit code $got"
python3 - "$work/compare.json" >>"$work/out" 2>&1 <<'PYTHON' || fail "compare.json"
import json, sys
row = json.load(open(sys.argv[1]))["rows"][0]
ours, theirs = row["mtrain"], row["torch"]
assert row["notes"] == ["PyTorch has no memory for micro-batches of 4"], row["notes"]
assert row["shape"]["micro_batch"] == 2 and row["shape"]["qkv_bias"] and row["shape"]["tied"], row["shape"]
assert abs(theirs["tokens_per_s"] - 4 * 64) < 1e-6 and ours["memory_mib"] == 4096, (theirs, ours["memory_mib"])
assert len(ours["step_ms"]) == 2 and len(ours["losses"]) == 3 and ours["allocated_mib"] > 0
weights = 64 * (4 + 2 * 2) * 16 + 64 * 64 + 3 * 64 * 128 + 512 * 64
assert abs(theirs["mfu"] - 256 * (6 * weights + 6 * 64 * 64) / 989.4e12) < 1e-12, theirs["mfu"]
assert {"matmul", "attention", "other"} == {kind for _, _, kind in ours["operations"]}, ours["operations"]
PYTHON
says "$work/compare.md" "| gpu_1b | 4 x 64, 2 |"

# If PyTorch fails, mtrain's results are kept, and the next model runs.
stub "$work/bin/torch" 'echo "no such thing as a GPU" >&2; exit 1'
PATH=$work/bin:$PATH python3 scripts/bench/compare_gpu.py --build "$build" --models gpu_1b gpu_7b --python "$work/bin/torch" \
  --device cpu --steps 2 --warmup 1 --seconds 100 --output "$work/compare" "${tiny[@]}" >"$work/out" 2>&1 && fail "a failure was overlooked"
python3 - "$work/compare.json" >>"$work/out" 2>&1 <<'PYTHON' || fail "compare.json of a failure"
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert "no such thing" in row["failed"] and row["mtrain"]["tokens_per_s"] > 0, row
PYTHON
says "$work/compare_gpu_7b_PyTorch.log" "no such thing as a GPU"

# Ranks that are started like those that share a GPU.
scripts/bench/layouts.py --build "$(dirname "$mtrain")/.." --share --steps 3 --only megatron_ddp --output "$work/layouts" \
  >"$work/out" 2>&1 || fail "layouts.py --share: exit code $?"
says "$work/layouts.md" "| megatron_ddp, sharing | 2 | fp32 |"
# One training that takes too long is a failure. Cases for which the total time does not suffice are not.
scripts/bench/layouts.py --build "$(dirname "$mtrain")/.." --only megatron_ddp --each 0.01 >"$work/out" 2>&1 && fail "layouts.py --each"
says "$work/out" "the limit of 0.01 s"
scripts/bench/layouts.py --build "$(dirname "$mtrain")/.." --only megatron_ddp --seconds 0 >"$work/out" 2>&1 ||
  fail "layouts.py --seconds: exit code $?"
says "$work/out" "2 cases, 0 failed, 2 not run"

((failures == 0)) && echo "all well"
exit $((failures > 0))
