#!/usr/bin/env bash
# Installs the Debian packages that are needed to build mtrain, if they are missing.
#   scripts/install-deps.sh [--tests] [--check] [--corpus] [--gpu] [--cudnn-frontend] [--package] [--fuzz]
#     --tests   also installs what the tests need (Catch2)
#     --check   also installs what scripts/check.sh needs (clang-format, clang-tidy, python3)
#     --corpus  also installs the text that scripts/quickstart.sh trains on
#     --gpu     also installs what scripts/carry_build.sh and scripts/gpu_suite.sh need (patchelf, python3, Catch2). nvcc
#               and the headers of NCCL and cuDNN come from NVIDIA's packages, which this script leaves to you.
#     --cudnn-frontend
#               fetches the headers of cuDNN's C++ frontend from PyPI (python3 with pip) into ~/.cache/mtrain, which builds
#               with CUDA use. Without them, attention on GPUs is computed by mtrain's own kernels. --gpu does this, too.
#     --fuzz    also installs what the fuzz targets need (clang with its runtime)
#     --package also installs what cpack needs to make a Debian package (file, dpkg-shlibdeps)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need_frontend=0 need_tests=0 need_check=0 need_corpus=0 need_gpu=0 need_package=0 need_fuzz=0
for option in "$@"; do
  case $option in
    --tests) need_tests=1 ;;
    --check) need_check=1 ;;
    --corpus) need_corpus=1 ;;
    --gpu) need_gpu=1 need_tests=1 need_frontend=1 ;;
    --cudnn-frontend) need_frontend=1 ;;
    --package) need_package=1 ;;
    --fuzz) need_fuzz=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $option; the options are --tests, --check, --corpus, --gpu, --cudnn-frontend, --package and --fuzz" ;;
  esac
done

# The wheel is one file for all: its headers do not depend on the version of Python. It is pinned by its contents.
frontend_wheel=nvidia_cudnn_frontend-1.32.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl
frontend_sha256=c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
frontend_folder=${XDG_CACHE_HOME:-$HOME/.cache}/mtrain/cudnn-frontend
fetch_frontend() {
  grep -qs 'CUDNN_FRONTEND_MINOR_VERSION 32$' "$frontend_folder/include/cudnn_frontend_version.h" && return 0
  local work
  work=$(mktemp -d)
  say "fetching the headers of cudnn-frontend 1.32.0"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 --dest "$work" nvidia-cudnn-frontend==1.32.0; then
    rm -rf "$work"
    die "PyPI cannot be reached, or python3 lacks pip; builds without these headers compute attention by mtrain's own kernels"
  fi
  if ! (cd "$work" && sha256sum --check --status <<<"$frontend_sha256  $frontend_wheel"); then
    rm -rf "$work"
    die "PyPI's $frontend_wheel is not the file that mtrain was tested with"
  fi
  mkdir -p "$frontend_folder"
  python3 - "$work/$frontend_wheel" "$frontend_folder" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith("include/")])
END
  rm -rf "$work"
}
if ((need_frontend)); then fetch_frontend; fi

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
if ((need_corpus)); then need_program bible bible-kjv; fi
if ((need_gpu)); then
  need_program patchelf patchelf
  need_program python3 python3
fi
if ((need_package)); then
  need_program file file
  need_program dpkg-shlibdeps dpkg-dev
fi

# The libraries are those that CMake asks for: mtrain_need(<package> <Debian package>), mtrain_need_pc(... <Debian package>).
mapfile -t libraries < <(grep -hE '^ *mtrain_need(_pc)?\(' scripts/cmake/*.cmake lib/*/CMakeLists.txt kernels/CMakeLists.txt |
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
