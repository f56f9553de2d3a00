# The scripts beside this file source it. It makes the repository the working directory, and defines messages and timed
# phases.
set -euo pipefail
export LC_ALL=C.UTF-8  # a locale with a decimal comma would break the numbers that awk, printf and sort read
script=$(realpath "$0")  # before the working directory changes
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# usage: prints the comment at the head of the calling script.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$script"; }

declare -a phase_names=() phase_times=()
# phase <name> <command...>: prints the name, runs the command, and remembers how long it took.
phase() {
  local name=$1 began=$SECONDS
  shift
  say "== $name"
  "$@" || die "$name failed"
  phase_names+=("$name")
  phase_times+=($((SECONDS - began)))
}
print_phases() {
  local i
  say "== time"
  for i in "${!phase_names[@]}"; do printf '%6d s  %s\n' "${phase_times[i]}" "${phase_names[i]}"; done
  printf '%6d s  in all\n' "$SECONDS"
}

# Prints how many compiler processes to run: each takes up to 1 GiB, and all must fit into memory.
build_jobs() {
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  ((memory_gib >= 1)) || memory_gib=1
  echo $((cores < memory_gib ? cores : memory_gib))
}

# program_path <name> [build folder, default build/release]: prints the path of mtrain or mtrain-launch in a build
# folder or an installation. apps/CMakeLists.txt decides it; builds of earlier commits, to compare with, have the
# program in apps/.
program_path() {
  local build_folder=${2:-build/release}
  local place=$build_folder/bin/$1 earlier=$build_folder/apps/$1/$1
  if [[ ! -x $place && -x $earlier ]]; then place=$earlier; fi
  echo "$place"
}

declare -a configure_options=()
# build <preset> [target...]: configures with configure_options, then builds
build() {
  local preset=$1
  shift
  cmake --preset "$preset" "${configure_options[@]}" || return 1
  cmake --build --preset "$preset" -j "$(build_jobs)" ${1:+--target "$@"}
}
