#!/usr/bin/env bash
# Writes the documents that mtrain itself generates, in docs/reference and docs/pictures. recipe.md has the tables
# of all settings, words.md the native names of other tools' words, and metrics.md the keys of metrics.jsonl. The
# pictures are those of docs/pipeline-schedules.md. The screenshots there (*.png) are made by hand.
#   scripts/docs.sh [mtrain [folder]]      default: build/release's mtrain, and docs
# The test `cli` fails if the committed files differ from those that this script writes.
called_from=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
mtrain=$(program_path mtrain) folder=docs
[[ -z ${1:-} ]] || mtrain=$(cd "$called_from" && realpath "$1")
[[ -z ${2:-} ]] || folder=$(cd "$called_from" && realpath -m "$2")
[[ -x $mtrain ]] || die "$mtrain is not built"

mkdir -p "$folder/reference" "$folder/pictures"
"$mtrain" schema --markdown >"$folder/reference/recipe.md"
"$mtrain" schema --words >"$folder/reference/words.md"
"$mtrain" schema --metrics >"$folder/reference/metrics.md"

# draw <picture> <schedule> <stages per rank>: draws the schedule on 4 ranks, with 8 micro-batches
draw() { "$mtrain" schedule --name "$2" --pp 4 --vpp "$3" --micro 8 --svg "$folder/pictures/$1.svg" >/dev/null; }
draw gpipe gpipe 1
draw 1f1b 1f1b 1
draw zero_bubble_1 zero_bubble 1
draw looped_bfs looped_bfs 2
draw zero_bubble_2 zero_bubble 2
draw v_schedule v_schedule 2
draw dualpipev dualpipev 2
# present <name> <option of mtrain schedule>...: draws a larger schedule, as a picture and as a page
present() { "$mtrain" schedule "${@:2}" --svg "$folder/pictures/$1.svg" --html "$folder/pictures/$1.html" >/dev/null; }
present interleaved_1f1b --name interleaved_1f1b --pp 4 --vpp 2 --micro 8
present zero_bubble_8x32 --name zero_bubble --pp 8 --micro 32
present dualpipev_exchanges --name dualpipev --pp 4 --micro 8 --moe-overlap --layers 2 --exchange 0.3
say "written: $folder/reference/*.md and $folder/pictures"
