#!/usr/bin/env bash
# Packs the programs of the GPU suite for a machine that has a GPU, CUDA and PyTorch, but no network and none of the
# libraries that mtrain is built with. Nothing is built there; one archive is all that must be copied.
#   scripts/carry_build.sh [--build build/release] [--output build/carry] [--no-build]
#     --no-build   packs the programs that the build folder has, and builds nothing
# Then, with the tree and the output folder copied to the other machine:
#   scripts/gpu_suite.sh --build build/carry --output <a folder that is copied back>
# The archive holds the programs where a build folder has them (bin/mtrain, test/cuda/test_cuda, ...), stripped,
# and in lib/ the shared libraries that they need, found through an RPATH relative to the program. It leaves out what
# every Linux with CUDA has: glibc and libstdc++, no older than this machine's, and libcuda of the driver; cuBLASLt,
# cuDNN and NCCL are loaded at run time from the other machine's CUDA or PyTorch. The script checks the archive in a
# root folder that has nothing else but glibc and libstdc++: each program starts there, and mtrain trains two steps.
# Needs patchelf (scripts/install-deps.sh --gpu), and root or user namespaces for that check.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build_folder=build/release output=build/carry make=1
while (($#)); do
  case $1 in
    --build) build_folder=${2:-} && shift 2 ;;
    --output) output=${2:-} && shift 2 ;;
    --no-build) make=0 && shift ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $1" ;;
  esac
done
limit_mib=55 # the most that is copied to a borrowed machine at once, with room for the sources
programs=(bin/mtrain bin/mtrain-launch test/cuda/test_cuda test/cuda/test_cuda_training
  scripts/bench/bench_cuda)
command -v patchelf >/dev/null || die "patchelf is missing; run scripts/install-deps.sh --gpu"
if ((make)); then
  # scripts/quickstart.sh may have left CUDA and the tests out when it configured this folder.
  [[ $build_folder != build/release ]] || cmake --preset release -DMTRAIN_CUDA=ON -DMTRAIN_TESTS=ON -DMTRAIN_CPU_KERNELS=ALL >/dev/null ||
    die "the release preset cannot be configured with CUDA and tests"
  cmake --build "$build_folder" -j "$(build_jobs)" --target "${programs[@]##*/}" >/dev/null || die "the build failed"
fi
for program in "${programs[@]}"; do
  [[ -x $build_folder/$program ]] || die "$build_folder/$program is not built: it needs nvcc, and the target ${program##*/}"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packed=$work/root/carry
mkdir -p "$packed/lib"

# Libraries that the other machine provides, by the beginning of their names.
theirs='^(ld-linux[^.]*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libstdc\+\+|libgcc_s|libcuda|libcublas|libcublasLt|libcudnn.*|libnccl|libnvrtc.*)\.so'
# needed <file>: prints the paths of the libraries that the file loads, directly or indirectly, one per line
needed() {
  local missing
  missing=$(ldd "$1" | grep 'not found' || true)
  [[ -z $missing ]] || die "$1 does not run here: $missing"
  ldd "$1" | awk '$2 == "=>" { print $3 }'
}
pack_programs() {
  local program library name up
  for program in "${programs[@]}"; do
    mkdir -p "$packed/${program%/*}"
    strip -s -o "$packed/$program" "$build_folder/$program"
    up=${program%/*}
    patchelf --force-rpath --set-rpath "\$ORIGIN/$(sed -E 's#[^/]+#..#g' <<<"$up")/lib" "$packed/$program"
    while read -r library; do
      name=${library##*/}
      [[ ! $name =~ $theirs && ! -e $packed/lib/$name ]] || continue
      strip -s -o "$packed/lib/$name" "$(realpath "$library")"
      patchelf --force-rpath --set-rpath '$ORIGIN' "$packed/lib/$name"
    done < <(needed "$build_folder/$program")
  done
  { git describe --always --dirty 2>/dev/null || echo 'no commit'; } >"$packed/commit"
}

# Makes a root folder with the packed files, glibc and libstdc++, and nothing else.
make_root() {
  local library
  for program in "${programs[@]}"; do ldd "$build_folder/$program"; done |
    grep -oE '/[^ ]+' | sort -u | while read -r library; do
    [[ ${library##*/} =~ $theirs && ! ${library##*/} =~ ^lib(cu|nccl|nvrtc) ]] || continue
    mkdir -p "$work/root${library%/*}"
    cp -L "$library" "$work/root$library"
  done
  mkdir -p "$work/root/tmp" "$work/root/proc" "$work/root/recipes"
  cp recipes/quickstart.yaml "$work/root/recipes"
  seq 1 3000 >"$work/root/text"
}
# inside <program> <argument>...: runs it in that root, its output in $work/said. $ORIGIN needs /proc.
inside() {
  local chroot
  local -a enter=(unshare --mount --pid --fork --mount-proc="$work/root/proc")
  chroot=$(PATH=$PATH:/usr/sbin command -v chroot)
  ((EUID == 0)) || enter+=(--map-root-user)
  env -i PATH="$PATH" "${enter[@]}" "$chroot" "$work/root" "/carry/$@" >"$work/said" 2>&1
}
# expect <text> <program> <argument>...: requires that the program starts and prints the text, whatever its exit code
expect() {
  local text=$1
  shift
  inside "$@" || true
  grep -qF -- "$text" "$work/said" || {
    cat "$work/said" >&2
    die "$1 does not run from the packed files alone: its output lacks: $text"
  }
}
check_packed() {
  make_root
  expect "cuda  runtime" bin/mtrain --version
  expect "nproc_per_node" bin/mtrain-launch --help
  expect "norms" test/cuda/test_cuda --list-tests
  expect "test case" test/cuda/test_cuda_training --list-tests
  expect "" scripts/bench/bench_cuda 1
  ! grep -q 'shared libraries' "$work/said" || die "bench_cuda lacks a library: $(cat "$work/said")"
  inside bin/mtrain data build --input /text --output /set || die "building a data set failed: $(cat "$work/said")"
  expect "step 2/2" bin/mtrain --recipe /recipes/quickstart.yaml dataset.train=/set dataset.validation=none \
    train.steps=2 train.run_dir=/tmp/run train.device=cpu train.threads=1 train.global_batch_size=8 \
    lr_scheduler.warmup_steps=0 validation.every_steps=0
}

phase "packing" pack_programs
phase "check without this machine's libraries" check_packed
rm -rf "$output"
mkdir -p "$output"
# Reproducible: the same files give the same archive.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$packed" -c . | gzip -9n >"$output/carry.tar.gz"
cp "$packed/commit" "$output/commit"
size=$(du -sm "$output" | cut -f1)
((size <= limit_mib)) || die "$output has $size MiB: more than $limit_mib"
say "run there: scripts/gpu_suite.sh --build $output --output <a folder that is copied back>"
say "$output: $size MiB for $(du -sm "$packed" | cut -f1) MiB of programs and libraries, commit $(cat "$output/commit")"
