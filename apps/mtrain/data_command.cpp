#include <unistd.h>
#include <filesystem>
#include <limits>
#include <memory>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/build_progress.h"
#include "apps/command_line.h"
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "commands.h"
#include "data/build/build.h"
#include "data/dataset/bigram.h"
#include "data/dataset/indexed_dataset.h"
#include "data/dataset/sample_text.h"
#include "launch/end_signals.h"
#include "run/signal_guard.h"

namespace mtrain {

namespace {

struct BuildCommand {
  data::BuildOptions build;
  std::string tokenizer = "byte", format = "auto", split = "file", validation_split = "documents",
              bos = "auto", eod, chat_template;
  bool no_eod = false;
};

void build(BuildCommand c) {
  c.build.format = pick<data::InputFormat>(c.format, {{"auto", data::InputFormat::automatic},
                                                      {"text", data::InputFormat::text},
                                                      {"jsonl", data::InputFormat::jsonl}});
  c.build.split =
      pick<data::DocumentSplit>(c.split, {{"file", data::DocumentSplit::file},
                                          {"blank-line", data::DocumentSplit::blank_line},
                                          {"separator", data::DocumentSplit::separator}});
  c.build.validation_split = pick<data::ValidationSplit>(
      c.validation_split,
      {{"documents", data::ValidationSplit::documents}, {"tail", data::ValidationSplit::tail}});
  c.build.bos = pick<data::BeginOfText>(c.bos, {{"auto", data::BeginOfText::automatic},
                                                {"none", data::BeginOfText::none},
                                                {"always", data::BeginOfText::always}});
  const bool chats = !c.build.messages_field.empty();
  if (!chats && !c.chat_template.empty())
    throw UserError("--chat-template has no effect without --messages-field",
                    "name the field of a JSON line that holds the messages: --messages-field "
                    "messages");
  if (chats) c.build.chat = data::load_chat_template(c.chat_template, c.tokenizer);
  c.build.append_eod = !c.no_eod && (!chats || !c.eod.empty());
  const auto tokenizer = data::load_tokenizer(c.tokenizer, c.eod);
  for (const std::filesystem::path& prefix : data::output_prefixes(c.build))
    if (std::error_code error; std::filesystem::exists(data::idx_path(prefix), error))
      log::info(fmt::format("replaces the tokens of {}", prefix.string()));
  const run::SignalGuard signals;
  const data::BuildResult result =
      build_dataset(c.build, *tokenizer, [&](const data::BuildProgress& p) {
        show_build_progress(p);
        // The exception ends the build, and its temporary files are deleted.
        if (signals.signal())
          throw RunError(fmt::format("{}: stopped early, and nothing was written",
                                     launch::name_of(signals.signal())));
      });
  for (const auto& part : result.parts)
    print_lines(fmt::format(
        "{}: {} documents, {} tokens{}\n", part.prefix.string(), part.documents, part.tokens,
        c.build.prompt_field.empty() && !chats ? ""
                                               : fmt::format(", {} of them labels", part.labels)));
  if (result.bad_lines) fmt::print("{} lines were skipped\n", result.bad_lines);
  if (result.without_token)
    print_lines(fmt::format("{} without a token: {}\n",
                            c.build.prompt_field.empty() ? "texts" : "answers",
                            result.without_token));
}

void add_build(CLI::App& data) {
  auto* app = data.add_subcommand("build", "turn text or JSON lines into a .bin/.idx token file");
  auto c = std::make_shared<BuildCommand>();
  app->add_option("--input,-i", c->build.inputs, "text or JSONL files, or folders of them")
      ->required();
  app->add_option("--output,-o", c->build.output, "prefix of the files to write")->required();
  app->add_option("--tokenizer,-t", c->tokenizer,
                  "byte, a tokenizer.json, or a folder that holds one")
      ->capture_default_str();
  app->add_option("--format", c->format, "format of the input files; auto: from their names")
      ->check(one_of({"auto", "text", "jsonl"}))
      ->capture_default_str();
  auto* text = app->add_option("--json-field", c->build.json_field,
                               "field of a JSON line that holds the text")
                   ->capture_default_str();
  auto* prompt =
      app->add_option("--prompt-field", c->build.prompt_field,
                      "field of a JSON line that holds a prompt, which the loss excludes; also "
                      "writes <output>.mask")
          ->excludes(text);
  auto* answer =
      app->add_option("--answer-field", c->build.answer_field,
                      "field that holds the answer to the prompt; only answers are trained on")
          ->excludes(text);
  app->add_option("--messages-field", c->build.messages_field,
                  "field of a JSON line that holds the messages of a conversation; only what the "
                  "assistant says is trained on")
      ->excludes(text)
      ->excludes(prompt)
      ->excludes(answer);
  app->add_option("--chat-template", c->chat_template,
                  "file, folder or text of the template that writes conversations; default: the "
                  "tokenizer's");
  app->add_option("--split", c->split, "how to divide a text file into documents")
      ->check(one_of({"file", "blank-line", "separator"}))
      ->capture_default_str();
  app->add_option("--separator", c->build.separator,
                  "the line between documents, for --split separator")
      ->capture_default_str();
  app->add_option("--bos", c->bos,
                  "BOS token before each document; auto: as in the tokenizer's configuration")
      ->check(one_of({"auto", "none", "always"}))
      ->capture_default_str();
  auto* eod = app->add_option("--eod", c->eod,
                              "token that ends each document; default: the eos_token of the "
                              "tokenizer's configuration, or the usual one in its vocabulary");
  app->add_flag("--no-eod", c->no_eod, "do not end documents with the end-of-document token")
      ->excludes(eod);
  app->add_option("--validation-fraction", c->build.validation_fraction,
                  "fraction of the data to hold out; writes <output>_train and <output>_valid")
      ->check(number_from(0.0, 0.9))
      ->capture_default_str();
  app->add_option("--validation-split", c->validation_split,
                  "held-out data: documents chosen at random, or the end of the input (tail)")
      ->check(one_of({"documents", "tail"}))
      ->capture_default_str();
  app->add_option("--seed", c->build.seed, "seed of the random choice of documents")
      ->capture_default_str();
  app->add_flag("--skip-bad-lines", c->build.skip_bad_lines,
                "skip and count JSON lines that cannot be used, instead of stopping");
  app->add_option("--threads", c->build.threads, "tokenizer threads; 0: one per core")
      ->check(integer_from(0, 1024))
      ->capture_default_str();
  set_examples(*app,
               {"mtrain data build --input corpus.txt --output data/corpus "
                "--validation-fraction 0.05 --validation-split tail",
                "mtrain data build --input texts.jsonl --json-field text --output data/texts",
                "mtrain data build --input answers.jsonl --prompt-field question --answer-field "
                "answer --output data/answers",
                "mtrain data build --input chats.jsonl --messages-field messages --chat-template "
                "chat.jinja --output data/chats"});
  app->callback([c] { build(*c); });
}

void add_show(CLI::App& data) {
  struct Options {
    std::string prefix, tokenizer = "byte";
    int64_t sample = 0;
  };
  auto* app = data.add_subcommand("show", "print the text of a sample, and which of it are labels");
  auto o = std::make_shared<Options>();
  app->add_option("prefix", o->prefix, "prefix of the token files")->required();
  app->add_option("--sample", o->sample, "number of the sample, a document of the files, from 0")
      ->check(integer_from(0, std::numeric_limits<int64_t>::max(), 0).description(""))
      ->capture_default_str();
  app->add_option("--tokenizer,-t", o->tokenizer, "the tokenizer that built the files")
      ->capture_default_str();
  set_examples(*app, {"mtrain data show data/answers --sample 3"});
  app->callback([o] {
    const data::IndexedDataset tokens(o->prefix);
    const auto tokenizer = data::load_tokenizer(o->tokenizer);
    const bool colors = wants_color(STDOUT_FILENO);
    const data::LabelMarks marks =
        colors ? data::LabelMarks{"\033[32m", "\033[0m"} : data::LabelMarks{"[[", "]]"};
    print_lines(describe_sample(tokens, o->sample) + "\n");
    fmt::print("{}\n", text_of_sample(tokens, o->sample, *tokenizer, marks));
  });
}

void add_bigram(CLI::App& data) {
  struct Options {
    std::string train, valid, tokenizer = "byte";
  };
  auto* app =
      data.add_subcommand("bigram", "loss of a bigram table, a baseline that a model must beat");
  auto o = std::make_shared<Options>();
  app->add_option("--train", o->train, "prefix of the training tokens")->required();
  app->add_option("--valid", o->valid, "prefix of the held-out tokens")->required();
  app->add_option("--tokenizer,-t", o->tokenizer, "the tokenizer that built both files")
      ->capture_default_str();
  set_examples(*app, {"mtrain data bigram --train data/corpus_train --valid data/corpus_valid"});
  app->callback([o] {
    const auto vocab = data::load_tokenizer(o->tokenizer)->vocab_size();
    const data::BigramResult r =
        bigram_loss(data::IndexedDataset(o->train), data::IndexedDataset(o->valid), vocab);
    print_lines(fmt::format("bigram loss {:.4f} nats per token over {} pairs\n", r.loss, r.pairs));
  });
}

}  // namespace

void add_data_command(CLI::App& app) {
  auto* data = app.add_subcommand("data", "prepare and inspect training data");
  data->require_subcommand(1);
  set_examples(*data, {"mtrain data build --input corpus.txt --output data/corpus "
                       "--validation-fraction 0.05 --validation-split tail",
                       "mtrain data bigram --train data/corpus_train --valid data/corpus_valid"});
  add_build(*data);
  add_show(*data);
  add_bigram(*data);
}

}  // namespace mtrain
