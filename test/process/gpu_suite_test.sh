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
failures=0
fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$work/out"
  failures=$((failures + 1))
}
# stub <path> <text of a shell script>
stub() {
  mkdir -p "${1%/*}"
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
# suite <exit code> <argument>...: with the stand-ins first on PATH
suite() {
  local code=$1 got=0
  shift
  PATH=$work/bin:$PATH scripts/gpu_suite.sh --output "$work/result" "$@" >"$work/out" 2>&1 || got=$?
  ((got == code)) || fail "$*: exit code $got instead of $code"
}
says() { grep -qF -- "$2" "$1" || fail "${1##*/} does not say: $2"; }
lacks() { ! grep -qF -- "$2" "$1" || fail "${1##*/} says: $2"; }

stub "$work/bin/nvidia-smi" 'case "$*" in
  -L) echo "GPU 0: NVIDIA H200 (UUID: stand-in)" ;;
  *memory.used*) echo 500; sleep 0.3; for i in $(seq 100); do echo 4596; sleep 0.1; done ;;
  *) echo "NVIDIA H200, 580.0, 143771 MiB" ;;
esac'
stub "$work/bin/compute-sanitizer" '[[ "$*" != *racecheck* ]]'
build=$work/build
# tests <path> <text of a shell script that runs the case "$1">: a program of two test cases
tests() {
  stub "$1" 'if [[ $1 == --list-test-names-only ]]; then printf "norms, of rows\nsums [all]\n"; exit 2; fi
  '"$2"
}
tests "$build/test/cuda/test_cuda" 'echo "All tests passed: $1"'
tests "$build/test/cuda/test_cuda_training" '[[ $1 != norms* ]] || { echo the GPU lied; exit 3; }'
stub "$build/scripts/bench/bench_cuda" 'printf "copy of 1 GiB  500.0 us  4295 GB/s\n--- 1.5B, bf16, 8192 tokens\nadd  10.0 us  3000 GB/s   70.0 %% of a copy\n"'
stub "$build/bin/mtrain" "exec $mtrain \"\${@/train.device=cuda/train.device=cpu}\""

suite 0 --build "$build" --dry-run
says "$work/out" "speed against PyTorch"
[[ ! -e $work/result ]] || fail "a dry run left files"

# What one part may take leaves the later ones their least, with all of the time and with what two long parts leave.
for seconds in 480 318; do
  suite 0 --build "$build" --dry-run --minutes "$(awk "BEGIN { print $seconds / 60 }")"
  awk -v most="$seconds" '/ s, at least /{ at[++n] = $1; least[n] = $5 }
    END { for (i = 1; i <= n; ++i) { all = at[i]; for (j = i + 1; j <= n; ++j) all += least[j]; if (all > most) exit 1 }
      exit n != 8 }' "$work/out" || fail "the parts' limits of $seconds s"
done
says "$work/out" "--each 45"
suite 0 --build "$build" --device cpu --dry-run
lacks "$work/out" "--each"

# A part that fails, and the sanitizer's finding, are told; the rest runs.
suite 1 --build "$build" --only kernels,training,overlap
says "$work/result/summary.md" "- kernels against the CPU: passed"
says "$work/result/summary.md" "- training against the CPU: FAILED: ended with 1"
says "$work/out" "FAILED (3)  norms, of rows"
says "$work/out" "the GPU lied"
says "$work/out" "2 test cases, 1 failed, 0 not run"
says "$work/result/summary.md" "- kernels under memcheck: passed"
says "$work/result/summary.md" "- kernels under racecheck: FAILED: ended with 1"
says "$work/result/summary.md" "- overlap of tp: not run: 1 GPU for 2 ranks"
says "$work/result/summary.md" "| 1.5B, bf16, 8192 tokens | add | 10.0 | 3000 GB/s | 70.0 %, short |"
says "$work/result/summary.md" "- GPU: NVIDIA H200, 580.0, 143771 MiB"
lacks "$work/result/summary.md" "layouts"
python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
assert found["date"] and found["commit"] and [p["result"] for p in found["parts"]].count("passed") == 3, found' \
  "$work/result/summary.json" || fail "summary.json"
tar -tzf "$work/result/logs.tar.gz" | grep -q training_against_the_CPU.log || fail "no log of the training"

# A test case is named as its program understands it.
says "$work/out" "passed  sums [all]"
tests "$build/test/cuda/test_cuda" '[[ $1 == "norms\\, of rows" || $1 == "sums \\[all]" ]]'
suite 0 --build "$build" --only "kernels against"
tests "$build/test/cuda/test_cuda" 'echo "No test cases matched"'
suite 1 --build "$build" --only "kernels against"
says "$work/out" "FAILED (no test)"

# What hangs leaves to the others what they need, what it had done is told, and what does not fit is not begun.
tests "$build/test/cuda/test_cuda" '[[ $1 == sums* ]] || sleep 600'
suite 1 --minutes 0.45 --build "$build" --only "kernels against,training against,speed of the kernels"
says "$work/result/summary.md" "- kernels against the CPU: FAILED: longer than 5 s, all that was left to it of 100 s"
says "$work/result/summary.md" "- training against the CPU: not run: the time is spent: of 30 s that it needs"
says "$work/result/summary.md" "- speed of the kernels: passed"
says "$work/out" "passed  sums [all]"
says "$work/out" "not run  norms, of rows"

# Whoever ends the suite has the results so far, and nothing else in the folder.
tests "$build/test/cuda/test_cuda" 'true'
tests "$build/test/cuda/test_cuda_training" 'sleep 600'
for signal in TERM INT; do # a job in the background ignores SIGINT unless told otherwise
  rm -rf "$work/result"
  PATH=$work/bin:$PATH env --default-signal=INT scripts/gpu_suite.sh --output "$work/result" --build "$build" \
    --only "kernels against,training,speed" >"$work/out" 2>&1 &
  suite=$!
  for ((i = 0; i < 200; ++i)); do
    ! grep -qs "kernels against the CPU: passed" "$work/result/summary.md" || break
    sleep 0.1
  done
  ((i < 200)) || fail "no result while the suite runs"
  sleep 0.5
  kill -"$signal" "$suite"
  ! wait "$suite" || fail "a suite that was ended ends with 0"
  says "$work/result/summary.md" "- training against the CPU: FAILED: the suite was ended by SIG$signal"
  says "$work/result/summary.md" "- speed of the kernels: not run: the suite was ended by SIG$signal"
  [[ $(ls "$work/result" | tr '\n' ' ') == "logs.tar.gz summary.json summary.md " ]] || fail "files: $(ls "$work/result")"
done
tests "$build/test/cuda/test_cuda_training" 'true'

# What was packed is unpacked, and never built.
mkdir -p "$work/carry"
tar -czf "$work/carry/carry.tar.gz" -C "$build" apps scripts test/cuda/test_cuda
echo abc1234 >"$work/carry/commit"
suite 1 --build "$work/carry" --only "against the"
says "$work/result/summary.md" "- kernels against the CPU: passed"
says "$work/result/summary.md" "- training against the CPU: FAILED: there is no $work/carry/unpacked/test/cuda/test_cuda_training"
tar -czf "$work/carry/carry.tar.gz" -C "$build" apps scripts test
suite 0 --build "$work/carry" --only "kernels against"
says "$work/result/summary.md" "# GPU suite, abc1234"

# A program that is missing, or does not start, is named in one line.
scripts/bench/each_test.py "$work/nothing" >"$work/out" 2>&1 && fail "each_test.py overlooked a missing program"
says "$work/out" "no list of test cases: $work/nothing cannot be started: No such file or directory"
scripts/bench/each_test.py --under "$work/nothing --tool x" "$build/test/cuda/test_cuda" >"$work/out" 2>&1 && fail "each_test.py --under"
says "$work/out" "FAILED ($work/nothing cannot be started: No such file or directory)  sums [all]"

# Against PyTorch, of which the last line is made up; mtrain really trains, and its operations are there.
tiny=(model.num_layers=1 model.hidden_size=64 model.num_attention_heads=4 model.num_query_groups=2 model.ffn_hidden_size=128
  model.vocab_size=512 dataset.seq_length=64 train.global_batch_size=4 train.micro_batch_size=4 train.threads=1)
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

# Where PyTorch fails, what mtrain did is kept, and the next model has its chance.
stub "$work/bin/torch" 'echo "no such thing as a GPU" >&2; exit 1'
PATH=$work/bin:$PATH python3 scripts/bench/compare_gpu.py --build "$build" --models gpu_1b gpu_7b --python "$work/bin/torch" \
  --device cpu --steps 2 --warmup 1 --seconds 100 --output "$work/compare" "${tiny[@]}" >"$work/out" 2>&1 && fail "a failure was overlooked"
python3 - "$work/compare.json" >>"$work/out" 2>&1 <<'PYTHON' || fail "compare.json of a failure"
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert "no such thing" in row["failed"] and row["mtrain"]["tokens_per_s"] > 0, row
PYTHON
says "$work/compare_gpu_7b_PyTorch.log" "no such thing as a GPU"

# Ranks that are started as those that share a GPU.
scripts/bench/layouts.py --build "$(dirname "$mtrain")/../.." --share --steps 3 --only megatron_ddp --output "$work/layouts" \
  >"$work/out" 2>&1 || fail "layouts.py --share: exit code $?"
says "$work/layouts.md" "| megatron_ddp, sharing | 2 | fp32 |"
# One training may take too long, which fails; the time of all is spent, which does not.
scripts/bench/layouts.py --build "$(dirname "$mtrain")/../.." --only megatron_ddp --each 0.01 >"$work/out" 2>&1 && fail "layouts.py --each"
says "$work/out" "the limit of 0.01 s"
scripts/bench/layouts.py --build "$(dirname "$mtrain")/../.." --only megatron_ddp --seconds 0 >"$work/out" 2>&1 ||
  fail "layouts.py --seconds: exit code $?"
says "$work/out" "2 cases, 0 failed, 2 not run"

((failures == 0)) && echo "all well"
exit $((failures > 0))
