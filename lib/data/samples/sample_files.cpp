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

// Whether a path has the word: "plain_text/train-00000-of-00001.parquet" has "train".
bool has_word(const std::string& path, const std::string& word) {
  for (size_t at = path.find(word); at != std::string::npos; at = path.find(word, at + 1)) {
    const auto part_of_word = [&](size_t i) {
      return i < path.size() && (std::isalnum(static_cast<unsigned char>(path[i])) != 0);
    };
    if (!part_of_word(at - 1) && !part_of_word(at + word.size())) return true;
  }
  return false;
}

// Whether a folder of the relative path has the name.
bool in_folder(const fs::path& path, const std::string& name) {
  const fs::path parent = path.parent_path();
  return std::ranges::find(parent, fs::path(name)) != parent.end();
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

// Returns the files of a folder that belong to the split; without a name all, except those of
// other splits.
std::vector<fs::path> files_in(const SampleSource& source, const fs::path& folder) {
  const std::string split = source.split.name.empty() ? "train" : source.split.name;
  std::vector<fs::path> lines, parquet, others;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const fs::path& file = it->path();
    const std::string name = file.lexically_relative(folder).string();
    const bool json = has_json_lines(file);
    if ((!json && file.extension() != ".parquet") || name.ends_with("_infos.json")) continue;
    if (!source.subset.empty() && !in_folder(name, source.subset)) continue;
    if (has_word(name, split))
      (json ? lines : parquet).push_back(file);
    else if (json && !has_word(name, "test") && !has_word(name, "validation"))
      others.push_back(file);
  }
  if (lines.empty() && !parquet.empty()) {
    if (!reads_parquet()) refuse_parquet(source, std::ranges::min(parquet));
    lines = std::move(parquet);
  }
  if (lines.empty() && split == "train") lines = others;
  if (lines.empty())
    throw UserError(
        fmt::format("{}: {} has no rows of the split `{}`{}", source.name, folder.string(), split,
                    source.subset.empty() ? "" : " in a folder " + source.subset),
        "name the files, or a split that the folder has");
  std::ranges::sort(lines);
  return lines;
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
