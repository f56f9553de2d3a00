#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "apps/train_options.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/strings.h"
#include "chat_terminal.h"
#include "commands.h"
#include "launch/job_token.h"
#include "run/generate_text.h"

namespace mtrain {

namespace {

struct GenerateOptions {
  std::string prompt, prompts_file, dtype = "fp32", bos = "auto", chat_template, system;
  bool chat = false;
  run::GenerateJob job;
  generate::GenerateOptions generate;
};

void read_prompts(GenerateOptions& o) {
  if (o.prompts_file.empty()) {
    o.job.prompts = {o.prompt};
    return;
  }
  int64_t number = 0;
  for (std::string_view line : split(read_file(o.prompts_file), '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);  // the file has Windows line ends
    if (line.empty()) continue;
    o.job.prompts.emplace_back(line);
    o.job.names.push_back(fmt::format("the prompt at {}:{}", o.prompts_file, number));
  }
  if (o.job.prompts.empty())
    throw UserError(fmt::format("{} holds no prompt", o.prompts_file), "write one on each line");
}

// Refuses an empty --stop, and options that have no effect: on a chat, outside of one, or without
// sampling.
void refuse_idle(const CLI::App& command, const GenerateOptions& o) {
  if (std::ranges::count(o.generate.stop, "") > 0)
    throw UserError("--stop is empty, which would end every text at once", "give a string");
  for (const char* name : {"--chat-template", "--system"})
    if (!o.chat && command.get_option(name)->count() > 0)
      throw UserError(fmt::format("{} has no effect without --chat", name),
                      "add --chat, or leave it out");
  for (const char* name : {"--num", "--batch"})
    if (o.chat && command.get_option(name)->count() > 0)
      throw UserError(fmt::format("{} has no effect on a chat", name), "leave one of the two out");
  if (o.generate.sampling.temperature > 0) return;
  for (const char* name : {"--top-k", "--top-p", "--min-p", "--seed"})
    if (command.get_option(name)->count() > 0)
      throw UserError(fmt::format("{} has no effect: --temperature 0 does not sample", name),
                      "leave one of the two out");
  if (o.job.num > 1)
    throw UserError(
        fmt::format("--num {} texts would be equal: --temperature 0 does not sample", o.job.num),
        "leave one of the two out");
}

void write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout))
    throw RunError(fmt::format("cannot write the text: {}", std::strerror(errno)));
}

// Returns a listener that writes a single text while it is generated.
generate::Listener one_text(generate::End& why) {
  return {.text = [](size_t, std::string_view bytes) { write(bytes); },
          .end = [&why](size_t, generate::End end) { write("\n"), why = end; }};
}

// Returns a listener that writes each finished text as a line of JSON.
generate::Listener many_texts(const GenerateOptions& o) {
  auto texts = std::make_shared<std::map<size_t, std::string>>();
  return {.text = [texts](size_t i, std::string_view bytes) { (*texts)[i] += bytes; },
          .end =
              [texts, &o](size_t i, generate::End end) {
                const size_t num = size_t(o.job.num);
                const nlohmann::ordered_json line{{"prompt", i / num},
                                                  {"sample", i % num},
                                                  {"text", (*texts)[i]},
                                                  {"end", generate::end_name(end)}};
                using Bad = nlohmann::ordered_json::error_handler_t;
                write(line.dump(-1, ' ', false, Bad::replace) + "\n");
                texts->erase(i);
              }};
}

void run_generate(GenerateOptions& o) {
  if (!o.chat) read_prompts(o);
  o.job.dtype = o.dtype == "bf16" ? DType::bf16 : DType::f32;
  o.generate.bos = o.bos == "none"     ? data::BeginOfText::none
                   : o.bos == "always" ? data::BeginOfText::always
                                       : data::BeginOfText::automatic;
  const std::string token_file = o.job.job.token_file;
  o.job.job = launch::started_job_from_environment();
  o.job.job.token_file = token_file;
  launch::hide_token_variable();
  o.job.machine = machine_of(o.job.job);
  if (o.chat) return run_chat_on_terminal({o.job, o.chat_template, o.system}, o.generate);
  const bool one = o.prompts_file.empty() && o.job.num == 1, speaks = o.job.job.rank == 0;
  generate::End why = generate::End::tokens;
  const generate::Listener silent{.text = [](size_t, std::string_view) {},
                                  .end = [](size_t, generate::End) {}};
  const int64_t context = run::generate_text(o.job, o.generate,
                                             !speaks ? silent
                                             : one   ? one_text(why)
                                                     : many_texts(o));
  if (why == generate::End::context)
    log::info(fmt::format("the text ends here: the model's context of {} tokens is full", context));
}

void add_sampling_options(CLI::App& command, generate::SamplingOptions& s) {
  const char* group = "Sampling (in this order)";
  command
      .add_option("--repetition-penalty", s.repetition_penalty,
                  "divides the positive logits of tokens that have occurred, and multiplies their "
                  "negative logits")
      ->check(number_from(0.01, 100.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--temperature", s.temperature,
                  "divides the logits; 0: always take the most likely token")
      ->check(number_from(0.0, 10.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--top-k", s.top_k, "sample from the k most likely tokens; 0: from all")
      ->check(integer_from(0, 10000000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--top-p", s.top_p,
                  "sample from the smallest set of most likely tokens whose probabilities sum to "
                  "at least this")
      ->check(number_from(1e-6, 1.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--min-p", s.min_p,
                  "sample from tokens with at least this probability, relative to that of the most "
                  "likely token")
      ->check(number_from(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", s.seed, "seed of the random numbers")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "continue prompts with a trained model");
  auto o = std::make_shared<GenerateOptions>();
  command
      ->add_option("--model,--run", o->job.model,
                   "run folder of a training (its newest checkpoint), one checkpoint, or a Hugging "
                   "Face folder")
      ->required();
  command->add_option("--tokenizer", o->job.tokenizer,
                      "tokenizer.json or its folder, for a model whose recipe names no tokenizer");
  command->add_option("--adapter", o->job.adapter,
                      "adapter (LoRA) to merge into the model: a folder of peft, or a run");
  auto* prompts = command->add_option_group("Prompts");
  prompts->add_option("--prompt", o->prompt, "text to continue");
  prompts->add_option(
      "--prompts", o->prompts_file,
      "file with one prompt per line; empty lines are skipped; prints each text as a line of JSON");
  prompts->add_flag("--chat", o->chat,
                    "talk: each line of the input is a message, and the model's chat template "
                    "writes the prompt");
  prompts->require_option(1);
  command->add_option("--chat-template", o->chat_template,
                      "file, folder or text of the template for --chat; default: the tokenizer's");
  command->add_option("--system", o->system, "the system's message for --chat");
  command->add_option("--num", o->job.num, "texts for each prompt")
      ->check(integer_from(1, 1000000))
      ->capture_default_str();
  command->add_option("--batch", o->job.batch, "maximum number of texts to generate at once")
      ->check(integer_from(1, 65536))
      ->capture_default_str();
  command->add_option("--tokens", o->generate.tokens, "tokens to add")
      ->check(integer_from(1, 1000000))
      ->capture_default_str();
  command->add_option("--stop", o->generate.stop,
                      "a text ends before this string; repeat the option for several");
  command->add_option("--eos", o->generate.eos, "ids that end a text, besides the model's own")
      ->check(integer_from(0, std::numeric_limits<int32_t>::max()).description(""));
  command
      ->add_option("--bos", o->bos,
                   "BOS token before each prompt; auto: as in the tokenizer's configuration")
      ->check(one_of({"auto", "none", "always"}))
      ->capture_default_str();
  command->add_option("--dtype", o->dtype, "element type of the weights and of the key-value cache")
      ->check(one_of({"fp32", "bf16"}))
      ->capture_default_str();
  add_sampling_options(*command, o->generate.sampling);
  add_token_option(*command, o->job.job.token_file);
  set_examples(*command,
               {"mtrain generate --model runs/first --prompt 'To be, or' --tokens 50",
                "mtrain generate --model runs/first --prompts prompts.txt --num 3 --seed 7",
                "mtrain generate --model hf/first --prompt 'To be, or' --temperature 0 --stop '.'",
                "mtrain generate --model runs/first --chat --chat-template chat.jinja"});
  command->callback([command, o] {
    refuse_idle(*command, *o);
    run_generate(*o);
  });
}

}  // namespace mtrain
