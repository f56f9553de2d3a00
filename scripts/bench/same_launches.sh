#!/usr/bin/env bash
# Compares what two builds launch on the streams `compute` and `ep`, rank by rank, for models with experts whose
# exchanges do not overlap: a build with a new overlap feature must launch the same as before if the feature is off.
#   scripts/bench/same_launches.sh <old build folder> <new build folder>
# Prints a line for each layout, and fails if one differs.
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

(($# == 2)) || die "two build folders, as in  scripts/bench/same_launches.sh build/before build/release"
old=$(realpath "$1") new=$(realpath "$2")
layouts=(
  "2 distributed.ep_size=2"
  "2 distributed.ep_size=2 distributed.strategy=fsdp2 model.moe.token_dispatcher=flex"
  "4 distributed.ep_size=2 distributed.pp_size=2 distributed.vpp_size=2 distributed.pipeline.pp_schedule=interleaved_1f1b"
  "4 distributed.ep_size=2 distributed.pp_size=2 distributed.pipeline.pp_schedule=dualpipev"
  "4 distributed.ep_size=2 distributed.tp_size=2 distributed.sequence_parallel=true"
  "1 model.moe.num_experts=0"
)
same=true
for layout in "${layouts[@]}"; do
  for build in "$old" "$new"; do
    launch=$(program_path mtrain-launch "$build")
    # shellcheck disable=SC2086,SC2154
    train_recipe run recipes/bench/mixtral_42m.yaml ${layout%% *} train.steps=3 train.global_batch_size=16 \
      train.micro_batch_size=1 model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 \
      model.num_query_groups=4 model.vocab_size=512 dataset.seq_length=64 model.moe.num_experts=8 \
      model.moe.ffn_hidden_size=64 model.moe.shared_expert_ffn_hidden_size=128 distributed.strategy=megatron_ddp \
      checkpoint.at_end=false ${layout#* } --trace "$work/trace.json"
    python3 - "$work/trace.json" >"$work/launches.$([[ $build == "$old" ]] && echo old || echo new)" <<'END'
import json
import sys

with open(sys.argv[1]) as file:
    events = json.load(file)
events = events["traceEvents"] if isinstance(events, dict) else events
streams = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
launches = sorted((e for e in events if e["ph"] == "X" and e.get("cat") != "wait"), key=lambda e: (e["pid"], streams[e["pid"], e["tid"]], e["ts"]))
for e in launches:
    stream = streams[e["pid"], e["tid"]]
    if stream in ("compute", "ep"):
        print(f"rank {e['pid']} {stream}: {e['name']}")
END
  done
  if cmp -s "$work/launches.old" "$work/launches.new"; then
    say "same $(wc -l <"$work/launches.new") launches: $layout"
  else
    say "other launches: $layout"
    diff "$work/launches.old" "$work/launches.new" | head -n 5 || true
    same=false
  fi
done
$same
