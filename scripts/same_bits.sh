#!/usr/bin/env bash
# Compares the numbers of two builds, bit by bit: trains the recipes listed below, which cover every strategy, parallelism
# and schedule and every kind of layer, and compares the losses of five steps and the hashes of the checkpoints' tensors.
# A change that is not meant to change numbers must show no difference.
#   scripts/same_bits.sh <old build folder> <new build folder> [part of a recipe's name]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in -h | --help) usage && exit 0 ;; esac
(($# >= 2)) || die "two build folders, as in  scripts/same_bits.sh build/before build/release"
old=$(realpath "$1") new=$(realpath "$2") only=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for build in "$old" "$new"; do
  for name in mtrain mtrain-launch; do
    [[ -x $(program_path "$name" "$build") ]] || die "$build has no $name"
  done
done

seq 1 40000 >"$work/text"
"$(program_path mtrain "$new")" data build --input "$work/text" --output "$work/set" >/dev/null
# Prompts give no loss. Answers differ in length, so that packs, micro-batches and ranks have different numbers of labels.
for ((i = 0; i < 400; ++i)); do
  echo "{\"prompt\": \"count to $((i % 23)): \", \"answer\": \"$(seq -s ' ' $((i % 23)))\"}"
done >"$work/pairs.jsonl"
"$(program_path mtrain "$new")" data build --input "$work/pairs.jsonl" --prompt-field prompt --answer-field answer \
  --output "$work/pairs" >/dev/null
cat >"$work/r.yaml" <<YAML
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 8, num_query_groups: 4, ffn_hidden_size: 96}
tokenizer: byte
dataset: {train: $work/set, seq_length: 64}
train: {steps: 5, global_batch_size: 16, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: fsdp2}
mixed_precision: fp32
optimizer: {lr: 3e-3}
lr_scheduler: {style: constant}
comm: {timeout_s: 60}
YAML

experts="model.moe.num_experts=4 model.moe.ffn_hidden_size=48 model.moe.load_balancing_type=aux_loss model.moe.aux_loss_coeff=0.01 model.moe.z_loss_coeff=0.001"
shared="model.moe.shared_expert_ffn_hidden_size=48 model.moe.shared_expert_gate=true"
sigmoid="model.moe.router_score=sigmoid model.moe.router_bias_update_rate=0.001 model.moe.num_groups=2 model.moe.group_topk=1 model.moe.router_topk_scaling_factor=1.5"
gemma2="model.architecture=gemma2 model.window_size=24 model.attn_logit_softcapping=5 model.final_logit_softcapping=3 model.query_pre_attn_scalar=16"
gemma3="model.architecture=gemma3_text model.num_layers=6 model.window_size=24 model.query_pre_attn_scalar=16"
half_window="model.window_size=24 model.window_attn_skip_freq=2"
delayed="mixed_precision=bf16_mixed mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=delayed debug.emulate_fp8=true debug.deterministic=true"
supervised="dataset.train=$work/pairs packed_sequence.packed_sequence_size=64 packed_sequence.drop_long_samples=true"

# Name, ranks, settings; _ after a colon stands for a blank.
recipes=(
  "one              1 distributed.strategy=ddp"
  "bf16             1 mixed_precision=bf16_mixed debug.deterministic=true"
  "gpt2             1 model.architecture=gpt2 model.hidden_dropout=0.1"
  "master_weights   1 mixed_precision=bf16_mixed optimizer.master_weights=false debug.deterministic=true"
  "fp8_tensorwise   1 mixed_precision=bf16_mixed mixed_precision.fp8=hybrid debug.emulate_fp8=true debug.deterministic=true"
  "fp8_delayed      2 mixed_precision=bf16_mixed mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe=delayed debug.emulate_fp8=true debug.deterministic=true"
  "fp8_mxfp8        1 mixed_precision=bf16_mixed mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe=mxfp8 debug.emulate_fp8=true debug.deterministic=true"
  "fp8_bias         1 model.architecture=gpt2 $delayed"
  "fp8_recompute    1 $delayed recompute.granularity=selective recompute.modules=[core_attn,mlp,layernorm]"
  "fp8_tp_sp        2 model.architecture=gpt2 $delayed distributed.tp_size=2 distributed.sequence_parallel=true"
  "recompute_full   1 recompute.granularity=full recompute.method=uniform recompute.num_layers=1"
  "recompute_some   1 recompute.granularity=selective"
  "packed           1 packed_sequence.packed_sequence_size=64"
  "ddp              2 distributed.strategy=ddp"
  "megatron_ddp     2 distributed.strategy=megatron_ddp ddp.bucket_size=5000"
  "zero_0           2 distributed.strategy=megatron_fsdp distributed.zero_dp_strategy=0"
  "zero_2           2 distributed.strategy=megatron_fsdp distributed.zero_dp_strategy=2"
  "zero_3           2 distributed.strategy=megatron_fsdp"
  "fsdp2            4 distributed.defer_fsdp_grad_sync=false"
  "hsdp             4 distributed.dp_replicate_size=2"
  "tp               2 distributed.tp_size=2"
  "tp_sp_overlap    4 distributed.tp_size=2 distributed.sequence_parallel=true comm_overlap.tp_comm_overlap=true comm_overlap.tp_comm_overlap_cfg={qkv_fprop:_{},proj_fprop:_{num_splits:_2},fc2_dgrad:_{}}"
  "cp_p2p           4 distributed.cp_size=4"
  "cp_a2a_p2p       4 distributed.cp_size=4 distributed.cp_comm_type=a2a+p2p distributed.hierarchical_context_parallel_sizes=[2,2]"
  "pp_1f1b          4 distributed.pp_size=2 distributed.pipeline.pp_schedule=1f1b"
  "pp_interleaved   2 distributed.strategy=megatron_ddp distributed.pp_size=2 distributed.pipeline.pp_schedule=interleaved_1f1b comm_overlap.overlap_p2p_backward_on_comm_stream=true"
  "pp_zero_bubble   2 distributed.pp_size=2 distributed.pipeline.pp_schedule=zero_bubble comm_overlap.defer_embedding_wgrad_compute=true"
  "pp_dualpipev     2 distributed.pp_size=2 distributed.pipeline.pp_schedule=dualpipev"
  "experts          1 $experts"
  "experts_bf16     1 $experts mixed_precision=bf16_mixed debug.deterministic=true"
  "experts_sigmoid  1 $experts $sigmoid model.moe.first_dense_layers=1"
  "experts_gather   2 $experts distributed.ep_size=2 model.moe.token_dispatcher=all_gather"
  "experts_alltoall 2 $experts distributed.ep_size=2"
  "experts_flex     2 $experts distributed.ep_size=2 model.moe.token_dispatcher=flex"
  "experts_fp8      2 $experts distributed.ep_size=2 mixed_precision=bf16_mixed mixed_precision.fp8=hybrid debug.emulate_fp8=true debug.deterministic=true"
  "experts_chunks   2 $experts distributed.ep_size=2 comm_overlap.moe_dispatch_chunks=2"
  "experts_pairs    2 $experts distributed.ep_size=2 comm_overlap.overlap_moe_expert_parallel_comm=true comm_overlap.delay_wgrad_compute=true"
  "experts_drops    2 $experts distributed.ep_size=2 model.moe.expert_capacity_factor=0.5 model.moe.pad_expert_input_to_capacity=true"
  "experts_drop_1   1 $experts model.moe.expert_capacity_factor=0.5 model.moe.token_drop_policy=position"
  "experts_again    2 $experts $shared distributed.ep_size=2 recompute.granularity=selective recompute.modules=[moe,layernorm]"
  "experts_act      1 $experts $shared recompute.granularity=selective recompute.modules=[moe_act,shared_experts]"
  "experts_tp       4 $experts distributed.ep_size=2 distributed.tp_size=2 distributed.sequence_parallel=true"
  "experts_pp       4 $experts distributed.ep_size=2 distributed.pp_size=2 distributed.pipeline.pp_schedule=1f1b"
  "experts_ddp      4 $experts distributed.ep_size=2 distributed.strategy=megatron_ddp"
  "shared           1 $experts $shared"
  "shared_overlap   2 $experts $shared distributed.ep_size=2 model.moe.shared_expert_overlap=true"
  "qwen3            2 model.architecture=qwen3 distributed.tp_size=2"
  "phi3             1 model.architecture=phi3 model.rotary_percent=0.5"
  "window           1 $half_window"
  "window_cp        2 $half_window distributed.cp_size=2 distributed.cp_comm_type=all_gather"
  "caps             1 model.attn_logit_softcapping=5 model.final_logit_softcapping=3"
  "gemma2           1 $gemma2"
  "gemma2_tp        2 $gemma2 distributed.tp_size=2"
  "gemma3           1 $gemma3"
  "gemma3_tp_cp     4 $gemma3 distributed.tp_size=2 distributed.cp_size=2 distributed.cp_comm_type=a2a"
  "olmo2_tp         2 model.architecture=olmo2 distributed.tp_size=2"
  "smollm3          1 model.architecture=smollm3"
  "gpt2_tp          2 model.architecture=gpt2 distributed.tp_size=2 distributed.sequence_parallel=true"
  "sft              2 $supervised distributed.strategy=megatron_ddp"
  "sft_cp           2 $supervised distributed.cp_size=2"
  "packed_cp        2 packed_sequence.packed_sequence_size=64 distributed.cp_size=2"
)

# train <build folder> <run folder> <ranks> <setting...>
train() {
  local build=$1 folder=$2 ranks=$3
  shift 3
  "$(program_path mtrain-launch "$build")" --nproc_per_node="$ranks" "$(program_path mtrain "$build")" --recipe "$work/r.yaml" \
    "train.run_dir=$folder" "$@" >"$folder.log" 2>&1 || {
    tail -n 5 "$folder.log" >&2
    return 1
  }
}
# bits <run folder>: prints the run's losses and the hashes of the tensors in its newest checkpoint
bits() {
  sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"
  (cd "$1/checkpoints" && sha256sum ./*/*.safetensors)
}

differ=0 count=0
for line in "${recipes[@]}"; do
  read -r name ranks settings <<<"$line"
  [[ $name == *$only* ]] || continue
  read -ra settings <<<"$settings"
  settings=("${settings[@]//:_/: }")
  rm -rf "$work/old" "$work/new"
  count=$((count + 1))
  # The new build must also continue from a checkpoint of the old build.
  if train "$old" "$work/old" "$ranks" "${settings[@]}" && train "$new" "$work/new" "$ranks" "${settings[@]}" &&
    [[ $(bits "$work/old") == "$(bits "$work/new")" ]] &&
    train "$new" "$work/old" "$ranks" "${settings[@]}" checkpoint.load=latest train.steps=7 &&
    train "$new" "$work/new" "$ranks" "${settings[@]}" checkpoint.load=latest train.steps=7 &&
    [[ $(bits "$work/old") == "$(bits "$work/new")" ]]; then
    say "same      $name"
  else
    say "DIFFERENT $name"
    differ=$((differ + 1))
  fi
done
say "$((count - differ)) of $count recipes train to the same bits, and resume to them"
exit $((differ > 0))
