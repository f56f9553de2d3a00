// debug: checks that cost time, traces, and ways to make a run slow or fail on purpose.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/fault_kind.h"
#include "base/route_pattern.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

// A rank that fails on purpose, to test how the job reacts. It has a phase, or a moment `at`: the
// name of a launch, as traces show it (matmul_fc1_fwd, all_reduce, adamw, ...), or save,
// save:<moment of it> (save:block, save:rename, ...), or save_consolidated.
struct FaultConfig {
  std::optional<FaultKind> kind;  // kill unless set, or stop if `kill` is false
  std::optional<FaultPhase> phase;
  std::optional<std::string> at;
  int64_t rank = 0, step = 1;  // the step before which the job has not restarted
  std::optional<double> factor;
  bool kill = true;
  // Whether nothing fails, as in the recipes of earlier checkpoints.
  bool empty() const { return !kind && !phase && !at; }
  bool operator==(const FaultConfig&) const = default;
};

struct DebugConfig {
  bool stream_sanitizer = false;
  std::optional<std::string> trace, trace_steps;
  bool deterministic = false, strict = false, check_nan = true;
  bool emulate_fp8 = false, own_attention = false, own_grouped_gemm = false, nvtx = false;
  double compute_slowdown = 1;
  std::optional<RoutePattern> route;
  std::vector<FaultConfig> fault;

  static constexpr auto fields = std::tuple{
      Field{"stream_sanitizer", &DebugConfig::stream_sanitizer,
            "report two conflicting accesses of a buffer that no event orders"},
      Field{"trace", &DebugConfig::trace, "write a Chrome / Perfetto trace to this file"},
      Field{"trace_steps", &DebugConfig::trace_steps,
            "trace only these steps, such as 10:20 (both included), 10: or 10; the file is written "
            "after the last of them (--trace-steps)"},
      Field{
          "deterministic", &DebugConfig::deterministic,
          "bitwise equal runs on GPUs, too; on CPUs, bf16 GEMMs without bf16 instructions; slower"},
      Field{"strict", &DebugConfig::strict,
            "refuse settings that have no effect at this size, instead of a warning: an overlap "
            "without a group to communicate in, a pipeline section with one stage (--strict)"},
      Field{"check_nan", &DebugConfig::check_nan,
            "stop at the first loss or gradient that is not finite and name its tensor; in fp16, "
            "such a gradient skips the update instead"},
      Field{"emulate_fp8",
            &DebugConfig::emulate_fp8,
            "emulate mixed_precision.fp8 on a CPU: rounds as a GPU does, and is slower than bf16",
            {.aliases = "fp8.emulate"}},
      Field{"own_attention", &DebugConfig::own_attention,
            "on a GPU, use mtrain's own attention kernels instead of cuDNN's; slower"},
      Field{
          "nvtx",
          &DebugConfig::nvtx,
          "on a GPU, name passes, layers and launches for NVIDIA's profilers (NVTX ranges; --nvtx)",
          {.aliases = "nvtx profiling.nvtx_ranges"}},
      Field{"own_grouped_gemm", &DebugConfig::own_grouped_gemm,
            "on a GPU, use mtrain's own kernels for the GEMMs of experts, never CUTLASS's"},
      Field{"compute_slowdown",
            &DebugConfig::compute_slowdown,
            "CPU computations take this many times as long, and sleep for the added time. Few "
            "cores then show the overlap of ranks with a core each; meant for train.threads=1",
            {.min = 1}},
      Field{"route", &DebugConfig::route,
            "for benchmarks of models with experts: a pattern replaces the routers and sends equal "
            "numbers of tokens to all experts (balanced), or 1, 1/2, 1/3, ... (zipf); the trained "
            "model is useless"},
      Field{
          "fault", &DebugConfig::fault,
          "make ranks fail on purpose, until the job has restarted: one {kind, phase, rank, step, "
          "factor}, or a list. A kind is kill, stop, segfault, abort, exception, "
          "async_exception, device_error, slow, stuck_stream, disconnect, io_error, nan, spike or "
          "node. A phase is rendezvous, load, forward, backward, collective, optimizer, "
          "evaluation, staging, write, commit or end. Instead of a phase, kill and stop may name "
          "a launch (at: adamw), or a moment of a save (at: save:rename)"}};
};

}  // namespace mtrain::recipe
