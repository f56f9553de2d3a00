#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/waiting_lock.h"
#include "data/dataset/content.h"
#include "data/dataset/indexed_dataset.h"
#include "data/parquet/parquet_rows.h"
#include "data/samples/nanogpt_tokens.h"
#include "data/samples/row_encoder.h"
#include "data/samples/sample_source.h"

namespace mtrain::data {
namespace {

namespace fs = std::filesystem;

// Changes whenever the same source gives other tokens.
constexpr const char* kVersion = "samples 2";

std::string hash_of(const fs::path& file, const TokenizeCalls& calls) {
  std::string hash = known_or_read_hash(file, [&] {
    if (calls.alive) calls.alive();
    return true;
  });
  if (hash.empty())
    throw RunError(fmt::format("{} changed while it was read", file.string()),
                   "start again once the file is complete");
  return hash;
}

// Returns a hash of all that decides the tokens: settings, and the content of data, tokenizer and
// template.
std::string key_of(const SampleSource& s, const std::vector<fs::path>& files,
                   const ChatTemplate* chat, const TokenizeCalls& calls) {
  ContentHash key;
  const auto add = [&](const std::string& text) { key.add(text).add(std::string_view("\0", 1)); };
  const auto bound = [](const std::optional<Split::Bound>& b) {
    return b ? fmt::format("{}{}", b->value, b->percent ? "%" : "") : "";
  };
  add(kVersion);
  add(fmt::format("{} {} {} {} {} {}:{} {} {}", int(s.format), s.together, s.answers_only,
                  s.headers, s.end_of_text, bound(s.split.begin), bound(s.split.end),
                  s.limit.value_or(-1), s.shuffle_seed.value_or(-1)));
  if (s.last_answer) add("last_answer");
  if (s.plain_messages) add("plain_messages");
  for (const std::string& text : {s.column, s.prompt, s.completion}) add(text);
  add(chat ? "a template: " + chat->source() : "no template");
  for (const fs::path& file : files) add(hash_of(file, calls));
  std::error_code error;
  const fs::path at = s.tokenizer;
  const fs::path folder = fs::is_directory(at, error) ? at : at.parent_path();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json"})
    if (s.tokenizer != "byte" && fs::is_regular_file(folder / name, error))
      add(fmt::format("{} {}", name, hash_of(folder / name, calls)));
  if (fs::is_regular_file(at, error)) add(hash_of(at, calls));
  return key.hex();
}

// Locks what builds the tokens of `prefix`. On a file system without locks processes build the same
// files, each under names of its own, and rename them when they are complete.
WaitingLock building_lock(const fs::path& prefix, const TokenizeCalls& calls) {
  return {fs::path(prefix).concat(".lock"), "set dataset.cache_dir to a folder that can be written",
          [&, told = false](std::chrono::milliseconds waited) mutable {
            constexpr std::chrono::milliseconds kShort{250};
            if (waited >= kShort && calls.waits && !std::exchange(told, true)) calls.waits();
            if (calls.alive) calls.alive();
          }};
}

// Whether a file of JSON is one list of rows, as `json.dump` writes it.
bool is_json_list(const fs::path& file) {
  if (file.extension() != ".json") return false;
  std::ifstream input(file);
  char first = 0;
  input >> first;
  return first == '[';
}

void json_list_to_lines(const fs::path& file, const fs::path& lines) {
  const auto rows = parse_ordered_json(read_file(file), file.string());
  std::ofstream output(lines);
  for (const auto& row : rows) output << row.dump() << '\n';
  if (!output.flush())
    throw RunError(fmt::format("cannot write {}", lines.string()),
                   "set dataset.cache_dir to a folder with more space");
}

// A folder of this process alone, which is removed at the end of its life. Its name is that of a
// temporary file of `path`.
class OwnFolder {
 public:
  explicit OwnFolder(const fs::path& path) : path_(path) {
    static std::atomic<int> count{0};
    remove_stale_temporaries(path);
    path_ += fmt::format(".tmp.{}.{}.{}", ::getpid(), count++, host_name());
  }
  ~OwnFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The rows of Parquet files and JSON lists as JSON lines, in a temporary folder.
class ReadableFiles {
 public:
  ReadableFiles(std::vector<fs::path> files, const fs::path& folder, const TokenizeCalls& calls)
      : files_(std::move(files)), folder_(folder) {
    for (size_t i = 0; i < files_.size(); ++i) {
      const bool list = is_json_list(files_[i]);
      if (!list && files_[i].extension() != ".parquet") continue;
      fs::create_directories(folder_.path());
      const fs::path lines =
          folder_.path() / fmt::format("{:05}-{}.jsonl", i, files_[i].filename().string());
      if (list)
        json_list_to_lines(files_[i], lines);
      else
        parquet_to_json_lines(files_[i], lines);
      if (calls.alive) calls.alive();
      given_[lines.string()] = std::exchange(files_[i], lines).string();
    }
  }
  const std::vector<fs::path>& files() const { return files_; }

  // Replaces the name of a file in the folder by that of the user's file: LINES.jsonl:7 becomes
  // FILE.parquet, row 7.
  std::string with_given_names(std::string message) const {
    for (const auto& [lines, given] : given_) {
      const size_t at = message.find(lines);
      if (at == std::string::npos) continue;
      const bool row = message.compare(at + lines.size(), 1, ":") == 0;
      message.replace(at, lines.size() + size_t(row), given + (row ? ", row " : ""));
    }
    return message;
  }

 private:
  std::vector<fs::path> files_;
  std::map<std::string, std::string> given_;  // the user's file of each file in the folder
  OwnFolder folder_;
};

// A recipe has other words than the options of `mtrain data build`, and none that leaves lines out.
std::string hint_for_recipe(const std::string& hint, const SampleSource& source) {
  const std::string_view column = "give --messages-field ";
  if (hint.starts_with(column))
    return fmt::format("write {}.column: {}", source.name, hint.substr(column.size()));
  return hint.find("--skip-bad-lines") == std::string::npos ? hint : "fix the line, or remove it";
}

// The index is written last.
bool complete(const fs::path& prefix) {
  std::error_code error;
  return fs::exists(idx_path(prefix), error) && fs::exists(bin_path(prefix), error);
}

}  // namespace

TokenizedSamples tokenize_samples(const SampleSource& source, const fs::path& cache,
                                  const TokenizeCalls& calls) {
  const std::vector<fs::path> files = files_of(source);
  std::error_code error;
  fs::create_directories(cache, error);
  if (error)
    throw RunError(fmt::format("cannot make the folder {}: {}", cache.string(), error.message()),
                   "set dataset.cache_dir to a folder that can be written");
  const auto chat = chat_template_of(source);
  const fs::path prefix = cache / key_of(source, files, chat.get(), calls);
  if (complete(prefix)) return {prefix, false, int64_t(files.size())};
  const WaitingLock lock = building_lock(prefix, calls);
  if (complete(prefix)) return {prefix, false, int64_t(files.size())};
  if (source.format == SampleSource::Format::tokens) {
    try {
      convert_token_files(files, prefix);
    } catch (const UserError& e) {
      throw UserError(fmt::format("{}: {}", source.name, e.message()), e.hint());
    }
    return {prefix, true, int64_t(files.size())};
  }
  const auto tokenizer = load_tokenizer(source.tokenizer);
  BuildOptions build{.output = prefix,
                     .format = InputFormat::jsonl,
                     .bos = BeginOfText::none,
                     .append_eod = false};
  std::optional<ReadableFiles> readable;
  try {
    readable.emplace(files, fs::path(prefix).concat(".rows"), calls);
    build.inputs = readable->files();
    build.lines = std::make_shared<RowEncoder>(source, readable->files(), *tokenizer, chat);
    build_dataset(build, *tokenizer, [&](const BuildProgress& done) {
      if (calls.alive) calls.alive();
      if (calls.progress) calls.progress(done);
    });
  } catch (const UserError& e) {
    const bool named = e.message().starts_with(source.name);
    const std::string message =
        named ? e.message() : fmt::format("{}: {}", source.name, e.message());
    throw UserError(readable ? readable->with_given_names(message) : message,
                    hint_for_recipe(e.hint(), source));
  }
  return {prefix, true, int64_t(files.size())};
}

}  // namespace mtrain::data
