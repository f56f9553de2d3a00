#!/usr/bin/env bash
# Holds the exchange of models with Hugging Face against transformers. Fails where it cannot run.
#   scripts/check_hf.sh [python...]      default: python3
# The first Python recomputes the logits, losses and likeliest tokens of test/golden/hf, the rotary angles of
# test/golden/rope.json and the losses on rows of text of test/golden/rows, and compares numbers: the versions of its
# packages need not be those of scripts/golden/requirements.txt. Then each Python, which may have another version of
# transformers, loads what
# `mtrain export hf` writes of these models (fp32, bf16 and fp16, in one file and in several) and of a model that mtrain
# has trained: no key may be missing or unexpected, and the logits must be the same. What `mtrain eval` and
# `mtrain generate` make of that model is held against transformers: from its export, and from the folder `consolidated`
# that the run itself wrote. peft computes what scripts/golden/lora.py records, and loads the adapters of a run, those of experts too. Real models in the folders that MTRAIN_MODELS names, separated by colons, are evaluated,
# continued, imported, exported and loaded, too.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
pythons=("$@")
((${#pythons[@]} > 0)) || pythons=(python3)
mtrain=$(program_path mtrain)
[[ -x $mtrain ]] || die "$mtrain is not built"
for python in "${pythons[@]}"; do
  "$python" -c 'import torch, transformers, safetensors; print("transformers", transformers.__version__)' ||
    die "$python lacks a package: pip install -r scripts/golden/requirements.txt"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${pythons[0]}" -B scripts/golden/hf.py --check
"${pythons[0]}" -B scripts/golden/hf_use.py --check
"${pythons[0]}" -B scripts/golden/rope.py --check
"${pythons[0]}" -B scripts/golden/lora.py --check
"${pythons[0]}" -B scripts/golden/rows.py --check

exports=()
for folder in test/golden/hf/*/; do
  name=$(basename "$folder")
  [[ $name != expected ]] || continue
  "$mtrain" import hf "$folder" --output "$work/imported/$name" >/dev/null
  for dtype in fp32 bf16 fp16; do
    "$mtrain" export hf "$work/imported/$name" --output "$work/$name/$dtype" --dtype "$dtype" >/dev/null
    "$mtrain" export hf "$work/imported/$name" --output "$work/$name/$dtype-shards" --dtype "$dtype" \
      --max-shard-size 20KB >/dev/null
    exports+=("$name=$work/$name/$dtype" "$name=$work/$name/$dtype-shards")
  done
done
for python in "${pythons[@]}"; do "$python" -B scripts/golden/hf.py --exports "${exports[@]}"; done

# A model of mtrain's own: two steps of a small one.
"$mtrain" data build --input README.md --output "$work/text" >/dev/null
"$mtrain" --recipe recipes/quickstart.yaml "dataset.train=$work/text" 'dataset.validation=[]' train.steps=2 \
  validation.every_steps=0 "train.run_dir=$work/run" lr_scheduler.warmup_steps=0 checkpoint.save_consolidated=true >/dev/null
"$mtrain" export hf "$work/run" --output "$work/trained"
consolidated=$work/run/checkpoints/step-00000002/consolidated
diff -r "$consolidated" "$work/trained" || die "the run's own form differs from its export"
"${pythons[0]}" -B scripts/golden/hf_use.py --compare "$mtrain" "$consolidated"
"${pythons[0]}" -B scripts/golden/hf_use.py --compare "$mtrain" "$work/trained"

# Adapters that mtrain has trained beside a model: peft loads them, and computes what the merged model does.
"$mtrain" --recipe recipes/continue.yaml "model.from=$work/trained" "dataset.train=$work/text" 'dataset.validation=[]' \
  train.steps=3 validation.every_steps=0 "train.run_dir=$work/lora" lr_scheduler.warmup_steps=0 optimizer.lr=1e-2 \
  peft.dim=4 'peft.target_modules=[linear_qkv, o_proj, up_proj]' checkpoint.save_consolidated=true >/dev/null
"$mtrain" export hf "$work/lora" --output "$work/adapter"
"$mtrain" export hf "$work/lora" --output "$work/merged" --merge
consolidated=$work/lora/checkpoints/step-00000003/consolidated
diff -r "$consolidated" "$work/adapter" || die "the run's own form differs from its export"
"${pythons[0]}" -B scripts/golden/lora.py --same "$work/trained" "$work/adapter" "$work/merged"
"${pythons[0]}" -B scripts/golden/hf_use.py --compare "$mtrain" "$work/merged"
# The same with adapters of experts, which peft keeps as those of parameters.
"$mtrain" --recipe recipes/continue.yaml model.from=test/golden/hf/mixtral tokenizer.type=NullTokenizer '~tokenizer.path' \
  'dataset.train={mock: 200, vocab_size: 64}' 'dataset.validation=[]' dataset.seq_length=16 train.steps=5 \
  train.global_batch_size=8 train.micro_batch_size=2 validation.every_steps=0 "train.run_dir=$work/moe" \
  lr_scheduler.warmup_steps=0 optimizer.lr=1e-2 peft.dim=4 'peft.target_modules=["*"]' peft.moe_rank_scaling=true >/dev/null
"$mtrain" export hf "$work/moe" --output "$work/moe_adapter"
"$mtrain" export hf "$work/moe" --output "$work/moe_merged" --merge --dtype fp32
"${pythons[0]}" -B scripts/golden/lora.py --same test/golden/hf/mixtral "$work/moe_adapter" "$work/moe_merged"
IFS=: read -ra models <<<"${MTRAIN_MODELS:-}"
for model in "${models[@]}"; do
  "${pythons[0]}" -B scripts/golden/hf_use.py --compare "$mtrain" "$model"
  "$mtrain" import hf "$model" --output "$work/real/imported"
  "$mtrain" export hf "$work/real/imported" --output "$work/real/exported"
  for python in "${pythons[@]}"; do "$python" -B scripts/golden/hf.py --load "$work/real/exported"; done
  rm -rf "$work/real"
done
for python in "${pythons[@]}"; do "$python" -B scripts/golden/hf.py --load "$work/trained"; done
say "exports load in transformers, with the same logits"
