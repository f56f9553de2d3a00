#include "storage/local_list.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"
#include "storage/folder_measure.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

using State = ListedPart::State;

// Returns what a folder is named as: a part, or an unfinished one, such as
// ".step-00000037.<start>.rank-00003.<pid>" or ".in-step-00000037.<start>.rank-00003".
std::optional<ListedPart> named_part(const fs::path& path) {
  const std::string text = path.filename().string();
  if (const auto name = parse_part_name(text)) return ListedPart{.path = path, .name = *name};
  if (!text.starts_with('.')) return std::nullopt;
  const size_t step = text.find("step-");
  if (step == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = split(text.substr(step), '.');
  if (fields.size() < 3) return std::nullopt;
  const auto name = parse_part_name(fields[0] + "." + fields[1] + "." + fields[2]);
  if (!name) return std::nullopt;
  return ListedPart{.path = path, .name = *name, .state = State::unfinished};
}

std::vector<fs::path> folders_in(const fs::path& path) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator it(path, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (it->is_directory(gone) && !it->is_symlink(gone)) found.push_back(it->path());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::vector<ListedPart> listed_parts(const fs::path& folder) {
  std::vector<ListedPart> parts;
  for (const fs::path& path : folders_in(folder)) {
    auto part = named_part(path);
    if (!part) continue;
    try {
      const PartDescription read = read_part_description(path);
      part->ranks = read.ranks, part->host = read.host;
      if (part->state == State::complete) read_part(path);
    } catch (const Error& e) {
      if (part->state == State::complete) part->state = State::damaged, part->fault = e.message();
    }
    const FolderMeasure measured = measure_folder(path);
    part->bytes = measured.bytes, part->saved_at = measured.newest;
    parts.push_back(*std::move(part));
  }
  std::ranges::sort(parts, [](const ListedPart& a, const ListedPart& b) {
    return std::tie(a.name.step, a.name.start, a.name.rank, a.state, a.path) <
           std::tie(b.name.step, b.name.start, b.name.rank, b.state, b.path);
  });
  return parts;
}

std::vector<fs::path> folders_of_parts(const fs::path& path) {
  constexpr int kLevels = 3;  // the folder itself, those of runs, those of hosts
  std::vector<fs::path> level{path};
  for (int i = 0; i < kLevels; ++i) {
    std::vector<fs::path> found, below;
    for (const fs::path& folder : level) {
      const std::vector<fs::path> inner = folders_in(folder);
      if (std::ranges::any_of(inner, [](const fs::path& p) { return named_part(p).has_value(); }))
        found.push_back(folder);
      below.insert(below.end(), inner.begin(), inner.end());
    }
    if (!found.empty()) return found;
    level = std::move(below);
  }
  return {};
}

}  // namespace mtrain::storage
