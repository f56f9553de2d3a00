// checkpoint: what is saved, when, and what a run starts from.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "recipe/schema/field.h"
#include "recipe/schema/local_copies.h"

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

// What a run does if a checkpoint cannot be saved while it trains.
enum class SaveErrors { go_on, stop };
constexpr auto enum_names(SaveErrors) {
  return std::array{EnumName{SaveErrors::go_on, "continue"}, EnumName{SaveErrors::stop, "stop"}};
}

// Whether checkpoints are written while training continues.
enum class AsyncSave { automatic, yes, no };
constexpr auto enum_names(AsyncSave) {
  using A = AsyncSave;
  return std::array{EnumName{A::automatic, "auto"}, EnumName{A::yes, "true"},
                    EnumName{A::no, "false"},       EnumName{A::yes, "yes"},
                    EnumName{A::yes, "on"},         EnumName{A::no, "no"},
                    EnumName{A::no, "off"}};
}

// What happens to a save that is due while an earlier one is still being written.
enum class BusySave { wait, skip };
constexpr auto enum_names(BusySave) {
  return std::array{EnumName{BusySave::wait, "wait"}, EnumName{BusySave::skip, "skip"}};
}

struct CheckpointConfig {
  std::string dir;
  bool enabled = true;
  int64_t every_steps = 0, keep = 2, keep_every = 0, keep_best = 0, io_threads = 4;
  bool at_end = true;
  SaveErrors on_error = SaveErrors::go_on;
  std::optional<std::string> load;
  bool load_or_start = false;
  LocalCopiesConfig local;
  SaveFormat model_save_format = SaveFormat::safetensors;
  SaveConsolidated save_consolidated = SaveConsolidated::no;
  AsyncSave async = AsyncSave::automatic;
  BusySave when_busy = BusySave::wait;

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
      Field{"keep_every",
            &CheckpointConfig::keep_every,
            "also keep the checkpoints whose step is a multiple of this; 0: none",
            {.aliases = "checkpoint.save_retain_interval",
             .unit = "steps",
             .min = 0,
             .none_means = "0"}},
      Field{"keep_best",
            &CheckpointConfig::keep_best,
            "how many checkpoints with the lowest validation loss to keep as well; a new lowest "
            "loss is saved at once, and the link `best` points to it; 0: none",
            {.min = 0, .max = 1 << 20, .none_means = "0"}},
      Field{"on_error", &CheckpointConfig::on_error,
            "if a checkpoint cannot be saved during training: continue and try again at the next "
            "one, or stop. Three failures in a row, or one at the end, always end the run with an "
            "error"},
      Field{"load",
            &CheckpointConfig::load,
            "checkpoint to continue from; `latest`: the newest in dir; `best`: the one with the "
            "lowest validation loss; also written as load: {path, or_start}",
            {.aliases = "checkpoint.restore_from"}},
      Field{"load_or_start",
            &CheckpointConfig::load_or_start,
            "start at step 1 if load names a folder that does not exist or has no checkpoint; a "
            "damaged checkpoint stays an error",
            {.aliases = "checkpoint.load.or_start"}},
      Field{"local",
            &CheckpointConfig::local,
            "copies on the hosts themselves, from which a restart loses fewer steps",
            {.shorthand = "dir"}},
      Field{"model_save_format", &CheckpointConfig::model_save_format,
            "file format of the weights"},
      Field{"save_consolidated", &CheckpointConfig::save_consolidated,
            "which checkpoints also get a folder `consolidated` that transformers can load: the "
            "last one of the run, or every one (also `true`)"},
      Field{
          "io_threads",
          &CheckpointConfig::io_threads,
          "threads of each rank that read and write checkpoints; a disk gets that many requests of "
          "4 MiB at once",
          {.unit = "threads", .min = 1, .max = 64}},
      Field{"async",
            &CheckpointConfig::async,
            "write checkpoints while training continues, from a copy in host memory; auto: where "
            "the memory of the hosts suffices",
            {.aliases = "checkpoint.is_async checkpoint.async_save"}},
      Field{"when_busy", &CheckpointConfig::when_busy,
            "if a checkpoint is due while an earlier one is still being written: wait for it, or "
            "skip the new one. The last of a run and new lowest validation losses always wait"}};
};

}  // namespace mtrain::recipe
