// comm, launch and hardware: the hardware of the ranks, and their communication.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/comm_backend.h"
#include "base/gpu.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class LinkTraffic { dp, tp, cp, pp, ep };
constexpr auto enum_names(LinkTraffic) {
  return std::array{EnumName{LinkTraffic::dp, "dp"}, EnumName{LinkTraffic::tp, "tp"},
                    EnumName{LinkTraffic::cp, "cp"}, EnumName{LinkTraffic::pp, "pp"},
                    EnumName{LinkTraffic::ep, "ep"}};
}

struct LinkConfig {
  double latency_us = 0, gbps = 0;
  std::vector<LinkTraffic> only;

  bool emulated() const { return latency_us > 0 || gbps > 0; }
  // Returns whether communication of this kind of parallelism is slowed down.
  bool slows(LinkTraffic traffic) const {
    return emulated() &&
           (only.empty() || std::find(only.begin(), only.end(), traffic) != only.end());
  }

  static constexpr auto fields = std::tuple{
      Field{"latency_us",
            &LinkConfig::latency_us,
            "added to every transfer",
            {.unit = "microseconds", .min = 0}},
      Field{"gbps",
            &LinkConfig::gbps,
            "bandwidth of the emulated link; 0: not limited",
            {.unit = "Gbit/s", .min = 0}},
      Field{"only", &LinkConfig::only,
            "kinds of parallelism whose communication uses the emulated link, to measure their "
            "overlap alone; dp: gradients and parameters; empty: all communication"}};
};

struct CommConfig {
  CommBackend backend = CommBackend::automatic;
  double timeout_s = 600;
  LinkConfig link;

  static constexpr auto fields = std::tuple{
      Field{"backend",
            &CommConfig::backend,
            "auto: nccl on GPUs; on CPUs, shared memory within one host and gloo across hosts",
            {.aliases = "dist_env.backend dist.distributed_backend"}},
      Field{"timeout_s",
            &CommConfig::timeout_s,
            "the job ends if a collective takes longer, or if not all ranks have started within "
            "this time",
            {.unit = "seconds", .min = 0, .max = 1e8, .above_min = true}},
      Field{"link", &CommConfig::link,
            "emulate a slower link, to measure how much communication is hidden"}};
};

// A variable for the ranks. Its value may be a secret: mtrain prints only the reference that gave
// the value, or nothing. In a printed recipe that is read again, the variables have no values.
struct EnvVariable {
  std::optional<std::string> value;
  std::string reference;  // "${env:TOKEN}", or empty
};

struct LaunchConfig {
  Auto<int64_t> cuda_device_max_connections, layernorm_sm_margin, gemm_sm_margin;
  bool programmatic_dependent_launch = false;
  double start_timeout_s = 1800, save_timeout_s = 600;
  Auto<double> step_timeout_s;
  std::vector<std::string> on_event;
  std::map<std::string, EnvVariable> env;

  // Returns the variables that have values.
  std::map<std::string, std::string> variables() const {
    std::map<std::string, std::string> all;
    for (const auto& [name, variable] : env)
      if (variable.value) all[name] = *variable.value;
    return all;
  }

  static constexpr auto fields = std::tuple{
      Field{"cuda_device_max_connections",
            &LaunchConfig::cuda_device_max_connections,
            "hardware queues of the GPU: 1 starts communication before compute, 32 lets each start "
            "at any time",
            {.min = 1, .max = 32}},
      Field{"layernorm_sm_margin",
            &LaunchConfig::layernorm_sm_margin,
            "multiprocessors that norm kernels leave free for communication",
            {.unit = "multiprocessors", .min = 0, .max = 1024}},
      Field{"gemm_sm_margin",
            &LaunchConfig::gemm_sm_margin,
            "multiprocessors that the GEMMs of cuBLASLt leave free for communication; auto: 0, "
            "until a value has been measured on a GPU",
            {.unit = "multiprocessors", .min = 0, .max = 1024}},
      Field{
          "programmatic_dependent_launch", &LaunchConfig::programmatic_dependent_launch,
          "norms, activations, rotary embeddings, additions and quantization begin on a GPU while "
          "the previous kernel of their stream ends; needs compute capability 9. The numbers stay "
          "the same"},
      Field{"start_timeout_s",
            &LaunchConfig::start_timeout_s,
            "mtrain-launch ends the job if a rank that has not made two steps is without progress "
            "for this time; 0: no limit",
            {.unit = "seconds", .min = 0, .max = 1e8}},
      Field{"save_timeout_s",
            &LaunchConfig::save_timeout_s,
            "the same for a save, and for the end of a run: the time without progress",
            {.unit = "seconds", .min = 0, .max = 1e8}},
      Field{"step_timeout_s",
            &LaunchConfig::step_timeout_s,
            "the same for a step; auto: 10 times the median of the last steps, and at least 30 s",
            {.unit = "seconds", .min = 0, .max = 1e8}},
      Field{"on_event", &LaunchConfig::on_event,
            "a program and its arguments, which mtrain-launch runs at the start, a spike, a "
            "failure, a restart and the end of the job, with the event as JSON on its standard "
            "input; a recipe named by `base` cannot set it"},
      Field{"env",
            &LaunchConfig::env,
            "environment variables for the ranks; a variable that is already set keeps its value. "
            "Only the names and ${env:...} references are printed and saved, never the values",
            {.aliases = "env_vars"}}};
};

struct HardwareConfig {
  int64_t gpus_per_node = 8;
  Gpu gpu = Gpu::h100;
  Auto<double> memory_gb;
  std::optional<double> disk_gbps, mtbf_hours;

  static constexpr auto fields = std::tuple{
      Field{"gpus_per_node",
            &HardwareConfig::gpus_per_node,
            "GPUs that share fast links; used by checks and estimates",
            {.min = 1}},
      Field{"gpu", &HardwareConfig::gpu, "type of the GPUs; used by checks and estimates"},
      Field{"memory_gb",
            &HardwareConfig::memory_gb,
            "memory of a rank's device; recompute.cheap depends on it; auto: from the "
            "GPU's name, else the usual memory of hardware.gpu; unknown on CPUs",
            {.unit = "GB", .min = 0, .above_min = true}},
      Field{"disk_gbps",
            &HardwareConfig::disk_gbps,
            "rate at which a checkpoint reaches its disks, from all hosts together; --dry-run "
            "prints how long a save takes. 8 Gbit/s are 1 GB/s",
            {.unit = "Gbit/s", .min = 0, .above_min = true}},
      Field{"mtbf_hours",
            &HardwareConfig::mtbf_hours,
            "mean time between failures of a node; with disk_gbps, --dry-run prints how often to "
            "save",
            {.unit = "hours", .min = 0, .above_min = true}}};
};

}  // namespace mtrain::recipe
