#!/usr/bin/env bash
# Measures the activation memory per rank of a training step as sequences grow, in layouts of tensor and context
# parallelism. The figures are rank 0's peaks as the allocator counts them.
#   scripts/bench/memory_tp_cp.sh [longest sequence, default 32768] [shortest, default 1024] [setting...]
# ideal: the single rank's activations / (tp x cp). growth: per doubling of the sequence; 2.00 is linear, 4.00 would
# be an S x S matrix. "one S x S": the memory of a single head's scores in fp32, if they were stored.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

longest=${1:-32768} shortest=${2:-1024}
settings=("${@:3}")

sp="distributed.sequence_parallel=true"
layouts=(
  "1 rank||1|1"
  "tp 2|distributed.tp_size=2|2|2"
  "tp 2, sequence parallel|distributed.tp_size=2 $sp|2|2"
  "cp 2, p2p|distributed.cp_size=2|2|2"
  "tp 2 sp x cp 2, p2p|distributed.tp_size=2 $sp distributed.cp_size=2|4|4"
  "cp 4, p2p|distributed.cp_size=4|4|4"
  "cp 4, all_gather|distributed.cp_size=4 distributed.cp_comm_type=all_gather|4|4"
  "cp 4, a2a|distributed.cp_size=4 distributed.cp_comm_type=a2a|4|4"
  "cp 4, a2a+p2p|distributed.cp_size=4 distributed.cp_comm_type=a2a+p2p distributed.hierarchical_context_parallel_sizes=[2,2]|4|4"
)

# train <ranks> <sequence> <setting>...
train() {
  train_recipe run recipes/bench/llama_3m.yaml "$1" train.steps=1 "dataset.seq_length=$2" train.micro_batch_size=1 \
    train.global_batch_size=1 model.num_layers=2 model.hidden_size=128 model.num_attention_heads=8 model.num_query_groups=8 \
    model.ffn_hidden_size=352 model.vocab_size=512 distributed.strategy=megatron_ddp "${settings[@]}" "${@:3}"
}
peak() { sed -n "s/.*\"memory_peak.$1\":\([0-9]*\).*/\1/p" "$work/run/metrics.jsonl" | tail -n 1; }

echo "| layout | S | activations, MiB | ideal | of ideal | growth | buffers, MiB | growth | one S x S, MiB |"
echo "|---|---|---|---|---|---|---|---|---|"
for layout in "${layouts[@]}"; do
  IFS='|' read -r name options ranks share <<<"$layout"
  read -ra options <<<"$options"
  before=0 before_buffers=0
  for ((S = shortest; S <= longest; S *= 2)); do
    train "$ranks" "$S" "${options[@]}"
    activations=$(peak activations) buffers=$(peak buffers)
    if ((ranks == 1)); then echo "$activations" >"$work/alone.$S"; fi
    awk -v name="$name" -v S="$S" -v a="$activations" -v b="$buffers" -v alone="$(<"$work/alone.$S")" -v share="$share" \
      -v a0="$before" -v b0="$before_buffers" '
      function ratio(x, y) { return y > 0 ? sprintf("%.2f", x / y) : "" }
      BEGIN { M = 2 ^ 20; printf "| %s | %d | %.2f | %.2f | %s | %s | %.2f | %s | %d |\n", name, S, a / M, alone / share / M,
        ratio(a, alone / share), ratio(a, a0), b / M, ratio(b, b0), S * S * 4 / M }'
    before=$activations before_buffers=$buffers
  done
done
