#include "apps/sample_tokens.h"

#include <unistd.h>
#include <algorithm>

#include "apps/build_progress.h"

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "data/dataset/indexed_dataset.h"
#include "data/dataset/rows_dataset.h"
#include "data/samples/sample_source.h"

namespace mtrain {

namespace {

namespace fs = std::filesystem;

bool has_files(const recipe::SamplesConfig& s) {
  return s.on() && *s.format != recipe::SampleFormat::mock;
}

data::SampleSource source_of(const Recipe& r, const recipe::SamplesConfig& s, const char* name) {
  using From = recipe::SampleFormat;
  using Format = data::SampleSource::Format;
  const bool messages = *s.format == From::messages;
  return {.format = messages                    ? Format::messages
                    : *s.format == From::text   ? Format::text
                    : *s.format == From::tokens ? Format::tokens
                                                : Format::prompt_completion,
          .files = s.files,
          .split = data::parse_split(s.split).value_or(data::Split{}),
          .subset = s.subset.value_or(""),
          .limit = s.limit,
          .shuffle_seed = s.shuffle_seed,
          .column = s.column.value_or(messages ? "messages" : "text"),
          .prompt = s.prompt,
          .completion = s.completion,
          .chat_template = s.chat_template.value_or(""),
          .together = s.together,
          .answers_only = s.answers_only,
          .last_answer = s.last_answer_only,
          .headers = s.headers,
          .plain_messages = s.plain_messages,
          .end_of_text = s.end_of_text.value_or(!messages && !s.chat_template),
          .tokenizer = r.tokenizer.path ? hub_model_folder(*r.tokenizer.path).string() : "byte",
          .name = name};
}

std::string tokenize(const Recipe& r, const recipe::SamplesConfig& s, const char* name, bool shows,
                     const std::function<void()>& alive) {
  const data::SampleSource source = source_of(r, s, name);
  fs::path cache;
  if (r.dataset.cache_dir)
    cache = *r.dataset.cache_dir;
  else if (const auto folder = cache_folder())
    cache = *folder / "data";
  else
    throw UserError("the tokens have no cache folder: neither XDG_CACHE_HOME nor HOME is set",
                    "set dataset.cache_dir");
  int64_t shown = 0;
  const auto progress = [&](const data::BuildProgress& p) {
    if (shows) show_build_progress(p, fmt::format("{}: ", name));
    constexpr int64_t kStep = 10;
    const int64_t percent = p.bytes_total > 0 ? 100 * p.bytes_done / p.bytes_total : 100;
    if ((shows && is_live_terminal(STDERR_FILENO)) || percent < shown + kStep) return;
    shown = percent / kStep * kStep;
    log::info(fmt::format("{}: {} % tokenized, {} rows, {} tokens", name, percent,
                          human_count(double(p.documents)), human_count(double(p.tokens))));
  };
  const auto waits = [&] {
    if (shows) log::info(fmt::format("{}: waits for another process, which tokenizes", name));
  };
  const auto result =
      data::tokenize_samples(source, cache, {.progress = progress, .waits = waits, .alive = alive});
  if (shows)
    log::info(fmt::format("{}: the tokens of {} file{} are {} {}", name, result.files,
                          result.files == 1 ? "" : "s", result.built ? "now in" : "taken from",
                          result.prefix.string()));
  return result.prefix.string();
}

// Makes room for the longest row.
void fit_rows(Recipe& r, Diagnostics& diagnostics) {
  int64_t longest = 0;
  const auto look = [&](const recipe::SamplesConfig& s, const std::vector<std::string>& prefixes) {
    if (s.cut) return;
    for (const std::string& prefix : prefixes)
      longest = std::max(longest, data::longest_row(data::IndexedDataset(prefix)));
  };
  look(r.dataset.train_samples, r.train_tokens);
  look(r.dataset.validation_samples, r.validation_tokens);
  const auto cuts = [](const recipe::SamplesConfig& s) { return has_files(s) && s.cut; };
  const bool keeps = r.given("dataset.seq_length") || cuts(r.dataset.train_samples) ||
                     cuts(r.dataset.validation_samples);
  if (longest <= (keeps ? r.dataset.seq_length : 0)) return;
  const char *positions = "model.max_position_embeddings", *length = "dataset.seq_length";
  auto& most = r.model.max_position_embeddings;
  if (most && !r.model.from && !r.spellings.contains(positions)) most = std::max(*most, longest);
  if (most && longest > *most)
    throw UserError(fmt::format("the longest row has {} tokens, more than the model's {} positions",
                                longest, *most),
                    "set dataset.seq_length and dataset.train.cut: true, which cut rows");
  r.dataset.seq_length = longest;
  r.origins[length] = recipe::Origin::derived;
  diagnostics.resolved(length, fmt::format("{}, the length of the longest row", longest));
}

}  // namespace

bool has_sample_files(const Recipe& r) {
  return has_files(r.dataset.train_samples) || has_files(r.dataset.validation_samples);
}

void add_sample_mistake(const UserError& mistake, Diagnostics& diagnostics) {
  for (const std::string name : {"dataset.train", "dataset.validation"})
    if (mistake.message().starts_with(name + ": "))
      return diagnostics.add(name + "_samples", mistake.message().substr(name.size() + 2),
                             mistake.hint());
  diagnostics.add("dataset.train_samples", mistake.message(), mistake.hint());
}

void check_sample_files(const Recipe& r, Diagnostics& diagnostics) {
  const auto check = [&](const recipe::SamplesConfig& s, const char* name) {
    if (!has_files(s)) return;
    try {
      data::files_of(source_of(r, s, name));
    } catch (const UserError& e) {
      add_sample_mistake(e, diagnostics);
    }
  };
  check(r.dataset.train_samples, "dataset.train");
  check(r.dataset.validation_samples, "dataset.validation");
}

void tokenize_samples(Recipe& r, Diagnostics& diagnostics, bool shows,
                      const std::function<void()>& alive) {
  const recipe::DatasetConfig& d = r.dataset;
  if (has_files(d.train_samples))
    r.train_tokens = {tokenize(r, d.train_samples, "dataset.train", shows, alive)};
  if (has_files(d.validation_samples))
    r.validation_tokens = {tokenize(r, d.validation_samples, "dataset.validation", shows, alive)};
  if (recipe::data_form(r) == recipe::DataForm::rows) fit_rows(r, diagnostics);
}

}  // namespace mtrain
