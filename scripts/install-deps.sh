#!/usr/bin/env bash
# Installs the Debian packages that are needed to build mtrain, if they are missing.
#   scripts/install-deps.sh [--tests] [--check] [--corpus] [--gpu] [--cudnn-frontend] [--cutlass] [--package] [--fuzz]
#     --tests   also installs what the tests need (Catch2, etcd)
#     --check   also installs what scripts/check.sh needs (clang-format, clang-tidy, python3)
#     --corpus  also installs the text that scripts/quickstart.sh trains on
#     --gpu     also installs what scripts/carry_build.sh and scripts/gpu_suite.sh need (patchelf, python3, Catch2). nvcc
#               and the headers of NCCL and cuDNN come from NVIDIA's packages, which this script leaves to you.
#     --cudnn-frontend
#               fetches the headers of cuDNN's C++ frontend from PyPI (python3 with pip) into ~/.cache/mtrain, which builds
#               with CUDA use. Without them, attention on GPUs is computed by mtrain's own kernels. --gpu does this, too.
#     --cutlass fetches the headers of CUTLASS from PyPI likewise. Without them, the GEMMs of experts are computed by mtrain's
#               own kernels. --gpu does this, too.
#     --fuzz    also installs what the fuzz targets need (clang with its runtime)
#     --package also installs what cpack needs to make a Debian package (file, dpkg-shlibdeps)
# The exit code is 3 if PyPI cannot be reached, and 1 after other failures.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need_frontend=0 need_cutlass=0 need_tests=0 need_check=0 need_corpus=0 need_gpu=0 need_package=0 need_fuzz=0
for option in "$@"; do
  case $option in
    --tests) need_tests=1 ;;
    --check) need_check=1 ;;
    --corpus) need_corpus=1 ;;
    --gpu) need_gpu=1 need_tests=1 need_frontend=1 need_cutlass=1 ;;
    --cudnn-frontend) need_frontend=1 ;;
    --cutlass) need_cutlass=1 ;;
    --package) need_package=1 ;;
    --fuzz) need_fuzz=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $option; the options are --tests, --check, --corpus, --gpu, --cudnn-frontend, --cutlass, --package and --fuzz" ;;
  esac
done

# fetch_headers <folder> <wheel> <sha256> <prefix of the headers in the wheel> <what lacks them> <arguments of pip>...
# Wheels are pinned by their contents. Their headers do not depend on the version of Python.
headers=${XDG_CACHE_HOME:-$HOME/.cache}/mtrain
fetch_headers() {
  local folder=$headers/$1 wheel=$2 sha256=$3 prefix=$4 without=$5 work
  shift 5
  work=$(mktemp -d)
  say "fetching the headers of $wheel"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work" "$@"; then
    rm -rf "$work"
    (die "PyPI cannot be reached, or python3 lacks pip; builds without these headers compute $without by mtrain's own kernels") || exit 3
  fi
  if ! (cd "$work" && sha256sum --check --status <<<"$sha256  $wheel"); then
    rm -rf "$work"
    die "PyPI's $wheel is not the file that mtrain was tested with"
  fi
  mkdir -p "$folder"
  python3 - "$work/$wheel" "$folder" "$prefix" <<'END'
import os, sys, zipfile
wheel, folder, prefix = sys.argv[1:]
with zipfile.ZipFile(wheel) as files:
    for name in files.namelist():
        if name.startswith(prefix + "include/") and not name.endswith("/"):
            path = os.path.join(folder, name[len(prefix):])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(files.read(name))
END
  rm -rf "$work"
}
fetch_frontend() {
  grep -qs 'CUDNN_FRONTEND_MINOR_VERSION 32$' "$headers/cudnn-frontend/include/cudnn_frontend_version.h" && return 0
  fetch_headers cudnn-frontend nvidia_cudnn_frontend-1.32.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl \
    c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0 '' attention --python-version 3.11 \
    --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 nvidia-cudnn-frontend==1.32.0
}
fetch_cutlass() {
  [[ $(grep -sE 'define CUTLASS_(MAJOR|MINOR) ' "$headers/cutlass/include/cutlass/version.h" | tr -cd 0-9) != 42 ]] || return 0
  fetch_headers cutlass nvidia_cutlass-4.2.0.0-py3-none-any.whl \
    f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6 cutlass_library/source/ 'the GEMMs of experts' \
    nvidia-cutlass==4.2.0.0
}
if ((need_frontend)); then fetch_frontend; fi
if ((need_cutlass)); then fetch_cutlass; fi

missing=()
# A program may come from anywhere; a library must be a package, since its headers and CMake files are needed.
need_program() { command -v "$1" >/dev/null || missing+=("$2"); }
need_program g++ g++
need_program cmake cmake
need_program ninja ninja-build
need_program pkg-config pkg-config
need_program ccache ccache
if ((need_check)); then
  need_program clang-format clang-format
  need_program clang-tidy clang-tidy
  need_program python3 python3
fi
if ((need_fuzz)); then need_program clang++ clang; fi
if ((need_tests)); then need_program etcd etcd-server; fi
if ((need_corpus)); then need_program bible bible-kjv; fi
if ((need_gpu)); then
  need_program patchelf patchelf
  need_program python3 python3
fi
if ((need_package)); then
  need_program file file
  need_program dpkg-shlibdeps dpkg-dev
fi

# The libraries are those that CMake asks for: mtrain_need(<package> <Debian package>), mtrain_need_pc(... <Debian package>),
# and what else it asks for likewise.
mapfile -t libraries < <(grep -hE '^ *mtrain_need(_[a-z]+)?\(' scripts/cmake/*.cmake lib/*/CMakeLists.txt kernels/CMakeLists.txt |
  sed 's/).*//; s/.* //' | sort -u)
((${#libraries[@]} > 0)) || die "found no mtrain_need(...) in the CMake files"
if ((!need_tests)); then mapfile -t libraries < <(printf '%s\n' "${libraries[@]}" | grep -vx catch2); fi
installed=
if command -v dpkg-query >/dev/null; then
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${libraries[@]}" 2>/dev/null || true)
fi
for library in "${libraries[@]}"; do
  [[ $'\n'$installed$'\n' == *$'\n'"installed $library"$'\n'* ]] || missing+=("$library")
done

if ((${#missing[@]} == 0)); then
  say "all packages are installed"
  exit 0
fi

by_hand="install by hand: ${missing[*]}"
command -v apt-get >/dev/null || die "this is not a Debian system (no apt-get); $by_hand"
as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || die "not root and no sudo here; as root, run  apt-get install ${missing[*]}"
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 "$@" \
    >"$log" 2>&1
}
install_missing() { apt install --no-install-recommends "${missing[@]}"; }

say "installing: ${missing[*]}"
# The package lists may be absent or too old for what the mirror still holds: fetch them only if needed.
if ! install_missing; then
  apt update || true
  if ! install_missing; then
    tail -n 5 "$log" >&2
    if grep -qE 'Temporary failure|Could not (resolve|connect)|Unable to (fetch|locate)' "$log"; then
      die "no package mirror can be reached, or it lacks a package; check the network, or $by_hand"
    fi
    die "apt-get could not install the packages (its last lines are above); $by_hand"
  fi
fi
say "installed ${#missing[@]} packages"
