#!/usr/bin/env bash
# Runs every command of README.md and of the pages in docs, as printed, in a fresh clone of this commit.
#   scripts/check_readme.sh [--list] [--built FOLDER] [PAGE...]
#     --list           prints each command and whether it would run, and runs none
#     --built FOLDER   takes mtrain and mtrain-launch from this build folder instead of building them
#     PAGE...          these pages alone, such as docs/how-to/own-data.md
# Commands are those in blocks that begin with ```bash. Each page begins with the data and the run of
# scripts/quickstart.sh, and without files of other pages. For commands within a sentence, only their options are
# checked. A comment above a block keeps its commands from running, or expects them to fail (scripts/check_docs.py).
# The exit code is 1 if a command failed, after all have run.
called_from=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

list=0 built= pages=()
while (($#)); do
  case $1 in
    --list) list=1 ;;
    --built) built=$(cd "$called_from" && realpath "${2:?--built needs a folder}") && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) die "unknown option $1; the options are --list and --built" ;;
    *) pages+=("$1") ;;
  esac
  shift
done
((${#pages[@]})) || pages=(README.md docs/getting-started.md docs/how-to/*.md $(printf '%s\n' docs/*.md docs/reference/*.md | grep -v getting-started))
for page in "${pages[@]}"; do [[ -f $page ]] || die "there is no page $page"; done
[[ -z $built || -x $built/bin/mtrain ]] || die "$built/bin has no mtrain"
minutes=20 # for the commands of one page

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ((!list)); then
  git clone --quiet . "$work/mtrain"
  # The commands have a home folder of their own for what they install and cache; the compiler's cache is shared.
  export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccache} HOME=$work/home
  mkdir "$HOME"
  cd "$work/mtrain"
  quickstart=(scripts/quickstart.sh)
  if [[ -n $built ]]; then
    mkdir -p build/release/bin
    cp "$built"/bin/{mtrain,mtrain-launch} build/release/bin
    quickstart+=(--built)
  fi
  say "first: ${quickstart[*]}"
  began=$SECONDS
  "${quickstart[@]}" >"$work/log" 2>&1 || { tail -n 25 "$work/log" && die "scripts/quickstart.sh failed"; }
  say "  $((SECONDS - began)) s"
  export PATH=$PWD/build/release/bin:$PATH
  mkdir "$work/first" && cp -r data runs "$work/first"
fi

# Runs the commands of a folder in one shell, so that variables and jobs live from one to the next.
runner='
  failed=0
  for file in "$1"/*.command; do
    printf "%s\n" "$(<"${file%.command}.place"): $(<"$file")"
    began=${EPOCHREALTIME/./}
    eval "$(<"$file")" >"$file.log" 2>&1 </dev/null
    code=$? wanted=$(<"${file%.command}.code")
    if ((code != wanted)); then
      tail -n 25 "$file.log"
      printf "FAILED: exit code %d, not %d\n" "$code" "$wanted"
      ((++failed))
    fi
    printf "  %d.%d s\n" $(((${EPOCHREALTIME/./} - began) / 1000000)) $(((${EPOCHREALTIME/./} - began) / 100000 % 10))
    echo "$failed" >"$1/failed"
    touch "${file%.command}.done"
  done
  jobs -p | xargs -r kill 2>/dev/null'

ran=0 failed=0 not_run=0 builds=0 before=0
# take <place> <kind> <text> <command>: puts the command into the folder of its page, or says why not
take() {
  local reason= code=0
  case $2 in
    "not run") reason="not run, $3" && not_run=$((not_run + 1)) ;;
    builds) if [[ -n $built ]]; then reason="not run with --built, $3" && builds=$((builds + 1)); fi ;;
    "exit code") code=$3 ;;
  esac
  if [[ -z $reason && $4 == scripts/quickstart.sh* ]]; then reason="run first" && before=$((before + 1)); fi
  if [[ -n $reason ]]; then
    say "$1: $reason: $4"
    return
  fi
  ran=$((ran + 1))
  if ((list)); then
    say "$1: ${3:+exit code $3: }$4"
    return
  fi
  local name
  name=$folder/$(printf '%04d' "$ran")
  printf '%s\n' "$4" >"$name.command"
  echo "$1" >"$name.place"
  echo "$code" >"$name.code"
}
for page in "${pages[@]}"; do
  folder=$(mktemp -d -p "$work")
  python3 -B scripts/check_docs.py --commands "$page" >"$work/commands"
  while IFS= read -r -d '' place && IFS= read -r -d '' kind && IFS= read -r -d '' text && IFS= read -r -d '' command; do
    take "$place" "$kind" "$text" "$command"
  done <"$work/commands"
  if ! compgen -G "$folder/*.command" >/dev/null; then continue; fi
  git reset --quiet --hard
  git clean -fdxq --exclude=build
  cp -r "$work/first/." .
  timeout --kill-after=10 $((60 * minutes)) bash -c "$runner" runner "$folder" || true
  for command in "$folder"/*.command; do
    [[ -e ${command%.command}.done ]] || { say "FAILED: $page took more than $minutes minutes: $(<"$command")" && failed=$((failed + 1)); }
  done
  if [[ -e $folder/failed ]]; then failed=$((failed + $(<"$folder/failed"))); fi
done
((ran > 0)) || die "${pages[*]} have no commands"
# Commands within sentences and tables are fragments, which do not run; but their options must exist.
options=0
python3 -B scripts/check_docs.py --options "${pages[@]}" >"$work/options"
while IFS=$'\t' read -r place command option; do
  options=$((options + 1))
  if ((list)); then continue; fi
  help=$($command --help) || help=
  if [[ ! "$help" =~ $option($|[^a-z-]) ]]; then
    say "$place: FAILED: '$command' has no option $option"
    failed=$((failed + 1))
  fi
done <"$work/options"
if ((list)); then verb="to run"; else verb="run, $failed failed"; fi
say "docs: $ran commands of ${#pages[@]} pages $verb; $not_run marked as not run, $builds build, $before are run first, $options options named in text; $SECONDS s"
((failed == 0))
