#!/usr/bin/env bash
# Tests the rows of compare_gpu.py in fp8, on a CPU that computes 8-bit GEMMs as a GPU does, with a stand-in for PyTorch;
# and the table of the kernels' speed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
mtrain=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/torch" <<'STUB'
#!/usr/bin/env bash
echo run >>"$(dirname "$0")/torch_runs"
echo "{\"torch\": \"0\", \"attention\": \"FLASH\", \"attention_ms\": {}, \"parameters\": 1, \"step_ms\": [1000, 1000], \"losses\": [5.0], \"memory_allocated\": 1048576, \"operations\": [], \"operations_ms\": 2.0}"
STUB
chmod +x "$work/torch"
tiny=(model.num_layers=1 model.hidden_size=64 model.num_attention_heads=4 model.num_query_groups=2 model.ffn_hidden_size=128
  model.vocab_size=512 dataset.seq_length=64 train.global_batch_size=4 train.micro_batch_size=4 train.threads=1 debug.emulate_fp8=true)
compare() {
  python3 scripts/bench/compare_gpu.py --build "$(dirname "$mtrain")/.." --python "$work/torch" --device cpu --steps 2 --warmup 1 \
    --seconds 100 --output "$work/compare" "$@" "${tiny[@]}" >"$work/out" 2>&1
}
fail() {
  echo "FAILED: $1"
  cat "$work/out"
  exit 1
}
compare --models gpu_1b:fp8 gpu_7b:fp8 || fail "exit code $?"
python3 - "$work/compare.json" >>"$work/out" 2>&1 <<'PYTHON' || fail "compare.json"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [r["model"] for r in rows] == ["gpu_1b:fp8", "gpu_7b:fp8"], rows
for r in rows:
    assert r["mtrain"]["tokens_per_s"] > 0 and r["notes"] == ["mtrain in fp8, PyTorch in bf16"], r
    assert "quantize" in {name for name, _, _ in r["mtrain"]["operations"]}, r["mtrain"]["operations"]
PYTHON
grep -qF "| gpu_1b:fp8 | 4 x 64, 4 |" "$work/compare.md" || fail "compare.md"
! grep "^| gpu_1b:fp8" "$work/compare.md" | grep -qF ", short" || fail "a target for fp8"
[[ -f $work/compare_gpu_1b_fp8_mtrain.log ]] || fail "no log"

# Both rows use PyTorch's figures of the same model.
rm "$work/torch_runs"
compare --models gpu_1b:fp8 gpu_1b:fp8 || fail "twice: exit code $?"
(($(wc -l <"$work/torch_runs") == 1)) || fail "PyTorch ran for each row"

compare --models gpu_1b:int4 && fail "another variant was taken"
grep -qF "the variants of a model are fp8" "$work/out" || fail "the variants are not named"

# The report of the kernels' speed says what computed attention.
mkdir "$work/logs"
printf -- '--- 8B, bf16, 8192 tokens\nattention S 1024, backward, fixed order    10.0 us      300 TFLOP/s  (cuDNN, engine 1)\nadd   10.0 us  3000 GB/s   70.0 %% of a copy\n' \
  >"$work/logs/speed_of_the_kernels.log"
scripts/bench/gpu_report.py --logs "$work/logs" --commit abc --device cuda --output "$work/summary" >"$work/out" 2>&1 || fail "gpu_report.py"
grep -qF "| attention S 1024, backward, fixed order | 10.0 | 300 TFLOP/s |  | cuDNN, engine 1 |" "$work/summary.md" || fail "the engine is not reported"
grep -qF "| add | 10.0 | 3000 GB/s | 70.0 %, short |  |" "$work/summary.md" || fail "a copy's share"
echo "all well"
