#!/usr/bin/env bash
# Writes data/quickstart.txt, the text that recipes/quickstart.yaml trains on, from the Debian package bible-kjv.
#   scripts/corpus.sh [--pairs]
#     --pairs   also writes data/pairs.jsonl for recipes/sft.yaml: of each verse of 8 words or more its first half as a
#               prompt, and its second half as the answer
# It is the King James Bible: 4.1 MB of English prose in one style, free of markup, in a package of 2.6 MB that
# every Debian release has. A model learns so uniform a text within minutes, byte by byte; manual pages, fortunes or
# program documentation of that size mix styles, tables and code.
# One verse to a line, an empty line between chapters: with --split blank-line a document is a chapter.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

output=data/quickstart.txt with_pairs=0
case ${1:-} in
  -h | --help) usage && exit 0 ;;
  --pairs) with_pairs=1 ;;
  "") ;;
  *) die "unknown argument $1; the only option is --pairs" ;;
esac
mkdir -p data
partial=$(mktemp data/corpus.XXXXXX)
trap 'rm -f "$partial"' EXIT
# keep <file> <what it has>: renames $partial to the file, and prints its size
keep() {
  chmod 644 "$partial"
  mv "$partial" "$1"
  say "$1: $2, $(stat -c %s "$1") bytes"
}

write_text() {
  local verses
  command -v bible >/dev/null || die "the program bible is missing; run scripts/install-deps.sh --corpus"
  # bible -f prints "Ge1:1 In the beginning ...": the reference is removed, and a new book or chapter begins a
  # paragraph.
  bible -f 'Gen1:1-Rev22:21' </dev/null | awk '
    {
      chapter = substr($1, 1, index($1, ":") - 1)
      if (NR > 1 && chapter != last) print ""
      last = chapter
      print substr($0, length($1) + 2)
    }' >"$partial"
  verses=$(grep -c . "$partial" || true)
  ((verses == 31102)) || die "the program bible gave $verses verses instead of 31102; reinstall bible-kjv and bible-kjv-text"
  keep "$output" "$verses verses"
}

write_pairs() {
  # The text has no quotation mark or backslash, which JSON would have to escape.
  if grep -q '["\\]' "$output"; then die "$output is not the text that this script writes"; fi
  awk 'NF >= 8 {
    half = int(NF / 2)
    prompt = $1
    for (i = 2; i <= half; ++i) prompt = prompt " " $i
    answer = ""
    for (i = half + 1; i <= NF; ++i) answer = answer " " $i
    printf "{\"prompt\": \"%s\", \"answer\": \"%s\"}\n", prompt, answer
  }' "$output" >"$partial"
  keep data/pairs.jsonl "$(wc -l <"$partial") pairs"
}

if [[ -s $output ]]; then say "$output exists already"; else write_text; fi
if ((with_pairs)); then write_pairs; fi
