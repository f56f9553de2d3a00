# The benchmarks beside this file that train source it. It sets the programs, a small data set and a folder for
# runs, and reads the measurements of the runs.
# MTRAIN_BUILD names another build folder.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
build_folder=${MTRAIN_BUILD:-build/release}
launch=$(program_path mtrain-launch "$build_folder") mtrain=$(program_path mtrain "$build_folder")
[[ -x $launch && -x $mtrain ]] || die "$launch and $mtrain are not built"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seq 1 200000 >"$work/text"
"$mtrain" data build --input "$work/text" --output "$work/set" >/dev/null

# train_recipe <name> <recipe> <ranks> <setting>...: trains into $work/<name>; later settings win over earlier ones
train_recipe() {
  local name=$1 recipe=$2 ranks=$3
  shift 3
  rm -rf "${work:?}/$name"
  "$launch" --nproc_per_node="$ranks" --recipe "$recipe" "dataset.train=$work/set" train.threads=1 train.log_every=100 \
    "train.run_dir=$work/$name" "$@" >"$work/$name.log" 2>&1 || { cat "$work/$name.log" && die "training failed"; }
}
# median <name> <field>: prints the median over all but the first steps; 0 if no step has the field
median() {
  sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$work/$1/metrics.jsonl" | tail -n +5 | sort -g |
    awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : 0 }'
}
# median_free: prints the median of the lines "free <ms>" in $work/times
median_free() {
  awk '$1 == "free" { print $2 }' "$work/times" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
# link_gbps <bytes> <ms> <share>: prints the speed of a link on which the bytes take `share` per cent of the time; 0 if
# the share is 0
link_gbps() { awk -v bytes="$1" -v ms="$2" -v share="$3" 'BEGIN { print (share > 0 ? bytes * 8 / (share / 100 * ms * 1e-3) / 1e9 : 0) }'; }
