// ddp and comm_overlap: which communication is hidden behind which compute.
#pragma once
#include <cstdint>
#include <tuple>

#include "recipe/schema/field.h"
#include "recipe/schema/tp_overlap.h"

namespace mtrain::recipe {

struct DdpConfig {
  bool use_distributed_optimizer = true;
  Auto<bool> overlap_grad_reduce, overlap_param_gather;
  Auto<int64_t> bucket_size;
  bool average_in_collective = false;
  Auto<bool> align_param_gather;
  bool overlap_param_gather_with_optimizer_step = false, check_for_nan_in_grad = true;
  Auto<bool> nccl_ub;
  bool disable_symmetric_registration = false;

  static constexpr auto fields = std::tuple{
      Field{
          "use_distributed_optimizer",
          &DdpConfig::use_distributed_optimizer,
          "shard the optimizer: reduce-scatter gradients, all-gather parameters",
          {.aliases = "optimizer.use_distributed_optimizer comm_overlap.use_distributed_optimizer",
           .strategies = "megatron_ddp"}},
      Field{"overlap_grad_reduce",
            &DdpConfig::overlap_grad_reduce,
            "reduce each bucket of gradients as soon as it is full",
            {.aliases = "ddp.overlap_grad_sync comm_overlap.overlap_grad_reduce "
                        "comm_overlap.overlap_grad_sync distributed.overlap_grad_reduce",
             .strategies = "megatron_ddp megatron_fsdp ddp"}},
      Field{"overlap_param_gather",
            &DdpConfig::overlap_param_gather,
            "gather the next bucket's parameters during forward",
            {.aliases = "comm_overlap.overlap_param_gather optimizer.overlap_param_gather "
                        "distributed.overlap_param_gather",
             .strategies = "megatron_ddp megatron_fsdp"}},
      Field{
          "bucket_size",
          &DdpConfig::bucket_size,
          "size of a gradient bucket; auto: 128 Mi with a comm_overlap section, else the larger of "
          "40 M and 1 M x dp",
          {.aliases = "comm_overlap.bucket_size ddp.ddp_bucket_size",
           .unit = "parameters",
           .min = 1,
           .strategies = "megatron_ddp megatron_fsdp ddp"}},
      Field{"average_in_collective",
            &DdpConfig::average_in_collective,
            "average inside the reduction instead of scaling before it",
            {.aliases = "comm_overlap.average_in_collective distributed.average_in_collective",
             .strategies = "megatron_ddp megatron_fsdp ddp"}},
      Field{"align_param_gather",
            &DdpConfig::align_param_gather,
            "all pipeline ranks start their gathers together",
            {.aliases = "comm_overlap.align_param_gather", .strategies = "megatron_ddp"}},
      Field{"overlap_param_gather_with_optimizer_step",
            &DdpConfig::overlap_param_gather_with_optimizer_step,
            "gather a stage's parameters while the next stage's are updated",
            {.aliases = "comm_overlap.overlap_param_gather_with_optimizer_step "
                        "optimizer.overlap_param_gather_with_optimizer_step",
             .strategies = "megatron_ddp"}},
      Field{"check_for_nan_in_grad",
            &DdpConfig::check_for_nan_in_grad,
            "stop at a gradient that is not finite; false: skip the update of that step",
            {.aliases = "distributed.check_for_nan_in_grad comm_overlap.check_for_nan_in_grad",
             .strategies = "megatron_ddp megatron_fsdp ddp"}},
      Field{"nccl_ub",
            &DdpConfig::nccl_ub,
            "gather parameters into memory that NCCL has registered; within a host, copy engines "
            "then move them; auto: off until a GPU has measured it",
            {.aliases = "ddp.use_nccl_ub distributed.nccl_ub comm_overlap.nccl_ub"}},
      Field{"disable_symmetric_registration",
            &DdpConfig::disable_symmetric_registration,
            "nccl_ub registers buffers alone and no symmetric windows; copy engines then stay idle",
            {.aliases = "distributed.disable_symmetric_registration "
                        "comm_overlap.disable_symmetric_registration"}}};
};

struct CommOverlapConfig {
  Auto<bool> tp_comm_overlap;
  TpOverlapConfig tp_comm_overlap_cfg;
  bool tp_comm_bulk_wgrad = true, tp_comm_bulk_dgrad = true;
  bool tp_comm_overlap_ag = true, tp_comm_overlap_rs = true;
  Auto<bool> overlap_p2p_comm, batch_p2p_comm;
  bool defer_embedding_wgrad_compute = false;
  int64_t wgrad_deferral_limit = 0;
  bool overlap_moe_expert_parallel_comm = false, delay_wgrad_compute = false;
  Auto<bool> fine_grained_1f1b;
  bool overlap_p2p_backward_on_comm_stream = false;
  int64_t overlap_p2p_wgrad_delayed_layer_number = 1;
  bool overlap_p2p_with_transformer_layer_wgrad = false;
  int64_t moe_dispatch_chunks = 1;
  Auto<bool> cp_overlap;

  static constexpr auto fields = std::tuple{
      Field{"tp_comm_overlap",
            &CommOverlapConfig::tp_comm_overlap,
            "hide the gathers and scatters of sequence parallelism behind the GEMMs",
            {.aliases = "model.tp_comm_overlap distributed.enable_async_tensor_parallel"}},
      Field{"tp_comm_overlap_cfg",
            &CommOverlapConfig::tp_comm_overlap_cfg,
            "how tp_comm_overlap works: the name of a preset, or {method, num_sm, ...} per GEMM "
            "(qkv_fprop, fc2_dgrad, ...)",
            {.aliases = "model.tp_comm_overlap_cfg"}},
      Field{"tp_comm_bulk_wgrad",
            &CommOverlapConfig::tp_comm_bulk_wgrad,
            "scatter during the weight gradient of qkv and fc1",
            {.aliases = "model.tp_comm_bulk_wgrad"}},
      Field{"tp_comm_bulk_dgrad",
            &CommOverlapConfig::tp_comm_bulk_dgrad,
            "gather during the input gradient of qkv and fc1",
            {.aliases = "model.tp_comm_bulk_dgrad"}},
      Field{"tp_comm_overlap_ag",
            &CommOverlapConfig::tp_comm_overlap_ag,
            "split GEMMs that need an all-gather, and overlap the two",
            {.aliases = "model.tp_comm_overlap_ag"}},
      Field{"tp_comm_overlap_rs",
            &CommOverlapConfig::tp_comm_overlap_rs,
            "split GEMMs that end in a reduce-scatter, and overlap the two",
            {.aliases = "model.tp_comm_overlap_rs"}},
      Field{"overlap_p2p_comm",
            &CommOverlapConfig::overlap_p2p_comm,
            "send and receive between stages during compute",
            {.aliases = "model.overlap_p2p_comm model.overlap_p2p_communication"}},
      Field{"batch_p2p_comm",
            &CommOverlapConfig::batch_p2p_comm,
            "send and receive between stages together, between two computations",
            {.aliases = "model.batch_p2p_comm"}},
      Field{"defer_embedding_wgrad_compute",
            &CommOverlapConfig::defer_embedding_wgrad_compute,
            "compute the output layer's weight gradients in the pipeline's flush",
            {.aliases = "model.defer_embedding_wgrad_compute"}},
      Field{"wgrad_deferral_limit",
            &CommOverlapConfig::wgrad_deferral_limit,
            "last micro-batches whose output-layer weight gradient is deferred; 0: all",
            {.aliases = "model.wgrad_deferral_limit", .min = 0}},
      Field{"overlap_moe_expert_parallel_comm",
            &CommOverlapConfig::overlap_moe_expert_parallel_comm,
            "hide the experts' all-to-all behind another micro-batch",
            {.aliases = "model.overlap_moe_expert_parallel_comm"}},
      Field{
          "delay_wgrad_compute",
          &CommOverlapConfig::delay_wgrad_compute,
          "compute the weight gradients of each segment of a layer after its input gradients; with "
          "overlap_moe_expert_parallel_comm, after the start of every exchange that can begin",
          {.aliases = "model.delay_wgrad_compute"}},
      Field{"fine_grained_1f1b",
            &CommOverlapConfig::fine_grained_1f1b,
            "the forward of one micro-batch and the backward of another alternate layer by layer; "
            "auto: on with overlap_moe_expert_parallel_comm or an overlap_p2p_* setting of "
            "fine-grained 1F1B",
            {.aliases = "model.fine_grained_1f1b"}},
      Field{"overlap_p2p_backward_on_comm_stream",
            &CommOverlapConfig::overlap_p2p_backward_on_comm_stream,
            "fine-grained 1F1B: send a stage's input gradient as soon as its first layer has "
            "computed it, while computation continues",
            {.aliases = "model.overlap_p2p_backward_on_comm_stream"}},
      Field{
          "overlap_p2p_wgrad_delayed_layer_number",
          &CommOverlapConfig::overlap_p2p_wgrad_delayed_layer_number,
          "fine-grained 1F1B: number of first layers of a stage that compute the weight gradients "
          "of attention, router and shared expert while the stage's input gradient is sent",
          {.aliases = "model.overlap_p2p_wgrad_delayed_layer_number", .min = 1}},
      Field{"overlap_p2p_with_transformer_layer_wgrad",
            &CommOverlapConfig::overlap_p2p_with_transformer_layer_wgrad,
            "fine-grained 1F1B: these layers also compute the weight gradients of their MLPs or "
            "routed experts during that send",
            {.aliases = "model.overlap_p2p_with_transformer_layer_wgrad"}},
      Field{"moe_dispatch_chunks",
            &CommOverlapConfig::moe_dispatch_chunks,
            "exchange a layer's tokens with the experts in this many chunks; a chunk is computed "
            "while the next is sent",
            {.min = 1}},
      Field{"cp_overlap",
            &CommOverlapConfig::cp_overlap,
            "hide the transfer of keys and values behind attention",
            {.aliases = "model.cp_overlap"}}};
};

}  // namespace mtrain::recipe
