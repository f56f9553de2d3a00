#!/usr/bin/env bash
# Compares mtrain's tokenizers with the tokenizers library: 100,000 random strings of many scripts for each layout of a
# real family, 10,000 for each further feature, every code point, and random ids to decode. Any difference is a failure.
#   scripts/check_tokenizers.sh [--python PYTHON] [--build DIR] [--strings N] [--feature-strings N] [--seed N]
#     --python  a Python with the PyPI package tokenizers in the version that scripts/golden/tokenizer_layouts.py names;
#               default: python3
#     --build   a configured build folder, in which bench_tokenizer is built; default: build/release
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python=python3 build=build/release arguments=()
while (($#)); do
  case $1 in
    --python) python=${2:?} && shift 2 ;;
    --build) build=${2:?} && shift 2 ;;
    --strings | --feature-strings | --seed) arguments+=("$1" "${2:?}") && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $1" ;;
  esac
done
"$python" -c 'import tokenizers' 2>/dev/null ||
  die "$python has no package tokenizers; in a virtual environment: pip install tokenizers"
[[ -f $build/CMakeCache.txt ]] || die "$build is not configured; run cmake --preset release"
cmake --build "$build" --target bench_tokenizer
"$python" -B scripts/golden/tokenizer_layouts.py --check "$build/scripts/bench/bench_tokenizer" "${arguments[@]}"
