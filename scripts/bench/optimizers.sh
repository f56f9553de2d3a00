#!/usr/bin/env bash
# Measures Muon beside AdamW: the time of a step and rank 0's peak memory in layouts of two ranks, with alternating
# runs; then the losses of recipes/quickstart.yaml and quickstart_muon.yaml at equal steps.
#   scripts/bench/optimizers.sh [pairs of runs, default 3] [steps of the quickstart, default 200]
# Each rank computes on one thread. A ratio is Muon's median over AdamW's. The losses need the quickstart's data
# (scripts/quickstart.sh); with 0 steps they are left out, and with 0 pairs the layouts.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

pairs=${1:-3} steps=${2:-200}
layouts=(
  "1 rank|1|"
  "ddp 2|2|distributed.strategy=ddp"
  "megatron_ddp 2, sharded state|2|distributed.strategy=megatron_ddp"
  "fsdp2 2|2|distributed.strategy=fsdp2"
  "megatron_fsdp 2|2|distributed.strategy=megatron_fsdp"
  "tp 2|2|distributed.strategy=megatron_ddp distributed.tp_size=2"
  "pp 2|2|distributed.strategy=megatron_ddp distributed.pp_size=2"
  "experts, ep 2|2|distributed.strategy=megatron_ddp distributed.ep_size=2"
)

# train <optimizer> <layout's number> <ranks> <setting>...
train() {
  local optimizer=$1 name=$1-$2-$pair recipe=recipes/quickstart.yaml
  local -a settings=("${@:4}" validation=none checkpoint.at_end=false checkpoint.every_steps=0 train.steps=12)
  case " $* " in *ep_size*) recipe=recipes/quickstart_experts.yaml ;; esac
  if [[ $optimizer == muon ]]; then settings+=(optimizer.name=muon optimizer.lr=2e-2 optimizer.muon.adamw_lr=2e-3); fi
  train_recipe "$name" "$recipe" "$3" "${settings[@]}"
  median "$name" step_ms >>"$work/$optimizer-$2.ms"
  sed -n 's/.*"memory_peak":\([0-9]*\).*/\1/p' "$work/$name/metrics.jsonl" | tail -n 1 >"$work/$optimizer-$2.memory"
}
middle() { sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

((pairs > 0)) || layouts=()
echo "| layout | AdamW, ms | Muon, ms | ratio | AdamW, MiB | Muon, MiB |"
echo "|---|---|---|---|---|---|"
for n in "${!layouts[@]}"; do
  IFS='|' read -r name ranks options <<<"${layouts[n]}"
  read -ra options <<<"$options"
  for ((pair = 0; pair < pairs; ++pair)); do
    train adamw "$n" "$ranks" "${options[@]}"
    train muon "$n" "$ranks" "${options[@]}"
  done
  awk -v name="$name" -v a="$(middle "$work/adamw-$n.ms")" -v m="$(middle "$work/muon-$n.ms")" \
    -v a_memory="$(<"$work/adamw-$n.memory")" -v m_memory="$(<"$work/muon-$n.memory")" 'BEGIN {
      printf "| %s | %.0f | %.0f | %.2f | %.1f | %.1f |\n", name, a, m, m / a, a_memory / 2 ^ 20, m_memory / 2 ^ 20 }'
done

((steps > 0)) || exit 0
echo
echo "| step | loss of AdamW | loss of Muon |"
echo "|---|---|---|"
for recipe in quickstart quickstart_muon; do
  "$mtrain" --recipe "recipes/$recipe.yaml" "train.run_dir=$work/$recipe" train.log_every=1000 "train.steps=$steps" \
    "validation.every_steps=$steps" checkpoint.at_end=false checkpoint.every_steps=0 >"$work/$recipe.log" 2>&1 || {
    cat "$work/$recipe.log" && die "training failed"
  }
done
# losses <recipe> <field>: prints step and value of each record that has the field
losses() { sed -n "s/.*\"step\":\([0-9]*\).*\"$2\":\([0-9.e+-]*\).*/\1 \2/p" "$work/$1/metrics.jsonl"; }
join <(losses quickstart loss | sort -k1,1) <(losses quickstart_muon loss | sort -k1,1) | sort -n |
  awk -v last="$steps" '$1 % 25 == 0 || $1 == last { printf "| %d | %.4f | %.4f |\n", $1, $2, $3 }'
join <(losses quickstart validation_loss) <(losses quickstart_muon validation_loss) |
  awk '{ printf "| held-out text, after %d | %.4f | %.4f |\n", $1, $2, $3 }'
