# Stand-ins with which the GPU suite runs on a machine without a GPU: nvidia-smi, compute-sanitizer, ncu, PyTorch, the
# libraries of CUDA, and the programs that need a GPU. mtrain is the real one, on the CPU. The tests beside this file source
# it; `work` is their folder, and `mtrain` the real program.

# stub <path> <text of a shell script>
stub() {
  mkdir -p "${1%/*}"
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
# tests <path> <text of a shell script that runs the case "$1">: a program of two test cases
tests() {
  stub "$1" 'if [[ $1 == --list-test-names-only ]]; then printf "norms, of rows\nsums [all]\n"; exit 2; fi
  '"$2"
}
# mtrain_stub <text of a shell script that sees the settings>: mtrain, on the CPU and with what only a GPU understands left
# out
mtrain_stub() {
  stub "$build/bin/mtrain" 'unset LD_LIBRARY_PATH
if [[ $* == --version ]]; then echo "mtrain 0  cuda  runtime 13.0.88"; exit; fi
'"$1"'
arguments=()
for argument in "$@"; do
  case $argument in
    train.device=cuda) arguments+=(train.device=cpu) ;;
    debug.own_attention=* | debug.own_grouped_gemm=*) ;;
    mixed_precision.fp8=*) arguments+=("$argument" debug.emulate_fp8=true) ;;
    *) arguments+=("$argument") ;;
  esac
done
exec '"$mtrain"' "${arguments[@]}"'
}
# torch_stub <text of a shell script>: what stands for torch_train.py; other scripts are left to the real python3
torch_stub() {
  stub "$work/bin/python3" 'case "$*" in
  *torch_train.py*) '"$1"' ;;
  *"import torch"*) echo "2.11.0 13.0 NVIDIA H200 262144.0" ;;
  *) exec '"$(python3 -c 'import sys; print(sys.executable)')"' "$@" ;;
esac'
}
torch_result='sleep 0.6; echo "{\"torch\": \"0\", \"attention\": \"FLASH\", \"attention_ms\": {}, \"parameters\": 1, \"step_ms\": [1000, 1000],
  \"losses\": [5.0], \"memory_allocated\": 1048576, \"operations\": [[\"gemm\", 2.0, \"matmul\"]], \"operations_ms\": 2.0}" | tr -d "\n"'
# library <file> <function> <statement>
library() {
  mkdir -p "$work/lib"
  printf '#include <stddef.h>\n%s' "$2" | cc -shared -fPIC -o "$work/lib/$1" -x c - || fail "no stand-in for $1"
}
grouped='printf "copy of 1 GiB  500.0 us  4295 GB/s\n--- experts of Qwen3-30B-A3B, bf16 and 8 bits, 8192 tokens\ngate_up, forward  500.0 us  300 TFLOP/s\ngate_up, forward, CUTLASS  300.0 us  580 TFLOP/s\ndown, of the weight, CUTLASS  300.0 us  480 TFLOP/s\n"'
speeds='if [[ $2 == experts ]]; then '"$grouped"'; exit; fi
printf "copy of 1 GiB  500.0 us  4295 GB/s\n--- 1.5B, bf16, 8192 tokens\nadd  10.0 us  3000 GB/s   70.0 %% of a copy\n"'
# make_stand_ins [tool of compute-sanitizer that finds something]
make_stand_ins() {
  build=$work/build
  stub "$work/bin/nvidia-smi" 'case "$*" in
    -L) echo "GPU 0: NVIDIA H200 (UUID: stand-in)" ;;
    *clocks.sm*) while kill -0 $PPID 2>/dev/null; do date "+%Y/%m/%d %H:%M:%S.000, 1980, 650.5, 61, 98, 3201, 4096"; sleep 0.2; done ;;
    *query-gpu=memory.total*) echo "${GPU_MIB:-143771}" ;;
    *memory.used*) echo 500; sleep 0.1; for i in $(seq 100); do echo 4596; sleep 0.1; done ;;
    *) echo "NVIDIA H200, 580.0, 143771 MiB" ;;
  esac'
  # Runs the program, like the real one.
  stub "$work/bin/compute-sanitizer" 'tool=$2; while [[ $1 == --* ]]; do shift 2; done; "$@" || exit; [[ $tool != '"${1:-none}"' ]]'
  stub "$work/bin/ncu" 'while [[ $1 == -* ]]; do
    case $1 in
      --csv) shift ;;
      --log-file) log=$2 && shift 2 ;;
      *) shift 2 ;;
    esac
  done
  "$@" || exit
  cat >"$log" <<CSV
==PROF== Connected to process 1 (mtrain)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","mtrain","127.0.0.1","nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","12,345"
"1","1","mtrain","127.0.0.1","void (anonymous namespace)::norm_forward<bf16, 4>(Args)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","3,456"
"2","1","mtrain","127.0.0.1","cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","45,000"
CSV'
  library libcublasLt.so.13 'size_t cublasLtGetVersion(void) { return 130100; }'
  library libcudnn.so.9 'size_t cudnnGetVersion(void) { return 91900; }'
  library libnccl.so.2 'int ncclGetVersion(int* version) { *version = 22809; return 0; }'
  torch_stub "$torch_result"
  tests "$build/test/cuda/test_cuda" 'echo "All tests passed: $1"'
  tests "$build/test/cuda/test_cuda_training" 'echo "All tests passed: $1"'
  stub "$build/scripts/bench/bench_cuda" "$speeds"
  mtrain_stub ''
  stub "$build/bin/mtrain-launch" "exec $(dirname "$mtrain")/mtrain-launch \"\$@\""
}
# suite <exit code> <argument>...: with the stand-ins first on PATH
suite() {
  local code=$1 got=0
  shift
  PATH=$work/bin:$PATH LD_LIBRARY_PATH=$work/lib scripts/gpu_suite.sh --output "$work/result" --build "$build" "$@" >"$work/out" 2>&1 || got=$?
  ((got == code)) || fail "$*: exit code $got instead of $code"
}
says() { grep -qF -- "$2" "$1" || fail "${1##*/} does not say: $2"; }
matches() { grep -qE -- "$2" "$1" || fail "${1##*/} has no line of this form: $2"; }
lacks() { ! grep -qF -- "$2" "$1" || fail "${1##*/} says: $2"; }
failures=0
fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$work/out"
  failures=$((failures + 1))
}
# Settings with which a model of recipes/bench is trained within a second.
tiny=(model.num_layers=1 model.hidden_size=64 model.num_attention_heads=4 model.num_query_groups=2 model.ffn_hidden_size=128
  model.vocab_size=512 dataset.seq_length=64 train.global_batch_size=16 train.micro_batch_size=4 train.threads=1)
