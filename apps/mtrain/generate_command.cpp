#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "commands.h"
#include "run/generate_from_run.h"

namespace mtrain {

void add_generate_command(CLI::App& app) {
  struct Options {
    std::string run, prompt;
    generate::GenerateOptions generate;
  };
  auto* command = app.add_subcommand("generate", "continue a prompt with a trained model");
  auto o = std::make_shared<Options>();
  command
      ->add_option("--run", o->run,
                   "run folder of a training (its newest checkpoint), or one checkpoint")
      ->required();
  command->add_option("--prompt", o->prompt, "text to continue")->required();
  command->add_option("--tokens", o->generate.tokens, "tokens to add")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command
      ->add_option("--temperature", o->generate.temperature,
                   "spread of the draws; 0: always the likeliest token")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command
      ->add_option("--top-k", o->generate.top_k, "draw among the k likeliest tokens; 0: among all")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  command->add_option("--seed", o->generate.seed, "seed of the draws")->capture_default_str();
  command->callback([o] {
    const auto emit = [](std::string_view bytes) {
      std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      std::fflush(stdout);
    };
    run::generate_from_run(o->run, o->prompt, o->generate, emit);
    emit("\n");
  });
}

}  // namespace mtrain
