// train: the length of a run, its batch sizes and the folder of its results. validation: how often
// the loss of held-out text is measured.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class DeviceChoice { automatic, cpu, cuda };
constexpr auto enum_names(DeviceChoice) {
  return std::array{EnumName{DeviceChoice::automatic, "auto"}, EnumName{DeviceChoice::cpu, "cpu"},
                    EnumName{DeviceChoice::cuda, "cuda"}, EnumName{DeviceChoice::cuda, "gpu"}};
}

// What a CUDA graph holds. `full` is Megatron's word for a graph of a whole layer.
enum class GraphScope { micro_batch, full_iteration };
constexpr auto enum_names(GraphScope) {
  return std::array{EnumName{GraphScope::micro_batch, "micro_batch"},
                    EnumName{GraphScope::full_iteration, "full_iteration"},
                    EnumName{GraphScope::micro_batch, "full"}};
}

// What a run does after a step whose loss or gradient is not finite, or whose gradient is a spike.
enum class OnSpike { stop, skip };
constexpr auto enum_names(OnSpike) {
  return std::array{EnumName{OnSpike::stop, "stop"}, EnumName{OnSpike::skip, "skip"}};
}

// What a run does with a rank that computes slower than ranks of equal work.
enum class OnStraggler { warn, off, replace };
constexpr auto enum_names(OnStraggler) {
  return std::array{EnumName{OnStraggler::warn, "warn"}, EnumName{OnStraggler::off, "off"},
                    EnumName{OnStraggler::replace, "replace"}};
}

inline constexpr int64_t kMaxSteps = int64_t{1} << 40;

// The value of tensorboard_dir that names no folder.
inline constexpr std::string_view kNoTensorboard = "off";

struct TrainConfig {
  int64_t steps = 1000, global_batch_size = 32, micro_batch_size = 1;
  std::optional<double> epochs;
  int64_t seed = 1234;
  int64_t threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  Auto<bool> enable_cuda_graph;
  GraphScope cuda_graph_scope = GraphScope::micro_batch;
  Auto<double> logits_gb;
  int64_t log_every = 10;
  Auto<int64_t> time_every;
  std::string run_dir, tensorboard_dir;
  OnSpike on_spike = OnSpike::stop;
  std::optional<double> spike_factor;
  OnStraggler straggler = OnStraggler::warn;
  std::optional<int64_t> exit_interval;
  std::optional<double> exit_duration_in_mins;

  static constexpr auto fields = std::tuple{
      Field{"steps",
            &TrainConfig::steps,
            "optimizer steps",
            {.aliases = "train.train_iters train.max_steps step_scheduler.max_steps",
             .min = 1,
             .max = double(kMaxSteps)}},
      Field{"epochs",
            &TrainConfig::epochs,
            "passes over dataset.train, such as 3 or 0.5; the last step is filled with samples of "
            "the next pass; with steps, the shorter of the two is trained",
            {.aliases = "step_scheduler.num_epochs", .min = 0, .max = 1e6, .above_min = true}},
      Field{"global_batch_size",
            &TrainConfig::global_batch_size,
            "samples per optimizer step, over all ranks",
            {.aliases = "step_scheduler.global_batch_size", .min = 1, .max = 1 << 30}},
      Field{"micro_batch_size",
            &TrainConfig::micro_batch_size,
            "samples that a rank computes at a time; gradients accumulate over its share of the "
            "global batch",
            {.aliases = "step_scheduler.local_batch_size", .min = 1, .max = 1 << 30}},
      Field{"seed",
            &TrainConfig::seed,
            "seed of the initial weights, dropout and the data order",
            {.aliases = "seed rng.seed", .min = 0, .max = 0x1p63}},
      Field{"threads",
            &TrainConfig::threads,
            "CPU threads of a rank; 0: the host's cores divided by its ranks",
            {.min = 0, .max = 4096}},
      Field{"device", &TrainConfig::device,
            "cpu or cuda; the n-th rank of a host uses its n-th GPU; auto: cuda if the build "
            "supports it and the host has a GPU per rank, else cpu"},
      Field{"enable_cuda_graph",
            &TrainConfig::enable_cuda_graph,
            "launch a micro-batch's forward and backward as one CUDA graph; auto: if possible, and "
            "if a micro-batch does not communicate",
            {.aliases = "model.enable_cuda_graph"}},
      Field{"cuda_graph_scope", &TrainConfig::cuda_graph_scope,
            "micro_batch: each micro-batch is a CUDA graph; full_iteration: one graph has all "
            "micro-batches of a step, and another one clips and updates (one rank)"},
      Field{"logits_gb",
            &TrainConfig::logits_gb,
            "memory for logits that exist at once, counted as fp32: logits in 16 bits take half. "
            "Fewer chunks write the output layer's gradient less often, and round its sums "
            "differently; auto: 2.1 on a GPU, 0.13 on a CPU",
            {.unit = "GB", .min = 0, .max = 1e5, .above_min = true}},
      Field{"log_every",
            &TrainConfig::log_every,
            "steps between two log lines",
            {.aliases = "logger.log_interval", .unit = "steps", .min = 1}},
      Field{"time_every",
            &TrainConfig::time_every,
            "steps between two whose launches are timed, which slows a GPU; auto: the first ten, "
            "then those that are logged",
            {.unit = "steps", .min = 1}},
      Field{"run_dir",
            &TrainConfig::run_dir,
            "folder of log.txt, metrics.jsonl, the resolved recipe and checkpoints; runs/<recipe> "
            "unless set",
            {.aliases = "train.output_dir"}},
      Field{
          "tensorboard_dir",
          &TrainConfig::tensorboard_dir,
          "folder of the metrics in TensorBoard's format; <run_dir>/tb unless set; none: they are "
          "not written",
          {.aliases = "logger.tensorboard_dir", .none_means = kNoTensorboard}},
      Field{"on_spike", &TrainConfig::on_spike,
            "after a step whose loss or gradient is not finite, or whose gradient is a spike "
            "(spike_factor). stop: the run ends. skip: the step changes neither weights nor "
            "moments, and the run ends after 5 such steps in a row"},
      Field{"spike_factor",
            &TrainConfig::spike_factor,
            "a gradient is a spike if its norm is more than this many times the median of the last "
            "128 norms, once there are 16; none: no norm is",
            {.min = 1, .above_min = true}},
      Field{
          "straggler", &TrainConfig::straggler,
          "warn: every 50 steps the ranks of a pipeline stage compare the time in which they "
          "compute; one that is below 0.7 of the others' speed twice is named. off: they do not. "
          "replace: a job of MIN:MAX hosts also replaces its host by spare ranks, at a checkpoint"},
      Field{"exit_interval",
            &TrainConfig::exit_interval,
            "save and end after a step that is a multiple of this",
            {.unit = "steps", .min = 1}},
      Field{"exit_duration_in_mins",
            &TrainConfig::exit_duration_in_mins,
            "save and end after the first step that ends later than this",
            {.unit = "minutes", .min = 0, .above_min = true}}};
};

struct ValidationConfig {
  int64_t every_steps = 0, steps = 10;

  static constexpr auto fields = std::tuple{
      Field{
          "every_steps",
          &ValidationConfig::every_steps,
          "steps between two evaluations; 0: only at the end",
          {.aliases = "validation.eval_interval train.eval_interval step_scheduler.val_every_steps",
           .unit = "steps",
           .min = 0}},
      Field{"steps",
            &ValidationConfig::steps,
            "global batches per evaluation; 0: all of the held-out data",
            {.aliases = "validation.eval_iters train.eval_iters", .min = 0, .max = 1 << 24}}};
};

}  // namespace mtrain::recipe
