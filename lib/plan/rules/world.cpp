// Rules of the world: the recipe's sizes must divide the ranks, and backends must fit the device.
#include <numeric>

#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

// Returns "is 1, 2, 3 or 6" for 6, and "divides N" for a number with many divisors.
std::string divides(int64_t world) {
  constexpr size_t kMaxDivisors = 8;
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= world && divisors.size() <= kMaxDivisors; ++d)
    if (world % d == 0) divisors.push_back(d);
  return divisors.size() > kMaxDivisors ? fmt::format("divides {}", world)
                                        : fmt::format("is {}", either(divisors));
}

void check_product(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const int64_t product = l.tp * l.pp * l.cp;
  // If tp_size does not divide the heads, only that is reported: its hint names sizes that the
  // world allows.
  const bool heads = r.model.num_attention_heads % l.tp == 0;
  if (heads && l.world % product != 0)
    refuse({"distributed.tp_size", "distributed.pp_size", "distributed.cp_size"},
           fmt::format("tp({}) * pp({}) * cp({}) = {} does not divide the world of {} ranks", l.tp,
                       l.pp, l.cp, product, l.world),
           fmt::format("run on {} ranks, or choose sizes whose product {}",
                       nearest_multiples(l.world, product), divides(l.world)),
           diagnostics);
  if (!r.distributed.dp_size || l.world % product != 0) return;
  diagnostics.require(
      *r.distributed.dp_size == l.dp, {"distributed.dp_size"},
      fmt::format("dp_size {} is given, but the world of {} ranks / (tp {} * pp {} * cp {}) is {}",
                  *r.distributed.dp_size, l.world, l.tp, l.pp, l.cp, l.dp),
      fmt::format("remove dp_size, set it to {}, or run on {} ranks", l.dp,
                  *r.distributed.dp_size * product));
}

void check_replicate(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const auto& size = r.distributed.dp_replicate_size;
  if (!size || *size == 1 || r.distributed.strategy != recipe::Strategy::fsdp2) return;
  diagnostics.require(
      l.dp % *size == 0, {"distributed.dp_replicate_size"},
      fmt::format("{} does not divide dp ({})", *size, l.dp),
      "choose a divisor of dp; each group of dp / dp_replicate_size ranks holds one copy");
  diagnostics.require(
      l.dp % *size != 0 || *size < l.dp, {"distributed.dp_replicate_size"},
      fmt::format("{} leaves nothing to shard: dp is {} as well", *size, l.dp),
      "choose a smaller divisor of dp, or strategy: megatron_ddp to replicate fully");
}

void check_batch(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  // If the sizes do not divide the world, dp is not known.
  if (l.world % (l.tp * l.pp * l.cp) != 0) return;
  const int64_t global = r.train.global_batch_size, chunk = batch_multiple(r, l);
  if (global % chunk == 0) return;
  std::string reason =
      l.dp == 1
          ? fmt::format("global_batch_size {} is not a multiple of micro-batch {}", global,
                        l.micro_batch)
          : fmt::format("global_batch_size {} is not a multiple of micro-batch {} * dp {} = {}",
                        global, l.micro_batch, l.dp, chunk);
  if (local_batch_is_flush(r))
    reason = fmt::format(
        "global_batch_size {} is not a whole number of flushes of dp {} x local batch {} = {}",
        global, l.dp, r.train.micro_batch_size, chunk);
  refuse({"train.global_batch_size", "train.micro_batch_size",
          "distributed.pipeline.pp_microbatch_size"},
         std::move(reason), fmt::format("use {}", legal_batches(r, l)), diagnostics);
}

// Returns a hint with the largest size of tp that stays within a node and divides the heads.
std::string use_tp_of_node(const Recipe& r) {
  const int64_t tp = std::gcd(r.hardware.gpus_per_node, r.model.num_attention_heads);
  return fmt::format("distributed.tp_size={} stays within a node", tp);
}

void check_nodes(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  const int64_t node = r.hardware.gpus_per_node;
  if (l.tp > node)
    diagnostics.warn(
        "distributed.tp_size",
        fmt::format("tp_size {} exceeds the {} GPUs of a node, so every layer waits for the "
                    "slow network",
                    l.tp, node),
        use_tp_of_node(r));
  else if (node % l.tp != 0)
    diagnostics.warn(
        "distributed.tp_size",
        fmt::format("tp_size {} does not divide the {} GPUs of a node, so some tp groups lie "
                    "on two nodes and wait for the slow network",
                    l.tp, node),
        use_tp_of_node(r));
  const auto& levels = r.distributed.hierarchical_context_parallel_sizes;
  if (l.cp > 1 && !levels.empty() && l.tp <= node && l.tp * levels[0] > node)
    diagnostics.warn(
        "distributed.hierarchical_context_parallel_sizes",
        fmt::format("the first level of {} times tp_size {} exceeds the {} GPUs of a node",
                    levels[0], l.tp, node),
        "the first level should fit inside a node");
}

void check_backend(const Recipe& r, Diagnostics& diagnostics) {
  diagnostics.require(r.comm.backend != CommBackend::thread, {"comm.backend"},
                      "backend thread is for ranks that are threads of one process, as in tests; a "
                      "recipe's ranks are processes",
                      "set it to auto");
  const bool gpu = r.train.device == recipe::DeviceChoice::cuda;
  diagnostics.require(r.comm.backend != CommBackend::nccl || gpu, {"comm.backend", "train.device"},
                      "backend nccl moves GPU memory, and train.device is cpu",
                      "set comm.backend=auto (dist_env.backend)");
  diagnostics.require(r.comm.backend != CommBackend::gloo || !gpu, {"comm.backend", "train.device"},
                      "backend gloo moves host memory, and train.device is cuda",
                      "set comm.backend=auto (dist_env.backend)");
  diagnostics.require(!gpu || !r.comm.link.emulated(), {"comm.link", "train.device"},
                      "a link is emulated between ranks on CPUs, and train.device is cuda",
                      "leave it out");
  diagnostics.require(r.comm.link.emulated() || r.comm.link.only.empty(), {"comm.link.only"},
                      "says what an emulated link carries, but there is no such link",
                      "set comm.link.gbps or comm.link.latency_us, or leave it out");
  diagnostics.require(!gpu || r.debug.compute_slowdown == 1,
                      {"debug.compute_slowdown", "train.device"},
                      "slows computations on the CPU, and train.device is cuda", "leave it out");
  diagnostics.require(gpu || !r.debug.own_attention, {"debug.own_attention", "train.device"},
                      "leaves out cuDNN, which only GPUs have, and train.device is cpu: attention "
                      "on a CPU is mtrain's own in any case",
                      "set train.device: cuda, or leave it out");
  const bool unseen = !gpu && r.debug.nvtx;
  if (unseen)
    diagnostics.warn(
        "debug.nvtx",
        "has no effect: NVTX ranges are for profilers of GPUs, and train.device is cpu",
        "--trace writes every launch on a CPU, too");
  diagnostics.require(
      gpu || !r.debug.own_grouped_gemm, {"debug.own_grouped_gemm", "train.device"},
      "leaves out CUTLASS, which only GPUs have, and train.device is cpu: the GEMMs "
      "of experts on a CPU are mtrain's own in any case",
      "set train.device: cuda, or leave it out");
}

}  // namespace

void validate_world(const Recipe& r, const Layout& l, Diagnostics& diagnostics) {
  check_product(r, l, diagnostics);
  check_replicate(r, l, diagnostics);
  check_batch(r, l, diagnostics);
  check_nodes(r, l, diagnostics);
  check_backend(r, diagnostics);
}

}  // namespace mtrain::plan
