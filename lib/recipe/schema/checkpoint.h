// checkpoint: what is saved, when, and what a run starts from.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class SaveFormat { safetensors };
constexpr auto enum_names(SaveFormat) {
  return std::array{EnumName{SaveFormat::safetensors, "safetensors"}};
}

// Which checkpoints are also written as Hugging Face folders.
enum class SaveConsolidated { no, at_end, every };
constexpr auto enum_names(SaveConsolidated) {
  using S = SaveConsolidated;
  return std::array{EnumName{S::no, "false"},    EnumName{S::at_end, "final"},
                    EnumName{S::every, "every"}, EnumName{S::every, "true"},
                    EnumName{S::no, "no"},       EnumName{S::no, "off"},
                    EnumName{S::every, "yes"},   EnumName{S::every, "on"}};
}

struct CheckpointConfig {
  std::string dir;
  bool enabled = true;
  int64_t every_steps = 0, keep = 2, keep_best = 0;
  bool at_end = true;
  std::optional<std::string> load;
  SaveFormat model_save_format = SaveFormat::safetensors;
  SaveConsolidated save_consolidated = SaveConsolidated::no;
  bool async = false;

  static constexpr auto fields = std::tuple{
      Field{"dir",
            &CheckpointConfig::dir,
            "folder of checkpoints; <run_dir>/checkpoints unless set",
            {.aliases = "checkpoint.save checkpoint.checkpoint_dir"}},
      Field{"enabled", &CheckpointConfig::enabled,
            "save checkpoints; false saves none, whatever the other fields say"},
      Field{"every_steps",
            &CheckpointConfig::every_steps,
            "steps between two checkpoints; 0: save only at the end (at_end)",
            {.aliases = "checkpoint.save_interval step_scheduler.ckpt_every_steps",
             .unit = "steps",
             .min = 0}},
      Field{"at_end", &CheckpointConfig::at_end,
            "save when the run ends or is stopped; false suits measurements"},
      Field{"keep",
            &CheckpointConfig::keep,
            "how many of the newest checkpoints to keep; 0 keeps all",
            {.aliases = "checkpoint.max_recent_checkpoints",
             .min = 0,
             .max = 1 << 20,
             .none_means = "0"}},
      Field{"keep_best",
            &CheckpointConfig::keep_best,
            "how many checkpoints with the lowest validation loss to keep as well; a new lowest "
            "loss is saved at once, and the link `best` points to it; 0: none",
            {.min = 0, .max = 1 << 20, .none_means = "0"}},
      Field{"load",
            &CheckpointConfig::load,
            "checkpoint to continue from; `latest`: the newest in dir; `best`: the one with the "
            "lowest validation loss",
            {.aliases = "checkpoint.restore_from"}},
      Field{"model_save_format", &CheckpointConfig::model_save_format,
            "file format of the weights"},
      Field{"save_consolidated", &CheckpointConfig::save_consolidated,
            "which checkpoints also get a folder hf that transformers can load: the last one of "
            "the run, or every one"},
      Field{"async",
            &CheckpointConfig::async,
            "write checkpoints while training continues",
            {.aliases = "checkpoint.is_async checkpoint.async_save"}}};
};

}  // namespace mtrain::recipe
