#!/usr/bin/env bash
# Checks format, layers, pages, prose, clang-tidy and other rules that no compiler knows. Changes nothing in the tree.
#   scripts/check.sh [--all]
#     --all   clang-tidy over all files of lib and apps, not only over those that scripts/tidy_record does not list
# Findings of clang-format 14 and clang-tidy 14 (Debian 12) are failures. Findings of other versions may differ, so
# they are only printed. clang-tidy reads how sources are compiled in build/tidy, which the script configures.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tidy=()
case ${1:-} in
  -h | --help) usage && exit 0 ;;
  --all) tidy=(--all) ;;
  '') ;;
  *) die "unknown option $1; the option is --all" ;;
esac
command -v python3 >/dev/null || die "python3 is missing; run scripts/install-deps.sh --check"
formatter=$(command -v clang-format-14 || command -v clang-format) ||
  die "clang-format is missing; run scripts/install-deps.sh --check"

command -v clang-tidy >/dev/null || die "clang-tidy is missing; run scripts/install-deps.sh --check"

failed=()
check_format() {
  local version files
  version=$("$formatter" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
  mapfile -d '' files < <(python3 -B -c '
import sys
sys.path.insert(0, "scripts")
from check_files import Tree
print(*Tree(".").cpp(), sep="\0", end="\0")')
  ((${#files[@]} > 0)) && [[ -n ${files[0]} ]] || {
    say "format: no files found"
    return 1
  }
  if printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" "$formatter" --dry-run --Werror 2>&1; then
    say "format: ${#files[@]} files, clang-format $version"
  elif [[ $version == 14 ]]; then
    say "format: run  $formatter -i  on these files"
    return 1
  else
    say "format: this is clang-format $version and not 14, so the findings above may be wrong"
  fi
}

check_format || failed+=(format)
python3 -B scripts/check_layers.py || failed+=(layers)
python3 -B scripts/check_source.py || failed+=(source)
python3 -B scripts/check_docs.py || failed+=(docs)
python3 -B scripts/check_prose.py || failed+=(prose)
# Where CI's time is limited, so is that of files which nobody has recorded.
[[ -z ${MTRAIN_ENDS_AT:-} ]] || tidy+=(--seconds 100)
python3 -B scripts/check_tidy.py "${tidy[@]}" || failed+=(clang-tidy)
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
say "checks passed"
