#!/usr/bin/env bash
# Prints registers, stack, shared memory and tensor-core instructions of every CUDA kernel, and fails if one spills or
# lacks the instructions that it should have. Needs nvcc or the objects of a CUDA build, and cuobjdump, but no GPU.
#   scripts/check_sass.sh [--arch sm_90a] [--all] [kernels/cuda/<file>.cu...]    compiles these files, or all of them
#   scripts/check_sass.sh [--arch sm_90a] [--all] --built build/release          reads the objects of a build
#     --all   a row for each instance of a kernel; otherwise one row for each kernel, with its largest figures
# cuobjdump is searched in $CUOBJDUMP, PATH and /usr/local/cuda/bin. It comes with the CUDA Toolkit, and alone as
#   pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm    (both are in <site-packages>/nvidia/cu13/bin)
# cuobjdump -sass needs nvdisasm: in PATH, beside cuobjdump, or $NVDISASM_PATH. The sources of CUTLASS are compiled if its
# headers are there (scripts/install-deps.sh --cutlass), for sm_90a alone, after the others: each takes up to 4 GB.
# scripts/sass_table.py has the list of kernels that may spill, and of those that must use tensor cores.
called_from=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

arch=sm_90a built='' options=() sources=()
while (($# > 0)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --arch) arch=${2:?--arch needs a name such as sm_90a} && shift ;;
    --built) built=$(cd "$called_from" && realpath "${2:?--built needs a folder}") && shift ;;
    --all) options+=(--all) ;;
    -*) die "unknown option $1; --help lists the options" ;;
    *) sources+=("$(cd "$called_from" && realpath --relative-to="$OLDPWD" "$1")") ;;
  esac
  shift
done

find_tool() {
  local path
  for path in "${2:-}" "$(command -v "$1" || true)" "/usr/local/cuda/bin/$1"; do
    if [[ -n $path && -x $path ]]; then echo "$path" && return; fi
  done
  die "$1 was not found; --help says where it comes from"
}
cuobjdump=$(find_tool cuobjdump "${CUOBJDUMP:-}")
PATH=$(dirname "$cuobjdump"):$PATH

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ -n $built ]]; then
  mapfile -t objects < <(find "$built" -name '*.cu.o' | sort)
  ((${#objects[@]} > 0)) || die "$built has no objects of CUDA sources: was it configured with -DMTRAIN_CUDA=ON?"
else
  nvcc=$(find_tool nvcc "${NVCC:-}")
  cutlass=${XDG_CACHE_HOME:-$HOME/.cache}/mtrain/cutlass/include
  if ((${#sources[@]} == 0)); then
    sources=(kernels/cuda/*.cu)
    if [[ $arch == sm_90a && -e $cutlass/cutlass/version.h ]]; then sources+=(kernels/cuda/cutlass/*.cu); fi
  fi
  # compile <jobs> <source>...
  compile() {
    (($# > 1)) || return 0
    printf '%s\0' "${@:2}" | xargs -0 -n 1 -P "$1" bash -c '
      "$1" -std=c++20 -O3 -DNDEBUG -cubin -arch="$2" -I. -Ilib -isystem "$4" -o "$3/$(basename "$5" .cu).cubin" "$5"' \
      compile "$nvcc" "$arch" "$folder" "$cutlass" || die "a source does not compile for $arch"
  }
  large=() small=()
  for source in "${sources[@]}"; do
    if [[ $source == kernels/cuda/cutlass/* ]]; then large+=("$source"); else small+=("$source"); fi
  done
  compile "$(build_jobs)" "${small[@]}"
  compile 1 "${large[@]}"
  objects=("$folder"/*.cubin)
fi
for object in "${objects[@]}"; do
  "$cuobjdump" -arch "$arch" -res-usage "$object" || die "cuobjdump failed for $object"
  "$cuobjdump" -arch "$arch" -sass "$object" || die "cuobjdump failed for $object"
done >"$folder/dump"
python3 -B scripts/sass_table.py "$arch" "$folder/dump" "${options[@]}"
