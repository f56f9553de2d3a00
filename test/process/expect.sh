# Expectations of a program's output, for the tests beside this file, which source it. `work` is their folder; `program` is
# an array of the program and the arguments with which each of its calls begins.
failures=0
fail() {
  echo "FAILED: $1"
  tail -n "${shown_lines:-+1}" "$work/out" | sed 's/^/    /'
  failures=$((failures + 1))
}
# expect <what> <exit code> <text>... -- <argument>...: requires that the output has all texts.
expect() {
  local what=$1 code=$2 text got=0
  local -a texts=()
  shift 2
  while [[ $1 != -- ]]; do texts+=("$1") && shift; done
  shift
  "${program[@]}" "$@" >"$work/out" 2>&1 </dev/null || got=$?
  ((got == code)) || fail "$what: exit code $got instead of $code"
  for text in "${texts[@]}"; do grep -qF -- "$text" "$work/out" || fail "$what: nothing says: $text"; done
}
