#!/usr/bin/env bash
# Compares the training speed of two builds in alternating pairs of runs, so that both meet the machine in the same
# state. Prints medians of tokens/s and the spread of the pairs' ratios.
#   scripts/bench/compare_builds.sh <before: build folder> <after: build folder> [pairs] [recipe] [setting...]
#     pairs     10
#     recipe    recipes/bench/llama_28m.yaml
# Environment variables with the prefix BEFORE_ or AFTER_ are set, without the prefix, for that build alone.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
(($# >= 2)) || die "two build folders, as in  scripts/bench/compare_builds.sh build/before build/release"
before=$(realpath "$1") after=$(realpath "$2") pairs=${3:-10} recipe=${4:-recipes/bench/llama_28m.yaml}
shift $(($# < 4 ? $# : 4))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mtrain_of() {
  local place
  place=$(program_path mtrain "$1")
  [[ -x $place ]] || die "$1 has no mtrain"
  echo "$place"
}
seq 1 200000 >"$work/text"
"$(mtrain_of "$after")" data build --input "$work/text" --output "$work/set" >/dev/null

# speed <build folder> <prefix> <setting...>: prints the median tokens/s of all steps but the first three
speed() {
  local build=$1 prefix=$2 name
  shift 2
  local -a variables=()
  for name in $(compgen -e "$prefix"); do variables+=("${name#"$prefix"}=${!name}"); done
  rm -rf "$work/run"
  env "${variables[@]}" "$(mtrain_of "$build")" --recipe "$recipe" "dataset.train=$work/set" dataset.validation=none \
    "train.run_dir=$work/run" train.log_every=1000 checkpoint.at_end=false "$@" >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    die "training failed"
  }
  sed -n 's/.*"tokens_per_s":\([0-9.e+-]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n +4 | sort -g |
    awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

for ((pair = 1; pair <= pairs; pair++)); do
  # The build that runs first changes from pair to pair.
  if ((pair % 2)); then
    a=$(speed "$before" BEFORE_ "$@") b=$(speed "$after" AFTER_ "$@")
  else
    b=$(speed "$after" AFTER_ "$@") a=$(speed "$before" BEFORE_ "$@")
  fi
  echo "$a $b"
done | awk -v recipe="$recipe $*" '
  { a[NR] = $1; b[NR] = $2; r[NR] = $2 / $1 }
  function median(v, n,  i, j, t) {
    for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] < v[i]) { t = v[i]; v[i] = v[j]; v[j] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  END {
    m = median(r, NR)
    printf "%s: before %.0f tokens/s, after %.0f, after / before %.3f (%d pairs: %.3f to %.3f)\n", recipe, median(a, NR), median(b, NR), m, NR, r[1], r[NR]
  }'
