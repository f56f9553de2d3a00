#include <cstdio>
#include <memory>
#include <string>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "apps/train_options.h"
#include "base/log.h"
#include "commands.h"
#include "launch/job_token.h"
#include "run/evaluate_model.h"

namespace mtrain {

namespace {

// Bits per byte are omitted if the number of bytes is 0, since no tokenizer is known.
std::string text_of(const run::Evaluation& e) {
  const bool text = e.bytes > 0;
  return fmt::format(
      "{:.6f} nats per token, {}perplexity {:.4f}\n"
      "over {} tokens{} in {} {} of {} tokens{}\n",
      e.nats_per_token, text ? fmt::format("{:.6f} bits per byte, ", e.bits_per_byte()) : "",
      e.perplexity(), e.tokens, text ? fmt::format(" ({} bytes)", e.bytes) : "", e.windows,
      e.stride ? "windows" : "samples", e.window,
      e.stride ? fmt::format(", {} apart", e.stride) : "");
}

// The keys are always those in docs/generation.md.
std::string json_of(const run::Evaluation& e, const run::EvaluateJob& job) {
  using Json = nlohmann::ordered_json;
  const bool text = e.bytes > 0;
  const Json json{{"model", job.model},
                  {"data", e.data},
                  {"nats_per_token", e.nats_per_token},
                  {"bits_per_byte", text ? Json(e.bits_per_byte()) : Json()},
                  {"perplexity", e.perplexity()},
                  {"tokens", e.tokens},
                  {"bytes", text ? Json(e.bytes) : Json()},
                  {"samples", e.windows},
                  {"sample_tokens", e.window},
                  {"stride", e.stride ? Json(e.stride) : Json()}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "measure how well a trained model predicts a text");
  auto job = std::make_shared<run::EvaluateJob>();
  auto json = std::make_shared<bool>(false);
  command
      ->add_option("--model", job->model,
                   "run folder of a training (its newest checkpoint), one checkpoint, or a Hugging "
                   "Face folder")
      ->required();
  command
      ->add_option("--data", job->data,
                   "prefix of a .bin/.idx pair (`mtrain data build`); repeat the option for a "
                   "blend; default: dataset.validation of the recipe")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option(
          "--stride", job->stride,
          "tokens from the start of a window to the start of the next; a smaller stride gives "
          "tokens more context; default: the samples of a run's validation")
      ->check(integer_from(int64_t{1}, int64_t{1} << 40).description(""));
  command->add_option("--tokenizer", job->tokenizer,
                      "tokenizer.json or its folder, for a model whose recipe names no tokenizer; "
                      "NullTokenizer: do not report bits per byte");
  command->add_option("--adapter", job->adapter,
                      "adapter (LoRA) to merge into the model: a folder of peft, or a run");
  command->add_flag("--json", *json, "print one line of JSON");
  command->add_option("overrides", job->overrides,
                      "settings that override the saved recipe, such as distributed.tp_size=1 or "
                      "dataset.seq_length=1024");
  add_token_option(*command, job->job.token_file);
  set_examples(*command, {"mtrain eval --model runs/first",
                          "mtrain eval --model hf/first --data data/corpus_valid --json",
                          "mtrain-launch --nproc_per_node=2 mtrain eval --model runs/first"});
  command->callback([job, json] {
    const std::string token_file = job->job.token_file;
    job->job = launch::started_job_from_environment();
    job->job.token_file = token_file;
    launch::hide_token_variable();
    job->machine = machine_of(job->job);
    const run::Evaluation e = run::evaluate_model(*job);
    if (job->job.rank != 0) return;
    if (!e.note.empty()) log::info(e.note);
    if (*json)
      std::fputs(json_of(e, *job).c_str(), stdout);
    else
      print_lines(text_of(e));
  });
}

}  // namespace mtrain
