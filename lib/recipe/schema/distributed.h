// distributed: how the model and the data are sharded over the ranks.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/context_method.h"
#include "base/schedule_id.h"
#include "recipe/schema/element_type.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class Strategy { fsdp2, megatron_fsdp, megatron_ddp, ddp };
constexpr auto enum_names(Strategy) {
  return std::array{EnumName{Strategy::fsdp2, "fsdp2"},
                    EnumName{Strategy::megatron_fsdp, "megatron_fsdp"},
                    EnumName{Strategy::megatron_ddp, "megatron_ddp"},
                    EnumName{Strategy::ddp, "ddp"}, EnumName{Strategy::megatron_fsdp, "mfsdp"}};
}

enum class ZeroStrategy { none, optimizer, gradients, parameters };
constexpr auto enum_names(ZeroStrategy) {
  return std::array{EnumName{ZeroStrategy::none, "0"},
                    EnumName{ZeroStrategy::optimizer, "1"},
                    EnumName{ZeroStrategy::gradients, "2"},
                    EnumName{ZeroStrategy::parameters, "3"},
                    EnumName{ZeroStrategy::none, "no_shard"},
                    EnumName{ZeroStrategy::optimizer, "optim"},
                    EnumName{ZeroStrategy::gradients, "optim_grads"},
                    EnumName{ZeroStrategy::parameters, "optim_grads_params"}};
}

enum class RoundStages { none, up, down };
constexpr auto enum_names(RoundStages) {
  return std::array{EnumName{RoundStages::none, "none"}, EnumName{RoundStages::up, "up"},
                    EnumName{RoundStages::down, "down"}};
}

struct PipelineConfig {
  ScheduleId pp_schedule = ScheduleId::one_f_one_b;
  std::optional<std::string> pp_schedule_csv;
  std::optional<int64_t> pp_microbatch_size, layers_per_stage;
  RoundStages round_virtual_stages_to_pp_multiple = RoundStages::none;
  bool scale_grads_in_schedule = false;
  std::optional<ElementType> dtype;
  std::optional<int64_t> microbatch_group_size_per_vp_stage;
  std::optional<std::string> layout;
  bool account_for_embedding = false, account_for_loss = false;
  std::optional<int64_t> first_rank_layers, last_rank_layers;

  static constexpr auto fields = std::tuple{
      Field{"pp_schedule", &PipelineConfig::pp_schedule,
            "order of forwards and backwards over the stages; dfs is another name of "
            "interleaved_1f1b"},
      Field{"pp_schedule_csv", &PipelineConfig::pp_schedule_csv,
            "CSV file with the order, instead of pp_schedule: a row per rank, cells such as 2F0"},
      Field{"pp_microbatch_size",
            &PipelineConfig::pp_microbatch_size,
            "samples per micro-batch; train.micro_batch_size unless set. If that is written as "
            "step_scheduler.local_batch_size, each local batch is one flush of the pipeline",
            {.min = 1}},
      Field{"layers_per_stage",
            &PipelineConfig::layers_per_stage,
            "layers of one stage; the number of stages follows",
            {.aliases = "model.num_layers_per_virtual_pipeline_stage", .min = 1}},
      Field{"round_virtual_stages_to_pp_multiple",
            &PipelineConfig::round_virtual_stages_to_pp_multiple,
            "round the number of stages to a multiple of pp_size"},
      Field{"scale_grads_in_schedule", &PipelineConfig::scale_grads_in_schedule,
            "divide gradients by the number of micro-batches of a flush"},
      Field{"dtype", &PipelineConfig::dtype,
            "element type of messages between stages; output_dtype unless set"},
      Field{"microbatch_group_size_per_vp_stage",
            &PipelineConfig::microbatch_group_size_per_vp_stage,
            "interleaved: micro-batches in a row per stage; pp_size unless set",
            {.aliases = "model.microbatch_group_size_per_vp_stage "
                        "model.microbatch_group_size_per_virtual_pipeline_stage",
             .min = 1}},
      Field{"layout",
            &PipelineConfig::layout,
            "what each stage holds, such as Et*4|t*5|t*5|t*4L; m before L: a depth of multi-token "
            "prediction",
            {.aliases = "model.pipeline_model_parallel_layout"}},
      Field{"account_for_embedding",
            &PipelineConfig::account_for_embedding,
            "the embedding counts as a layer of the first stage, which has one layer fewer",
            {.aliases = "model.account_for_embedding_in_pipeline_split"}},
      Field{"account_for_loss",
            &PipelineConfig::account_for_loss,
            "output layer and loss count as a layer of the last stage, which has one layer fewer",
            {.aliases = "model.account_for_loss_in_pipeline_split"}},
      Field{"first_rank_layers",
            &PipelineConfig::first_rank_layers,
            "layers of the first rank, in all its stages together; the other ranks share the rest",
            {.aliases = "model.num_layers_in_first_pipeline_stage "
                        "model.decoder_first_pipeline_num_layers",
             .min = 1}},
      Field{"last_rank_layers",
            &PipelineConfig::last_rank_layers,
            "layers of the last rank, in all its stages together",
            {.aliases = "model.num_layers_in_last_pipeline_stage "
                        "model.decoder_last_pipeline_num_layers",
             .min = 1}}};
};

// Element types of communication and compute under fsdp2.
struct MpPolicyConfig {
  Auto<ElementType> param_dtype, reduce_dtype, output_dtype;
  bool cast_forward_inputs = true;

  static constexpr auto fields =
      std::tuple{Field{"param_dtype", &MpPolicyConfig::param_dtype,
                       "weights in forward and backward; auto: by mixed_precision"},
                 Field{"reduce_dtype", &MpPolicyConfig::reduce_dtype,
                       "gradient reduction; auto: as param_dtype"},
                 Field{"output_dtype", &MpPolicyConfig::output_dtype,
                       "logits for the loss, and messages between stages; auto: as param_dtype"},
                 Field{"cast_forward_inputs",
                       &MpPolicyConfig::cast_forward_inputs,
                       "accepted, no effect: the layers' inputs are already in param_dtype",
                       {.no_effect = "the layers' inputs are already in param_dtype"}}};
};

// Settings of fsdp2 for models with expert parallelism.
struct MoeParallelConfig {
  Auto<bool> reshard_after_forward;
  bool ignore_router_for_ac = false, wrap_outer_model = true;
  std::optional<ElementType> lm_head_precision;

  static constexpr auto fields = std::tuple{
      Field{"reshard_after_forward", &MoeParallelConfig::reshard_after_forward,
            "free the experts' weights between forward and backward; auto: as "
            "distributed.reshard_after_forward"},
      Field{"ignore_router_for_ac", &MoeParallelConfig::ignore_router_for_ac,
            "under recompute.granularity full, keep the router's outputs instead of recomputing "
            "them"},
      Field{"wrap_outer_model",
            &MoeParallelConfig::wrap_outer_model,
            "accepted, no effect: embedding and output layer are sharded as separate units",
            {.no_effect = "embedding and output layer are sharded as separate units, and the model "
                          "has no other weights outside of its layers"}},
      Field{"lm_head_precision", &MoeParallelConfig::lm_head_precision,
            "float32: the output layer's weight, GEMMs and logits are fp32, and its gradient is "
            "reduced in fp32; none: they have the type of all weights"}};
};

struct DistributedConfig {
  Strategy strategy = Strategy::fsdp2;
  int64_t tp_size = 1, pp_size = 1, cp_size = 1, ep_size = 1;
  std::optional<int64_t> dp_size, dp_replicate_size, vpp_size;
  Auto<int64_t> expert_tp_size;
  bool sequence_parallel = false;
  bool defer_fsdp_grad_sync = true;
  Auto<bool> reshard_after_forward;
  int64_t fsdp2_forward_prefetch_depth = 1, fsdp2_backward_prefetch_depth = 2;
  MpPolicyConfig mp_policy;
  ZeroStrategy zero_dp_strategy = ZeroStrategy::parameters;
  PipelineConfig pipeline;
  MoeParallelConfig moe;
  std::vector<int64_t> hierarchical_context_parallel_sizes;
  std::vector<ContextMethod> cp_comm_type{ContextMethod::p2p};
  bool use_decentralized_pg = false;

  static constexpr auto fields = std::tuple{
      Field{
          "strategy", &DistributedConfig::strategy,
          "data parallelism: fsdp2 and megatron_fsdp shard everything, megatron_ddp the optimizer, "
          "ddp nothing"},
      Field{"tp_size",
            &DistributedConfig::tp_size,
            "ranks that share each layer's matrices",
            {.aliases = "model.tensor_model_parallel_size",
             .unit = "ranks",
             .min = 1,
             .max = 1 << 16,
             .zero_is_unset = true}},
      Field{"pp_size",
            &DistributedConfig::pp_size,
            "pipeline ranks, which share the layers",
            {.aliases = "model.pipeline_model_parallel_size",
             .unit = "ranks",
             .min = 1,
             .max = 1 << 16,
             .zero_is_unset = true}},
      Field{"cp_size",
            &DistributedConfig::cp_size,
            "ranks that share each sequence",
            {.aliases = "model.context_parallel_size",
             .unit = "ranks",
             .min = 1,
             .max = 1 << 16,
             .zero_is_unset = true}},
      Field{"ep_size",
            &DistributedConfig::ep_size,
            "ranks that share the experts of a layer",
            {.aliases = "model.expert_model_parallel_size",
             .unit = "ranks",
             .min = 1,
             .max = 1 << 16,
             .zero_is_unset = true}},
      Field{"expert_tp_size",
            &DistributedConfig::expert_tp_size,
            "ranks that share each expert's matrices; auto: tp_size",
            {.aliases = "model.expert_tensor_parallel_size",
             .unit = "ranks",
             .min = 1,
             .max = 1 << 16,
             .zero_is_unset = true}},
      Field{"dp_size",
            &DistributedConfig::dp_size,
            "ranks that read different samples; unless set, all ranks / (tp pp cp)",
            {.unit = "ranks", .min = 1, .max = 1 << 24, .zero_is_unset = true}},
      Field{"dp_replicate_size",
            &DistributedConfig::dp_replicate_size,
            "fsdp2: number of groups; parameters are sharded within a group and replicated across "
            "groups",
            {.unit = "ranks",
             .min = 1,
             .max = 1 << 24,
             .strategies = "fsdp2",
             .zero_is_unset = true}},
      Field{"vpp_size",
            &DistributedConfig::vpp_size,
            "stages per rank",
            {.aliases = "model.virtual_pipeline_model_parallel_size "
                        "model.num_virtual_stages_per_pipeline_rank",
             .min = 1,
             .max = 1 << 16,
             .zero_is_unset = true}},
      Field{"sequence_parallel",
            &DistributedConfig::sequence_parallel,
            "shard norms, dropout and residuals along the sequence over tp",
            {.aliases = "model.sequence_parallel"}},
      Field{"defer_fsdp_grad_sync",
            &DistributedConfig::defer_fsdp_grad_sync,
            "reduce gradients only with the last micro-batch",
            {.strategies = "fsdp2"}},
      Field{"reshard_after_forward",
            &DistributedConfig::reshard_after_forward,
            "free gathered weights between forward and backward; auto: with a pipeline, keep those "
            "of the three stages that a rank uses next",
            {.strategies = "fsdp2"}},
      Field{"fsdp2_forward_prefetch_depth",
            &DistributedConfig::fsdp2_forward_prefetch_depth,
            "units gathered ahead in forward",
            {.min = 0, .strategies = "fsdp2"}},
      Field{"fsdp2_backward_prefetch_depth",
            &DistributedConfig::fsdp2_backward_prefetch_depth,
            "units gathered ahead in backward",
            {.min = 0, .strategies = "fsdp2"}},
      Field{"mp_policy",
            &DistributedConfig::mp_policy,
            "element types of sharded units",
            {.strategies = "fsdp2"}},
      Field{"zero_dp_strategy",
            &DistributedConfig::zero_dp_strategy,
            "megatron_fsdp: 0 shards nothing, 1 the optimizer, 2 gradients too, 3 parameters too",
            {.aliases = "ddp.data_parallel_sharding_strategy", .strategies = "megatron_fsdp"}},
      Field{"pipeline", &DistributedConfig::pipeline, "schedule and split of the layers"},
      Field{"moe",
            &DistributedConfig::moe,
            "sharding of models with experts",
            {.strategies = "fsdp2"}},
      Field{"hierarchical_context_parallel_sizes",
            &DistributedConfig::hierarchical_context_parallel_sizes,
            "sizes of the levels of a2a+p2p, innermost first",
            {.aliases = "model.hierarchical_context_parallel_sizes", .min = 1}},
      Field{"cp_comm_type",
            &DistributedConfig::cp_comm_type,
            "how keys and values travel: one for all layers, or a list with one per layer",
            {.aliases = "model.cp_comm_type"}},
      Field{"use_decentralized_pg",
            &DistributedConfig::use_decentralized_pg,
            "process groups without a world group",
            {.aliases = "dist.use_decentralized_pg"}}};
};

}  // namespace mtrain::recipe
