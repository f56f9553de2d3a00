#include <cstdio>
#include <memory>
#include <string>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "commands.h"
#include "run/evaluate_model.h"

namespace mtrain {

namespace {

// Bytes are those of a text, which only a tokenizer knows.
std::string text_of(const run::Evaluation& e) {
  const bool text = e.bytes > 0;
  return fmt::format(
      "{:.6f} nats per token, {}perplexity {:.4f}\n"
      "over {} tokens{} in {} windows of {} tokens, {} apart\n",
      e.nats_per_token, text ? fmt::format("{:.6f} bits per byte, ", e.bits_per_byte()) : "",
      e.perplexity(), e.tokens, text ? fmt::format(" ({} bytes)", e.bytes) : "", e.windows,
      e.window, e.stride);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "measure how well a trained model predicts a text");
  auto job = std::make_shared<run::EvaluateJob>();
  command
      ->add_option("--model", job->model,
                   "run folder of a training (its newest checkpoint), one checkpoint, or a Hugging "
                   "Face folder")
      ->required();
  command
      ->add_option("--data", job->data, "prefix of the text's .bin/.idx pair (`mtrain data build`)")
      ->required();
  command
      ->add_option("--stride", job->stride,
                   "tokens from the start of a window to that of the next; a shorter one gives "
                   "tokens more context; by default windows do not overlap")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""));
  command->add_option("overrides", job->overrides,
                      "settings that win over the saved recipe, such as distributed.tp_size=1 or "
                      "dataset.seq_length=1024");
  command->callback([job] {
    job->job = launch::started_job_from_environment();
    job->machine = machine_of(job->job);
    const run::Evaluation e = run::evaluate_model(*job);
    if (job->job.rank == 0) std::fputs(text_of(e).c_str(), stdout);
  });
}

}  // namespace mtrain
