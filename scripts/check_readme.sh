#!/usr/bin/env bash
# Runs every command of README.md and docs/getting-started.md, as it stands there, in a fresh clone of this commit.
#   scripts/check_readme.sh [--quick] [--here] [--list]
#     --quick   shortens what takes long, and says how
#     --here    runs mtrain and mtrain-launch of build/release on data/ here, in a new folder, and no other commands
#     --list    prints the commands as they would run, and runs none
# A command is each line of a fenced block in which every line begins with a program. What this machine cannot do (a GPU,
# a second host) is left out or changed, which the output says beside the command. Commands find mtrain by the line that
# scripts/quickstart.sh prints at its end. The exit code is 1 if a command failed, after all have run.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quick=0 list=0 here=0
for option in "$@"; do
  case $option in
    --quick) quick=1 ;;
    --here) here=1 ;;
    --list) list=1 ;;
    -h | --help) usage && exit 0 ;;
    *) die "unknown option $option; the options are --quick, --here and --list" ;;
  esac
done
documents=(README.md docs/getting-started.md)

# Prints <file>:<line> <tab> <command> for each command of a document.
commands_of() {
  awk -v file="$1" '
    function leave() { if (commands) for (i = 1; i <= n; ++i) print file ":" at[i] "\t" line[i] }
    /^```/ { if (inside) leave(); inside = !inside; n = 0; commands = inside && /^```(bash|sh)?$/; next }
    inside && NF {
      if ($1 !~ /^(scripts\/[a-z_-]+\.sh|mtrain|mtrain-launch|cmake|cpack|export|eval)$/ || ($1 == "mtrain" && NF == 1)) commands = 0
      at[++n] = NR; line[n] = $0; sub(/ +# .*/, "", line[n])
    }' "$1"
}

# What is left out: {words in the command, reason}. The first that fits counts.
leave_out=()
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || leave_out+=('train.device=cuda|no GPU here')
leave_out+=('gpu_suite.sh|needs a GPU and what carry_build.sh packs')
command -v nvcc >/dev/null || leave_out+=('-DMTRAIN_CUDA=ON|no nvcc here')
((!quick)) || leave_out+=('-DMTRAIN_CUDA=ON|it builds everything anew')
why_left_out() {
  local row
  for row in "${leave_out[@]}"; do [[ $1 != *"${row%%|*}"* ]] || { say "${row#*|}" && return; }; done
}
# What is changed: {expression of sed, words in the command, reason}. All that fit are applied in order.
changes=(
  's/--master_addr=host0/--master_addr=127.0.0.1 --local_addr=127.0.0.1/; s/--nproc_per_node=8/--nproc_per_node=1/|--nnodes=2|both hosts are this one, with a rank each'
)
training='^(mtrain|mtrain-launch) .*--recipe'
short='train.steps=3 lr_scheduler.warmup_steps=1 validation.every_steps=0 validation.steps=2'
if ((quick)); then
  changes+=(
    's/$/ --quick/|scripts/test.sh|the unit tests alone'
    's/$/ --target mtrain mtrain-launch/|cmake --build|the programs alone'
    "s/\$/ $short/|TRAINING|3 steps"
  )
fi
# change <command>: sets command and why
change() {
  local row expression words reason
  command=$1 why=
  for row in "${changes[@]}"; do
    IFS='|' read -r expression words reason <<<"$row"
    if [[ $words == TRAINING ]]; then
      [[ $1 =~ $training && $1 != *--dry-run* && $1 != *--print-recipe* ]] || continue
    else
      [[ $1 == *"$words"* ]] || continue
    fi
    command=$(sed "$expression" <<<"$command")
    why+="${why:+, }$reason"
  done
}

mapfile -t found < <(for document in "${documents[@]}"; do commands_of "$document"; done)
((${#found[@]} > 10)) || die "only ${#found[@]} commands found in ${documents[*]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ((!list)); then
  if ((here)); then
    mkdir "$work/mtrain"
    export PATH=$PWD/build/release/bin:$PATH
    cp -r recipes data "$work/mtrain"
  else
    git clone --quiet . "$work/mtrain"
  fi
  # What the commands install and keep lands in a home of its own; the compiler's cache is shared.
  export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccache} HOME=$work/home
  mkdir "$HOME"
  cd "$work/mtrain"
  # r.yaml stands for a recipe of the reader's own.
  sed 's/quickstart$/own/' recipes/quickstart.yaml >r.yaml
fi

failed=0 left_out=0 ran=0 background=
declare -A seen=()
# run_line <place> <command>: runs it in this shell's environment; export and eval change it
run_line() {
  local began=$SECONDS status=0
  case $2 in
    export* | eval*) eval "$2" || status=$? ;;
    *--node_rank=0*)
      # The first of two launchers runs beside the second, whose line follows.
      bash -c "$2" >"$work/rank0.log" 2>&1 &
      background=$!
      return
      ;;
    *) bash -c "$2" >"$work/log" 2>&1 || status=$? ;;
  esac
  if [[ -n $background ]]; then
    wait "$background" || { status=$? && cat "$work/rank0.log" >>"$work/log"; }
    background=
  fi
  ((status == 0)) || { tail -n 25 "$work/log" && say "FAILED ($status): $1" && failed=$((failed + 1)); }
  say "  $((SECONDS - began)) s"
  # The line that makes the programs found, as the end of quickstart prints it.
  if [[ $2 == scripts/quickstart.sh* ]]; then eval "$(grep '^export PATH=' "$work/log")"; fi
}

for entry in "${found[@]}"; do
  place=${entry%%$'\t'*} original=${entry#*$'\t'}
  reason=$(why_left_out "$original")
  if ((here)) && [[ $original != mtrain* || $original == *"--model runs/quickstart"* ]]; then reason="--here"; fi
  if [[ $original == scripts/* && -n ${seen[$original]:-} ]]; then reason="run before"; fi
  seen[$original]=1
  if [[ -n $reason ]]; then
    say "$place: left out, $reason: $original"
    left_out=$((left_out + 1))
    continue
  fi
  change "$original"
  say "$place: $command${why:+    (changed: $why)}"
  ran=$((ran + 1))
  ((list)) || run_line "$place" "$command"
done
if ((list)); then exit 0; fi
say "readme: $ran commands run, $failed failed, $left_out left out"
((failed == 0))
