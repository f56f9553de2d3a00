#include "storage/temporary_checkpoint.h"

#include <unistd.h>

#include <cctype>
#include <charconv>
#include <optional>
#include <system_error>

#include <fmt/core.h>

#include "base/file.h"
#include "base/strings.h"
#include "storage/folder_lease.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStepPrefix = "step-", kTemporaryMark = ".tmp-";
constexpr char kField = '+';  // not part of a host's name

std::optional<int64_t> parse_count(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Ids of jobs may hold any characters.
std::string in_name(const std::string& id) {
  constexpr size_t kMost = 64;
  std::string name = id.substr(0, kMost);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '_';
  return name;
}

struct TemporaryName {
  int64_t pid = 0;
  std::string host, job;
  int64_t attempt = 0;
};

std::optional<TemporaryName> parse_temporary(std::string_view name) {
  const auto mark = name.find(kTemporaryMark);
  if (mark == std::string_view::npos || parse_step(name.substr(0, mark)) < 0) return std::nullopt;
  std::string_view owner = name.substr(mark + kTemporaryMark.size());
  if (owner.ends_with(kReplaced)) owner.remove_suffix(std::string_view(kReplaced).size());
  const std::vector<std::string> fields = split(std::string(owner), kField);
  if (fields.empty()) return std::nullopt;
  const auto dash = fields[0].find('-');
  if (dash == std::string::npos) return std::nullopt;
  const auto pid = parse_count(std::string_view(fields[0]).substr(0, dash));
  if (!pid) return std::nullopt;
  TemporaryName t{.pid = *pid, .host = fields[0].substr(dash + 1), .job = {}};
  if (fields.size() == 3) t.job = fields[1], t.attempt = parse_count(fields[2]).value_or(0);
  return t;
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

int64_t parse_step(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return -1;
  const auto step = parse_count(name.substr(kStepPrefix.size()));
  return step && step_name(*step) == name ? *step : -1;
}

fs::path temporary_checkpoint(const fs::path& root, int64_t step, const SavingJob& job,
                              const char* ending) {
  std::string name =
      fmt::format("{}{}{}-{}", step_name(step), kTemporaryMark, ::getpid(), host_name());
  if (!job.id.empty())
    name += fmt::format("{}{}{}{}", kField, in_name(job.id), kField, job.attempt);
  return root / (name + ending);
}

bool is_temporary_checkpoint(const std::string& name) { return parse_temporary(name).has_value(); }

std::vector<fs::path> stale_temporaries(const fs::path& root, const SavingJob& job) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const auto owner = parse_temporary(it->path().filename().string());
    if (!owner) continue;
    const bool gone =
        owner->host == host_name() && (owner->pid == ::getpid() || !process_lives(owner->pid));
    const bool earlier =
        !job.id.empty() && owner->job == in_name(job.id) && owner->attempt < job.attempt;
    if (gone || earlier || age_of(it->path()) > kLeaseStale) stale.push_back(it->path());
  }
  return stale;
}

}  // namespace mtrain::storage
