#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "run/evaluate_run.h"

namespace mtrain {

void add_eval_command(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "measure how well a trained model predicts a text");
  auto job = std::make_shared<run::EvaluateJob>();
  command
      ->add_option("--model", job->model,
                   "run folder of a training (its newest checkpoint), or one checkpoint")
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
                      "settings that win over the saved recipe, such as distributed.tp_size=1");
  command->callback([job] {
    job->job = launch::job_from_environment();
    const run::Evaluation e = run::evaluate_run(*job);
    if (job->job.rank != 0) return;
    std::printf("%.6f nats per token, %.6f bits per byte, perplexity %.4f\n", e.nats_per_token,
                e.bits_per_byte(), e.perplexity());
    std::printf("over %lld tokens (%lld bytes) in %lld windows of %lld tokens, %lld apart\n",
                static_cast<long long>(e.tokens), static_cast<long long>(e.bytes),
                static_cast<long long>(e.windows), static_cast<long long>(e.window),
                static_cast<long long>(e.stride));
  });
}

}  // namespace mtrain
