#!/usr/bin/env bash
# Runs every YAML recipe of other systems below the given folders through mtrain. Prints how many load, and why
# others do not, the most frequent reasons first. There are two figures: for complete recipes, and for their
# `distributed:` blocks on a model that fits any layout.
#   scripts/check_foreign_recipes.sh DIR...
# For a checkout of NeMo AutoModel it takes the recipes of text models, and counts each refused one by its first
# reason. The models and data sets that recipes name are stubs in a cache of the Hub that scripts/stub_hub.py writes.
# BUILD is the build folder (build/release); VERBOSE=1 lists the files, too; BLOCKS=0 leaves the blocks out.
set -euo pipefail
cd_root=$(cd "$(dirname "$0")/.." && pwd)
[[ $# -gt 0 ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
mtrain=$(realpath -m "${BUILD:-$cd_root/build/release}/bin/mtrain")
[[ -x $mtrain ]] || { echo "$mtrain is not built" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

folders=() first=
for folder in "$@"; do
  if [[ -d $folder/examples/llm_finetune ]]; then
    first=1
    for name in convergence llm_benchmark llm_finetune llm_pretrain; do folders+=("$folder/examples/$name"); done
  else
    folders+=("$folder")
  fi
done
for i in "${!folders[@]}"; do folders[i]=$(realpath "${folders[i]}"); done
python3 -B "$cd_root/scripts/stub_hub.py" "$work/hub" "${folders[@]}"
export HF_HUB_CACHE=$work/hub HF_HOME=$work/none XDG_CACHE_HOME=$work/cache
# Templates are named by paths from the checkout.
if [[ -n $first ]]; then cd "$1"; fi

# A model that every layout of a block divides: many heads, layers, experts and long samples.
model() {
  cat <<YAML
model: {num_layers: 128, hidden_size: 8192, num_attention_heads: 64, num_query_groups: 64, ffn_hidden_size: 32768, vocab_size: 1024}
dataset: {train: x, seq_length: 65536}
train: {global_batch_size: 4096}
YAML
}

# Prints the lines of a recipe's top-level key.
block() { awk -v key="$1" '$0 ~ "^" key ":" {on = 1; print; next} /^[^ #\t]/ {on = 0} on' "$2"; }

# Runs mtrain on a recipe; appends the file to loaded or refused, and its errors to the reasons.
check() { # kind, file to name, arguments of mtrain
  local kind=$1 file=$2
  shift 2
  if "$mtrain" "$@" >"$work/out" 2>"$work/err"; then
    echo "$file" >>"$work/$kind.loaded"
  else
    echo "$file" >>"$work/$kind.refused"
    # One line per error: its field and reason, without the place and without values in `quotes`.
    sed -n 's/^.*: error: //p' "$work/err" | grep -v 'mistakes\{0,1\} in the recipe' |
      sed -e 's/^model.from: .*: model_type `\(.*\)` is not/model.from: model_type \1 is not/' \
        -e 's/`[^`]*`/`...`/g' | awk '!seen[$0]++' >"$work/errors"
    if [[ -n $first && $kind == whole ]]; then
      if ! grep -qv '^peft' "$work/errors"; then
        echo 'peft alone' >>"$work/$kind.reasons"
      else
        grep -v '^peft' "$work/errors" | head -1 >>"$work/$kind.reasons"
      fi
    else
      cat "$work/errors" >>"$work/$kind.reasons"
    fi
  fi
}

report() { # kind, title
  local loaded=0 refused=0
  [[ -f $work/$1.loaded ]] && loaded=$(wc -l <"$work/$1.loaded")
  [[ -f $work/$1.refused ]] && refused=$(wc -l <"$work/$1.refused")
  local total=$((loaded + refused))
  ((total)) || return 0
  awk -v l="$loaded" -v t="$total" -v what="$2" 'BEGIN {printf "%s: %d of %d load (%.1f %%)\n", what, l, t, 100 * l / t}'
  if [[ -f $work/$1.reasons ]]; then
    sort "$work/$1.reasons" | uniq -c | sort -rn | head -"${REASONS:-25}" | cut -c1-200
  fi
  if [[ -n ${VERBOSE:-} ]]; then
    for how in loaded refused; do
      if [[ -f $work/$1.$how ]]; then sed "s/^/    $how: /" "$work/$1.$how"; fi
    done
  fi
}

while IFS= read -r file; do
  grep -qE '^(model|distributed|train|step_scheduler|dataset):' "$file" || continue
  check whole "$file" --recipe "$file" --print-recipe --world-size 0
  [[ ${BLOCKS:-1} == 1 ]] || continue
  block distributed "$file" >"$work/block.yaml"
  if grep -q . "$work/block.yaml"; then
    { model; cat "$work/block.yaml"; block step_scheduler "$file" | grep -E '^step_scheduler|^ +local_batch_size' || true; } >"$work/graft.yaml"
    experts=()
    if awk '$1 == "ep_size:" && $2 + 0 > 1 {found = 1} END {exit !found}' "$work/block.yaml"; then
      experts=(model.moe.num_experts=512)
    fi
    check block "$file" --recipe "$work/graft.yaml" --print-recipe --world-size 0 "${experts[@]}"
  fi
done < <(find "${folders[@]}" -type f \( -name '*.yaml' -o -name '*.yml' \) | sort)

report block "distributed blocks on a model that fits"
report whole "whole recipes"
