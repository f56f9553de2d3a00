#include "run/run_checkpoint.h"

#include <cmath>

#include "checkpoint/read_weights.h"
#include "interchange/byte_tokenizer.h"
#include "interchange/hf_folder.h"
#include "interchange/model_source.h"
#include "interchange/trained_weights.h"
#include "plan/checkpoint_cost.h"
#include "run/bf16_choice.h"
#include "run/end_texts.h"
#include "run/gemm_choice.h"
#include "run/rank_consistency.h"

namespace mtrain::run {

namespace {
const std::string kCompared = "compared";  // prefix of rank 0's text

// Returns the trainer's parts; the progress of reading them is shown.
checkpoint::CheckpointParts parts_to_read(train::Trainer& t, const ShowActivity& show) {
  checkpoint::CheckpointParts parts = t.checkpoint_parts();
  if (show)
    parts.progress = [show](std::string_view what, int64_t done, int64_t total) {
      show(percent_text(fmt::format("reading {}", what), done, total));
    };
  return parts;
}

checkpoint::SaveOptions save_options(train::Trainer& t, const std::filesystem::path& root,
                                     const RunSave& save) {
  const plan::CheckpointOptions& c = t.plan().checkpoint;
  checkpoint::SaveOptions options{
      .root = root,
      .keep = {.newest = int(c.keep), .best = int(c.keep_best), .every = c.keep_every},
      .job = save.job,
      .recipe = t.plan().text.recipe_with_origins,
      .added = save.added,
      .on_commit = save.on_commit};
  const checkpoint::TrainProgress progress = t.progress();
  if (progress.samples != progress.steps_done * t.plan().train.global_batch_size)
    options.state.needs_samples();
  if (save.exceeds_bytes) options.state.set(interchange::kExceedsBytes, 1);
  if (std::isfinite(save.evaluation.loss))
    options.state.set(storage::kValidationLoss, fmt::format("{}", save.evaluation.loss));
  if (save.evaluation.samples > 0)
    options.state.set(storage::kValidationSamples, save.evaluation.samples);
  save_bf16_arithmetic(t.device(), t.plan(), options.state);
  if (const auto tuner = gemm_tuner(t.device(), t.plan())) save_gemms(*tuner, options.state);
  if (save.data) save.data->save(options.state);
  return options;
}

}  // namespace

std::filesystem::path save_run(train::Trainer& t, const std::filesystem::path& root,
                               const RunSave& save) {
  checkpoint::SaveOptions options = save_options(t, root, save);
  checkpoint::CheckpointParts parts = t.checkpoint_parts();
  if (save.show)
    parts.progress = [&, activity = fmt::format("saving step {}", t.steps_done())](
                         std::string_view what, int64_t done, int64_t total) {
      save.show(what == "added" ? "writing the Hugging Face form of the checkpoint"
                                : bytes_text(activity, done, total));
    };
  return save_checkpoint(parts, t.progress(), std::move(options));
}

void begin_save(train::Trainer& t, const std::filesystem::path& root, const RunSave& save,
                checkpoint::BackgroundSaver& saver) {
  checkpoint::SaveOptions options = save_options(t, root, save);
  t.hold_updates_until(
      saver.begin(t.checkpoint_parts(/*to_read=*/true), t.progress(), std::move(options)));
}

void begin_local(train::Trainer& t, const RunSave& save, checkpoint::LocalSaver& saver,
                 std::shared_ptr<const checkpoint::Snapshot> staged) {
  checkpoint::SaveOptions options = save_options(t, {}, save);
  t.hold_updates_until(saver.begin(t.checkpoint_parts(/*to_read=*/true), t.progress(),
                                   std::move(options), std::move(staged)));
}

std::string resume_run(train::Trainer& t, const std::filesystem::path& folder, DataIdentity* data,
                       const ShowActivity& show) {
  // Rank 0 sends whether the checkpoint has entries about its data, and how the data differ.
  std::string own;
  if (data && t.control().rank() == 0) {
    const storage::TrainState saved = checkpoint::read_state(folder);
    if (DataIdentity::is_in(saved)) own = kCompared + data->differences(saved);
    if (data->lacks_base(saved))
      interchange::warn_of_unrecorded_base(folder, t.plan().folders.weights_from);
  }
  const std::string found = t.control().texts(own)[0];
  std::optional<std::string> differences;
  if (!found.empty()) differences = found.substr(kCompared.size());
  const checkpoint::LoadedCheckpoint loaded =
      load_checkpoint(parts_to_read(t, show), interchange::model_source(), t.plan().text.recipe,
                      folder, differences);
  if (plan::saves_adapters_alone(t.plan())) start_from_folder(t, show);
  restore_bf16_arithmetic(t.device(), t.control(), t.plan(), loaded.state);
  if (const auto tuner = gemm_tuner(t.device(), t.plan())) restore_gemms(*tuner, loaded.state);
  t.set_progress(loaded.progress);
  return differences || !data ? ""
                              : "the checkpoint does not describe the content of its data: only "
                                "the name of dataset.train was compared";
}

checkpoint::TrainProgress agreed_progress(const train::Trainer& t,
                                          const storage::CheckpointRef& start) {
  checkpoint::TrainProgress progress{.steps_done = start.step,
                                     .samples = start.step * t.plan().train.global_batch_size};
  if (t.control().rank() == 0) {
    try {
      progress.samples = checkpoint::read_progress(interchange::model_source(), start.path).samples;
    } catch (const Error&) {
    }
  }
  progress.samples = std::stoll(t.control().texts(std::to_string(progress.samples))[0]);
  return progress;
}

int64_t agreed_validation_samples(const train::Trainer& t,
                                  const std::optional<storage::CheckpointRef>& start) {
  const int64_t steps = t.plan().validation.steps;
  int64_t samples = steps * t.plan().train.global_batch_size;
  if (!start || steps == 0) return samples;
  if (t.control().rank() == 0) {
    try {
      const plan::SavedRun saved =
          plan::read_saved_run(interchange::model_source(), checkpoint::saved_recipe(start->path));
      const storage::TrainState state = checkpoint::read_state(start->path);
      if (saved.validation_steps == steps)
        samples = state.contains(storage::kValidationSamples)
                      ? state.integer(storage::kValidationSamples)
                      : steps * saved.global_batch_size;
    } catch (const Error&) {  // a checkpoint without a recipe
    }
  }
  return std::stoll(t.control().texts(std::to_string(samples))[0]);
}

std::string changes_text(const train::Trainer& t, const std::filesystem::path& checkpoint,
                         int64_t validation_samples) {
  const plan::SavedRecipe recipe = checkpoint::saved_recipe(checkpoint);
  const int64_t step = t.steps_done(), batch = t.plan().train.global_batch_size;
  std::string text =
      plan::resume_changes(interchange::model_source(), recipe, t.plan().text.recipe);
  if (!text.empty()) text = fmt::format("changed since step {}: {}", step, text);
  if (plan::read_saved_run(interchange::model_source(), recipe).global_batch_size == batch)
    return text;
  text += fmt::format(
      "\nstep {} begins with sample {}, counted from 0; a step of the learning-rate schedule is "
      "now {} samples, and {:.6g} are done",
      step + 1, t.samples_done(), batch, double(t.progress().updated_samples) / double(batch));
  const int64_t of_batch = t.plan().validation.steps * batch;
  if (validation_samples > 0 && of_batch > 0 && validation_samples != of_batch)
    text += fmt::format(
        "\na validation still has {} samples, not {}: its losses can be compared with those "
        "before; another validation.steps changes that",
        validation_samples, of_batch);
  return text;
}

std::string start_from_folder(train::Trainer& t, const ShowActivity& show) {
  const std::string& from = t.plan().folders.weights_from;
  if (from.empty()) return "";
  const interchange::HfFolder folder =
      interchange::open_hf_folder(from, t.plan().folders.ignore_keys, t.plan().model.mtp.layers());
  require_same_on_all_ranks(t.control(), "folder " + from, interchange::fingerprint(folder),
                            "give all ranks the same folder as model.from, on all hosts");
  checkpoint::start_from(parts_to_read(t, show), *folder.source());
  return folder.left_out;
}

}  // namespace mtrain::run
