#include "storage/checkpoint_dir.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/strings.h"

namespace mtrain::storage {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr const char *kManifest = "manifest.json", *kLatest = "latest";
constexpr const char* kReplaced = ".old";  // ends the name of a folder that is being deleted
constexpr int kManifestFormat = 1;

const char* space_hint(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG
             ? "free some space or set checkpoint.dir elsewhere; earlier checkpoints are intact"
             : "check checkpoint.dir; earlier checkpoints are intact";
}
[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  throw RunError(fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error)),
                 space_hint(error));
}

std::optional<int64_t> parse_whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

// Reads "step-00000120" as 120. Returns nothing for other names, so that their folders are left
// alone.
std::optional<int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = parse_whole(name.substr(kPrefix.size()));
  return step && step_name(*step) == name ? step : std::nullopt;
}

// Returns the process that makes or deletes the folder "step-00000120.tmp-<pid>-<host>". Returns
// nothing for other names, and for other hosts, since their processes cannot be looked up here.
std::optional<int64_t> parse_owner(std::string_view name) {
  const auto dot = name.find(".tmp-");
  if (dot == std::string_view::npos || !parse_step(name.substr(0, dot))) return std::nullopt;
  const std::string_view owner = name.substr(dot + 5);
  const auto dash = owner.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::string_view host = owner.substr(dash + 1);
  if (host != host_name() && host != host_name() + kReplaced) return std::nullopt;
  return parse_whole(owner.substr(0, dash));
}

fs::path temporary_name(const fs::path& root, int64_t step, const char* suffix = "") {
  return root / fmt::format("{}.tmp-{}-{}{}", step_name(step), ::getpid(), host_name(), suffix);
}

std::vector<CheckpointRef> list_complete(const fs::path& root) {
  std::vector<CheckpointRef> found;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error))
    if (parse_step(it->path().filename().string()))
      if (auto ref = complete_checkpoint(it->path())) found.push_back(std::move(*ref));
  std::ranges::sort(found, {}, &CheckpointRef::step);
  return found;
}

void remove_or_warn(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) log::warn(fmt::format("cannot delete {}: {}", folder.string(), error.message()));
}

// Removes the temporary folders that killed runs of this host have left. The folders of other
// living processes may be in use, and stay.
void remove_stale(const fs::path& root) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const auto owner = parse_owner(it->path().filename().string());
    if (owner && (*owner == ::getpid() || !process_lives(*owner))) stale.push_back(it->path());
  }
  for (const auto& folder : stale) remove_or_warn(folder);
  remove_stale_temporaries(root / kLatest);
}

// Lists all files and folders in `folder`, at any depth.
std::vector<fs::directory_entry> entries(const fs::path& folder) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error))
    found.push_back(*it);
  if (error) fail("list", folder, error.value());
  return found;
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path root, int64_t step, int keep)
    : root_(std::move(root)), step_(step), keep_(keep) {
  MT_CHECK(step >= 0 && keep >= 0, "step {}, keep {}", step, keep);
  temporary_ = temporary_name(root_, step);
  final_ = root_ / step_name(step);
  std::error_code error;
  fs::create_directories(root_, error);
  if (error) fail("create", root_, error.value());
  remove_stale(root_);  // first, since their space may be needed
  fs::create_directory(temporary_, error);
  if (error) fail("create", temporary_, error.value());
}

CheckpointWriter::~CheckpointWriter() {
  if (!committed_) remove_or_warn(temporary_);
}

fs::path CheckpointWriter::commit() {
  MT_CHECK(!committed_, "commit() called twice");
  step("manifest");
  write_manifest();
  step("sync");
  sync_tree(temporary_);
  step("rename");
  move_into_place();
  step("sync root");
  sync_directory(root_);
  step("latest");
  set_latest(root_, step_);
  step("delete old");
  delete_old();
  step("done");
  return final_;
}

void CheckpointWriter::write_manifest() const {
  json files = json::object();
  for (const auto& entry : entries(temporary_))
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), temporary_).generic_string()] = entry.file_size();
  const json manifest{{"format", kManifestFormat}, {"step", step_}, {"files", files}};
  write_file_atomic(temporary_ / kManifest, manifest.dump(2) + "\n");
}

void CheckpointWriter::move_into_place() {
  if (::rename(temporary_.c_str(), final_.c_str()) == 0) {
    committed_ = true;
    return;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) fail("finish", final_, errno);
  // There is a checkpoint of this step: swap both atomically, so that one of them is always there.
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0) {
    committed_ = true;
    remove_or_warn(temporary_);
    return;
  }
  // The file system cannot swap: for a moment there is no checkpoint of this step.
  const fs::path aside = temporary_name(root_, step_, kReplaced);
  if (::rename(final_.c_str(), aside.c_str()) != 0) fail("replace", final_, errno);
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), final_.c_str());
    fail("finish", final_, error);
  }
  committed_ = true;
  remove_or_warn(aside);
}

void CheckpointWriter::delete_old() const {
  if (keep_ > 0) {
    std::vector<CheckpointRef> all = list_complete(root_);
    size_t count = all.size();
    for (const auto& old : all) {
      if (count <= size_t(keep_)) break;
      if (old.step == step_) continue;
      // The folder is renamed first, so that an interrupted deletion never leaves a part of a
      // checkpoint under a checkpoint's name.
      const fs::path doomed = temporary_name(root_, old.step, kReplaced);
      if (::rename(old.path.c_str(), doomed.c_str()) == 0) {
        step("delete one");
        remove_or_warn(doomed);
      } else {
        log::warn(fmt::format("cannot delete {}: {}", old.path.string(), std::strerror(errno)));
      }
      --count;
    }
  }
  remove_stale(root_);
}

std::optional<CheckpointRef> complete_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder / kManifest, error)) return std::nullopt;
  json manifest;
  try {
    manifest = read_json(folder / kManifest);
  } catch (const UserError&) {
    return std::nullopt;
  }
  if (!manifest.is_object() || !manifest.contains("step") ||
      !manifest["step"].is_number_unsigned() || !manifest.contains("files") ||
      !manifest["files"].is_object())
    return std::nullopt;
  for (const auto& [name, bytes] : manifest["files"].items()) {
    const auto size = fs::file_size(folder / name, error);
    if (error || !bytes.is_number_unsigned() || bytes.get<uint64_t>() != size) return std::nullopt;
  }
  return CheckpointRef{folder, manifest["step"].get<int64_t>()};
}

std::optional<CheckpointRef> find_latest(const fs::path& root) {
  std::error_code error;
  std::string why = "does not exist";
  if (fs::is_regular_file(root / kLatest, error)) {
    const std::string name(trim(read_file(root / kLatest)));
    if (parse_step(name))
      if (auto ref = complete_checkpoint(root / name)) return ref;
    why = fmt::format("names `{}`, which is no complete checkpoint", name);
  }
  const std::vector<CheckpointRef> all = list_complete(root);
  if (all.empty()) return std::nullopt;
  log::warn(fmt::format("{} {}; using {}, the newest complete one", (root / kLatest).string(), why,
                        all.back().path.filename().string()));
  return all.back();
}

std::vector<CheckpointRef> checkpoints_after(const fs::path& root, int64_t step) {
  auto all = list_complete(root);
  std::erase_if(all, [&](const CheckpointRef& ref) { return ref.step <= step; });
  return all;
}

void set_latest(const fs::path& root, int64_t step) {
  write_file_atomic(root / kLatest, step_name(step) + "\n");
}

CheckpointRef checkpoint_at(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw UserError(fmt::format("checkpoint.load: there is no folder {}", path.string()),
                    "give the path of a checkpoint such as runs/a/checkpoints/step-00000120, or "
                    "`latest`");
  if (const auto ref = complete_checkpoint(path)) return *ref;
  if (const auto ref = find_latest(path)) return *ref;
  throw UserError(fmt::format("checkpoint.load: {} holds no complete checkpoint", path.string()),
                  "a file of the checkpoint is missing or too short; load an earlier checkpoint");
}

}  // namespace mtrain::storage
