#!/usr/bin/env bash
# Writes data/quickstart.txt, the text that recipes/quickstart.yaml trains on, from the Debian package bible-kjv.
#   scripts/corpus.sh
# It is the King James Bible: 4.1 MB of English prose in one style, free of markup, in a package of 2.6 MB that
# every Debian release has. So uniform a text is learned visibly within minutes, byte by byte; manual pages,
# fortunes or program documentation of that size are a mixture of styles, tables and code.
# One verse to a line, an empty line between chapters: with --split blank-line a document is a chapter.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

output=data/quickstart.txt
case ${1:-} in
  -h | --help) usage && exit 0 ;;
  "") ;;
  *) die "unknown argument $1; this script takes none" ;;
esac
if [[ -s $output ]]; then
  say "$output is there"
  exit 0
fi
command -v bible >/dev/null || die "the program bible is missing; run scripts/install-deps.sh --corpus"

mkdir -p data
partial=$(mktemp "$output.XXXXXX")
trap 'rm -f "$partial"' EXIT
# bible -f prints "Ge1:1 In the beginning ...": the reference goes, a new book or chapter begins a paragraph.
bible -f 'Gen1:1-Rev22:21' </dev/null | awk '
  {
    chapter = substr($1, 1, index($1, ":") - 1)
    if (NR > 1 && chapter != last) print ""
    last = chapter
    print substr($0, length($1) + 2)
  }' >"$partial"
verses=$(grep -c . "$partial" || true)
((verses == 31102)) || die "the program bible gave $verses verses instead of 31102; reinstall bible-kjv and bible-kjv-text"
chmod 644 "$partial"
mv "$partial" "$output"
say "$output: $verses verses, $(stat -c %s "$output") bytes"
