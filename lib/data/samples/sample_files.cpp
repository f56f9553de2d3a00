// Finds the files of a data set: given ones, those of a folder, or those in the Hub's cache.
#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include <fmt/core.h>

#include "base/error.h"
#include "base/hub_cache.h"
#include "data/parquet/parquet_rows.h"
#include "data/samples/nanogpt_tokens.h"
#include "data/samples/sample_source.h"

namespace mtrain::data {
namespace {

namespace fs = std::filesystem;

bool has_json_lines(const fs::path& file) {
  const std::string ending = file.extension().string();
  return ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

// The words by which the Python package `datasets` finds the splits.
const std::vector<std::pair<std::string, std::vector<std::string>>> kSplits{
    {"train", {"train", "training"}},
    {"validation", {"validation", "valid", "dev", "val"}},
    {"test", {"test", "testing", "eval", "evaluation"}}};

std::vector<std::string> words_of(const std::string& split) {
  for (const auto& [name, words] : kSplits)
    if (name == split) return words;
  return {split};
}

// Whether a text has the word: "plain_text/train" and "train2" have "train". `joined`: "_" is a
// part of words, so "train_sft" has not.
bool has_word(const std::string& text, const std::string& word, bool joined) {
  const auto part_of_word = [&](size_t i) {
    const auto c = static_cast<unsigned char>(i < text.size() ? text[i] : ' ');
    const bool digits = std::isdigit(static_cast<unsigned char>(word.back())) != 0;
    return std::isalpha(c) != 0 || (digits && std::isdigit(c) != 0) || (joined && c == '_');
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if (!part_of_word(at - 1) && !part_of_word(at + word.size())) return true;
  return false;
}

bool has_any_word(const std::string& text, const std::vector<std::string>& words,
                  bool joined = false) {
  return std::ranges::any_of(words, [&](const auto& word) { return has_word(text, word, joined); });
}

// Whether a folder of the relative path has the name.
bool in_folder(const fs::path& path, const std::string& name) {
  const fs::path parent = path.parent_path();
  return std::ranges::find(parent, fs::path(name)) != parent.end();
}

// The place of a file among others that hold a part of the rows each: NAME-00001-of-00006.parquet.
struct Shard {
  fs::path all;  // the file's path, with * for its number
  int64_t number = 0, count = 0;
};

std::optional<Shard> shard_of(const fs::path& file) {
  static const std::regex pattern("(.*)-([0-9]{5})-of-([0-9]{5})([-.].*)");
  std::smatch parts;
  const std::string name = file.filename().string();
  if (!std::regex_match(name, parts, pattern)) return std::nullopt;
  // A hash may follow, which differs between the files.
  const std::string all =
      fmt::format("{}-*-of-{}{}", parts[1].str(), parts[3].str(), file.extension().string());
  return Shard{file.parent_path() / all, std::stoll(parts[2]), std::stoll(parts[3])};
}

[[noreturn]] void refuse_parquet(const SampleSource& source, const fs::path& file) {
  const std::string lines = fs::path(file).replace_extension(".jsonl").filename().string();
  throw UserError(
      fmt::format("{}: {} is parquet, which this build does not read", source.name, file.string()),
      fmt::format(
          "install pyarrow and build mtrain again, or convert it once, and name {0}: python3 -c "
          "\"import pandas; "
          "pandas.read_parquet('{1}').to_json('{0}', orient='records', lines=True)\"",
          lines, file.string()));
}

// Files are named when they are complete, so those that an interrupted download lacks are absent.
void require_all_shards(const SampleSource& source, const std::string& given,
                        const std::vector<fs::path>& files) {
  std::map<fs::path, std::pair<int64_t, std::set<int64_t>>> present;
  for (const fs::path& file : files)
    if (const auto shard = shard_of(file)) {
      auto& [count, numbers] = present[shard->all];
      count = shard->count;
      numbers.insert(shard->number);
    }
  for (const auto& [all, found] : present) {
    const auto& [count, numbers] = found;
    if (int64_t(numbers.size()) >= count) continue;
    const std::string hint = hub_dataset_hint(given);
    throw UserError(fmt::format("{}: only {} of the {} files {} are there", source.name,
                                numbers.size(), count, all.string()),
                    (hint.empty() ? "" : hint + "; ") +
                        "to use a part of the rows, name the files instead of the folder");
  }
}

// How the path of a file below its folder names a split.
struct SplitName {
  std::string folder, file;  // file: without its ending, and without the number of a shard
  bool shard = false;

  explicit SplitName(const fs::path& path)
      : folder(path.parent_path().string()), file(path.stem().string()) {
    const auto part = shard_of(path);
    if (!part) return;
    shard = true;
    const std::string all = part->all.filename().string();
    file = all.substr(0, all.find("-*-of-"));
  }
  // The file's own name counts more than those of its folders. A shard has the exact name of its
  // split before its number: train_sft and train_gen are two splits.
  bool is(const std::string& split) const {
    if (has_any_word(file, words_of(split), shard)) return true;
    return !names_any(file) && has_any_word(folder, words_of(split));
  }
  bool is_any() const { return names_any(file) || names_any(folder); }

 private:
  static bool names_any(const std::string& text) {
    return std::ranges::any_of(kSplits,
                               [&](const auto& split) { return has_any_word(text, split.second); });
  }
};

// Throws UserError if a data set has the same part several times: each of its configurations, which
// are folders, has all splits.
void require_one_subset(const SampleSource& source, const fs::path& folder,
                        const std::vector<fs::path>& files) {
  std::map<std::string, std::set<std::string>> folders;  // by what the files are called
  for (const fs::path& file : files) {
    const fs::path path = file.lexically_relative(folder);
    folders[SplitName(path).file].insert(path.parent_path().string());
  }
  for (const auto& [name, names] : folders) {
    if (names.size() < 2) continue;
    std::string list;
    for (const std::string& one : names) list += (list.empty() ? "" : ", ") + one;
    throw UserError(fmt::format("{}: {} has `{}` in several folders: {}", source.name,
                                folder.string(), name, list),
                    fmt::format("write {}.subset: FOLDER, or list the folders", source.name));
  }
}

struct FilesByForm {
  std::vector<fs::path> lines = {}, parquet = {};
};

// Returns the files of one form. Without a reader of Parquet these are its conversions.
std::vector<fs::path> one_form(const SampleSource& source, const fs::path& folder,
                               FilesByForm files) {
  if (!files.lines.empty() && !files.parquet.empty() && reads_parquet())
    throw UserError(
        fmt::format("{}: {} has rows as JSON lines ({}) and as Parquet ({})", source.name,
                    folder.string(), std::ranges::min(files.lines).filename().string(),
                    std::ranges::min(files.parquet).filename().string()),
        "name the files that have the rows to use");
  if (!files.lines.empty()) return std::move(files.lines);
  if (!files.parquet.empty() && !reads_parquet())
    refuse_parquet(source, std::ranges::min(files.parquet));
  return std::move(files.parquet);
}

// Returns the files of a folder that belong to the split; without a name those of `train`. If no
// file is one of `train`, those that name no split are.
std::vector<fs::path> files_in(const SampleSource& source, const fs::path& folder) {
  const std::string split = source.split.name.empty() ? "train" : source.split.name;
  FilesByForm named, others;
  std::set<std::string> shards;  // the splits that shards name
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const fs::path& file = it->path();
    const std::string path = file.lexically_relative(folder).string();
    const bool json = has_json_lines(file);
    if ((!json && file.extension() != ".parquet") || path.ends_with("_infos.json")) continue;
    if (!source.subset.empty() && !in_folder(path, source.subset)) continue;
    const SplitName name(path);
    if (name.shard) shards.insert(name.file);
    if (!name.is(split) && name.is_any()) continue;
    FilesByForm& kind = name.is(split) ? named : others;
    (json ? kind.lines : kind.parquet).push_back(file);
  }
  std::vector<fs::path> files = one_form(source, folder, std::move(named));
  if (source.subset.empty()) require_one_subset(source, folder, files);
  if (files.empty() && split == "train") files = one_form(source, folder, std::move(others));
  if (files.empty()) {
    std::string names;
    for (const std::string& shard : shards) names += (names.empty() ? ": " : ", ") + shard;
    throw UserError(
        fmt::format("{}: {} has no rows of the split `{}`{}", source.name, folder.string(), split,
                    source.subset.empty() ? "" : " in a folder " + source.subset),
        "name the files, or a split that the folder has" + names);
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::vector<fs::path> files_of(const SampleSource& source) {
  if (source.format == SampleSource::Format::tokens) return token_files(source.files, source.name);
  std::vector<fs::path> files;
  std::error_code error;
  for (const std::string& name : source.files) {
    const bool file = has_json_lines(name) || fs::path(name).extension() == ".parquet";
    const auto problem = file ? std::nullopt : hub_dataset_problem(name);
    if (problem)
      throw UserError(fmt::format("{}: {}", source.name, problem->message), problem->hint);
    const fs::path path = file ? fs::path(name) : hub_dataset_folder(name);
    if (!fs::exists(path, error))
      throw UserError(fmt::format("{}: {} does not exist", source.name, name),
                      "give a file of JSON lines, a folder of them, or the name of a data set in "
                      "the Hub's cache, such as organization/name");
    if (!fs::is_directory(path, error)) {
      if (path.extension() == ".parquet" && !reads_parquet()) refuse_parquet(source, path);
      files.push_back(path);
      continue;
    }
    const std::vector<fs::path> inside = files_in(source, path);
    require_all_shards(source, name, inside);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

}  // namespace mtrain::data
