// Rules about checkpoints, and about the folders of a run.
#include <algorithm>
#include <cctype>
#include <numeric>

#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

// The Hugging Face form is made from a checkpoint, so the run must save one.
void validate_consolidated(const Recipe& r, Diagnostics& diagnostics) {
  const recipe::CheckpointConfig& c = r.checkpoint;
  const char* field = "checkpoint.save_consolidated";
  if (c.save_consolidated == recipe::SaveConsolidated::no) return;
  if (!c.enabled)
    return warn_or_refuse(r, field, "is disabled: checkpoint.enabled is false", diagnostics);
  if (c.save_consolidated == recipe::SaveConsolidated::at_end)
    diagnostics.require(c.at_end, {field, "checkpoint.at_end"},
                        "final is the checkpoint of the run's end, and at_end: false saves none",
                        "set checkpoint.at_end: true, or save_consolidated: every");
  else if (!c.at_end && c.every_steps == 0 && c.keep_best == 0)
    warn_or_refuse(r, field, "is disabled: no checkpoint is saved", diagnostics);
}

// Checkpoints are ranked by the validation loss, which a run must measure more than once.
void validate_keep_best(const Recipe& r, Diagnostics& diagnostics) {
  const char* field = "checkpoint.keep_best";
  if (r.checkpoint.keep_best == 0) return;
  if (!r.checkpoint.enabled)
    return warn_or_refuse(r, field, "is disabled: checkpoint.enabled is false", diagnostics);
  diagnostics.require(!r.dataset.validation.empty() || r.dataset.validation_samples.on(),
                      {field, "dataset.validation"},
                      "ranks checkpoints by the validation loss, and there is no validation data",
                      "set dataset.validation (`mtrain data build --validation-fraction` makes "
                      "one), or keep_best: 0");
  diagnostics.require(r.validation.every_steps > 0, {field, "validation.every_steps"},
                      "ranks checkpoints by the validation loss, which is measured only at the end",
                      "set validation.every_steps, the steps between two evaluations");
}

// Checks that the multiples are saved at all.
void validate_keep_every(const Recipe& r, Diagnostics& diagnostics) {
  const recipe::CheckpointConfig& c = r.checkpoint;
  const char* field = "checkpoint.keep_every";
  if (c.keep_every == 0) return;
  if (!c.enabled)
    return warn_or_refuse(r, field, "is disabled: checkpoint.enabled is false", diagnostics);
  if (c.keep == 0)
    return diagnostics.warn(field, "is not read, because checkpoint.keep is 0, which keeps all",
                            "set checkpoint.keep to the number of newest ones, or remove it");
  if (c.every_steps > 0 && c.keep_every % c.every_steps != 0)
    diagnostics.warn(
        field,
        fmt::format("{} is not a multiple of checkpoint.every_steps {}: only every {} steps there "
                    "is a checkpoint to keep",
                    c.keep_every, c.every_steps, std::lcm(c.keep_every, c.every_steps)),
        "choose a multiple of checkpoint.every_steps");
}

void validate_load(const Recipe& r, Diagnostics& diagnostics) {
  diagnostics.require(!r.checkpoint.load_or_start || r.checkpoint.load,
                      {"checkpoint.load_or_start", "checkpoint.load"},
                      "is set, but checkpoint.load names nothing to load",
                      "write load: {path: FOLDER, or_start: true}");
}

// Returns the scheme of an address such as "s3://bucket/key"; empty for a path.
std::string scheme_of(const std::string& text) {
  const size_t end = text.find("://");
  if (end == std::string::npos || end == 0) return "";
  std::string scheme = text.substr(0, end);
  for (char& c : scheme) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '+' && c != '-' && c != '.') return "";
    c = char(std::tolower(static_cast<unsigned char>(c)));
  }
  return scheme;
}

std::string hint_for_scheme(const std::string& scheme, const std::string& text) {
  struct Mount {
    std::string_view scheme, how;
  };
  static constexpr Mount kMounts[] = {{"s3", "Mountpoint for Amazon S3 (mount-s3) or s3fs"},
                                      {"gs", "Cloud Storage FUSE (gcsfuse)"},
                                      {"gcs", "Cloud Storage FUSE (gcsfuse)"},
                                      {"hdfs", "HDFS's NFS gateway or fuse-dfs"},
                                      {"az", "blobfuse2"},
                                      {"abfs", "blobfuse2"},
                                      {"abfss", "blobfuse2"},
                                      {"wasb", "blobfuse2"},
                                      {"wasbs", "blobfuse2"},
                                      {"http", "davfs2, if it is a WebDAV server"},
                                      {"https", "davfs2, if it is a WebDAV server"}};
  if (scheme == "file") {
    std::string path = text.substr(text.find("://") + 3);
    if (path.starts_with("localhost/")) path.erase(0, std::string_view("localhost").size());
    return fmt::format("write the path alone: {}", path);
  }
  const auto* mount = std::ranges::find(kMounts, scheme, &Mount::scheme);
  return fmt::format(
      "mount it on every host{}, and give the path of the mount; or give a folder, and copy it "
      "afterwards",
      mount == std::end(kMounts) ? "" : fmt::format(", for example with {}", mount->how));
}

// Folders are paths of a file system.
void validate_folders(const Recipe& r, Diagnostics& diagnostics) {
  const auto check = [&](const char* field, const std::string& text) {
    const std::string scheme = scheme_of(text);
    if (scheme.empty()) return;
    refuse(
        {field},
        fmt::format("`{}` is an address, and mtrain reads and writes files by their paths", text),
        hint_for_scheme(scheme, text), diagnostics);
  };
  check("train.run_dir", r.train.run_dir);
  check("train.tensorboard_dir", r.train.tensorboard_dir);
  if (r.given("checkpoint.dir")) check("checkpoint.dir", r.checkpoint.dir);
  check("checkpoint.load", r.checkpoint.load.value_or(""));
  check("checkpoint.local.dir", r.checkpoint.local.dir);
}

// The other settings have no effect without a folder.
void validate_local(const Recipe& r, Diagnostics& diagnostics) {
  const std::string field = "checkpoint.local.dir";
  if (!r.checkpoint.local.dir.empty()) {
    if (!r.checkpoint.enabled)
      warn_or_refuse(r, field, "is disabled: checkpoint.enabled is false", diagnostics);
    return;
  }
  // A resolved recipe has all fields: those with their defaults ask for nothing.
  const recipe::LocalCopiesConfig &c = r.checkpoint.local, none;
  const std::pair<const char*, bool> changed[] = {
      {"every_steps", c.every_steps != none.every_steps},
      {"replicas", c.replicas != none.replicas},
      {"max_gib", c.max_gib != none.max_gib},
      {"replica_gbps", c.replica_gbps != none.replica_gbps}};
  for (const auto& [name, is_set] : changed)
    if (const std::string set = fmt::format("checkpoint.local.{}", name); is_set)
      refuse({set, field}, "needs the folder of the local copies",
             "set checkpoint.local.dir, such as /dev/shm/<name>", diagnostics);
}

}  // namespace

void validate_checkpoints(const Recipe& r, Diagnostics& diagnostics) {
  validate_consolidated(r, diagnostics);
  validate_keep_every(r, diagnostics);
  validate_keep_best(r, diagnostics);
  validate_load(r, diagnostics);
  validate_folders(r, diagnostics);
  validate_local(r, diagnostics);
}

}  // namespace mtrain::plan
