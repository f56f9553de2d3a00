#include "run/data_identity.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "base/strings.h"
#include "interchange/hf_folder.h"
#include "interchange/trained_weights.h"
#include "plan/checkpoint_cost.h"

namespace mtrain::run {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "data.";  // begins the keys in state.json, before the field's name
constexpr const char *kTrain = "dataset.train", *kValidation = "dataset.validation",
                     *kTokenizer = "tokenizer", *kModel = "model.from";
constexpr const char* kSet = "set ";  // begins the line with the path of a data set

std::vector<data::Content> contents_of(const plan::DatasetOptions::Blend& blend) {
  std::vector<data::Content> sets;
  for (const std::string& prefix : blend.prefixes) sets.push_back(data::content_of_tokens(prefix));
  return sets;
}

// The files of a tokenizer that decide ids. They are small, and read completely.
data::Content content_of_tokenizer(const fs::path& path) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "tokenizer.json" : path;
  data::Content content{data::read_content("tokenizer.json", file, data::Reads::all)};
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  if (file.filename() == "tokenizer.json" && fs::exists(config, error))
    content.push_back(data::read_content("tokenizer_config.json", config, data::Reads::all));
  return content;
}

// The configuration of a model, and the names and sizes of its tensors, independent of their files.
data::Content content_of_model(const fs::path& folder,
                               const std::vector<std::string>& ignore_keys) {
  const interchange::HfFolder model = interchange::open_hf_folder(folder, ignore_keys);
  ContentHash tensors;
  int64_t bytes = 0;
  auto sorted = model.tensors->tensors();
  std::ranges::sort(sorted, {}, &storage::StoredTensor::name);
  for (const storage::StoredTensor* t : sorted) {
    tensors.add(fmt::format("{} {}", t->name, t->type));
    for (const int64_t dim : t->shape) tensors.add(fmt::format(" {}", dim));
    tensors.add("\n");
    bytes += t->bytes;
  }
  const std::string hash = tensors.hex();
  return {data::read_content("config.json", folder / "config.json", data::Reads::all),
          {.part = "tensors", .bytes = bytes, .sample = hash, .full_hash = hash}};
}

// Returns a recipe's path on one line.
std::string one_line(std::string path) {
  for (char& c : path)
    if (uint8_t(c) < ' ') c = '?';
  return path;
}

// A field's entry in state.json: for each data set a line with its path, and lines about its files.
struct Saved {
  std::vector<std::string> paths;
  std::vector<data::Content> sets;
};
Saved parse(const std::string& entry) {
  Saved saved;
  std::vector<std::string> lines;  // one text per set, about its files
  for (const std::string& line : split(entry, '\n')) {
    if (line.starts_with(kSet)) {
      saved.paths.push_back(line.substr(std::string_view(kSet).size()));
      lines.emplace_back();
    } else if (!lines.empty()) {
      lines.back() += line + "\n";
    }
  }
  for (const std::string& set : lines) saved.sets.push_back(data::parse_content(set));
  return saved;
}

std::string join(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

// Gives this thread the lowest priority on CPUs and disks.
void become_idle() {
  constexpr int kWhoProcess = 1, kIdle = 3, kClassShift = 13, kLowestPriority = 19;
  const auto thread = ::syscall(SYS_gettid);
  ::setpriority(PRIO_PROCESS, id_t(thread), kLowestPriority);
  ::syscall(SYS_ioprio_set, kWhoProcess, thread, kIdle << kClassShift);
}

}  // namespace

DataIdentity::DataIdentity(const RunPlan& plan) {
  const auto& data = plan.dataset;
  fields_.push_back({kTrain, data.train.prefixes, contents_of(data.train)});
  if (!data.validation.prefixes.empty())
    fields_.push_back({kValidation, data.validation.prefixes, contents_of(data.validation)});
  // A resumed run may lack these files; they are compared only if they exist.
  const auto add_optional = [&](const char* name, const std::string& path, const auto& read) {
    std::error_code error;
    if (path.empty() || !fs::exists(path, error)) return;
    try {
      fields_.push_back({name, {path}, {read(path)}});
    } catch (const Error& e) {
      log::warn(
          fmt::format("{} cannot be compared with that of a checkpoint: {}", name, e.message()));
    }
  };
  add_optional(kTokenizer, data.tokenizer.path.value_or(""), content_of_tokenizer);
  add_optional(kModel, hub_model_folder(plan.folders.weights_from), [&](const fs::path& folder) {
    return content_of_model(folder, plan.folders.ignore_keys);
  });
  if (!plan::saves_adapters_alone(plan)) return;
  base_from_ = plan.folders.weights_from;
  base_ =
      interchange::base_content(interchange::open_hf_folder(base_from_, plan.folders.ignore_keys));
}

DataIdentity::~DataIdentity() {
  stop_ = true;
  if (reader_.joinable()) reader_.join();
}

std::string DataIdentity::sampled() const {
  ContentHash hash;
  for (const Field& field : fields_) {
    if (field.name != kTrain && field.name != kValidation) continue;
    hash.add(field.name);
    for (const data::Content& set : field.sets) hash.add(" ").add(data::sample_hash(set));
  }
  return hash.hex();
}

std::string DataIdentity::print(const Field& field) {
  std::string text;
  for (size_t i = 0; i < field.sets.size(); ++i) {
    data::Content content = field.sets[i];
    // The checkpoint may have the hash of a file that this run has not read yet.
    if (i < field.saved.size())
      for (data::FileContent& file : content)
        for (const data::FileContent& was : field.saved[i])
          if (was.part == file.part && file.full_hash.empty()) file.full_hash = was.full_hash;
    text += fmt::format("{}{}\n{}", kSet, one_line(field.paths[i]), data::print_content(content));
  }
  return text;
}

std::string DataIdentity::difference(const Field& field) {
  if (field.saved.empty()) return "";
  if (field.saved.size() != field.sets.size())
    return fmt::format("{} data sets instead of {}", field.sets.size(), field.saved.size());
  std::string found;
  for (size_t i = 0; i < field.sets.size(); ++i) {
    const std::string other = data::content_difference(field.saved[i], field.sets[i]);
    if (!other.empty()) found += (found.empty() ? "" : "; ") + other;
  }
  return found;
}

bool DataIdentity::is_in(const storage::TrainState& saved) {
  return saved.contains(std::string(kPrefix) + kTrain);
}

bool DataIdentity::lacks_base(const storage::TrainState& saved) const {
  return !base_.empty() && !saved.contains(interchange::kBaseContent);
}

std::string DataIdentity::differences(const storage::TrainState& saved) {
  const std::lock_guard lock(mutex_);
  for (const char* name : {kTokenizer, kModel}) {
    const std::string key = std::string(kPrefix) + name;
    if (saved.contains(key)) carried_[key] = saved.text(key);
  }
  std::string found;
  for (Field& field : fields_) {
    const std::string key = std::string(kPrefix) + field.name;
    if (!saved.contains(key)) continue;
    const Saved was = parse(saved.text(key));
    field.saved = was.sets;
    const std::string other = difference(field);
    if (!other.empty())
      found += fmt::format("\n  {}: saved with {}, now {}: {}", field.name, join(was.paths),
                           join(field.paths), other);
  }
  using interchange::kBaseContent;
  if (!base_.empty() && saved.contains(kBaseContent) && saved.text(kBaseContent) != base_)
    found += fmt::format(
        "\n  {}: {} has other weights than the base model of the saved adapters: its tensors hash "
        "to "
        "{} instead of {}",
        kModel, base_from_, base_, saved.text(kBaseContent));
  return found;
}

void DataIdentity::read_rest() {
  std::vector<data::FileContent*> files;
  for (Field& field : fields_)
    for (data::Content& set : field.sets)
      for (data::FileContent& file : set)
        if (file.full_hash.empty()) files.push_back(&file);
  if (!files.empty()) reader_ = std::thread([this, files] { read_files(files); });
}

void DataIdentity::read_files(std::vector<data::FileContent*> files) {
  become_idle();
  // At most 256 MiB per second: the reading must not slow down the training's use of the disks.
  constexpr std::chrono::milliseconds kPause{16};
  const auto keep_going = [&] {
    if (!stop_) std::this_thread::sleep_for(kPause);
    return !stop_;
  };
  for (data::FileContent* file : files) {
    std::string hash;
    try {
      hash = data::hash_file(file->path, keep_going);
    } catch (const Error&) {
      // The training also reads the file, and reports the error.
    }
    const std::lock_guard lock(mutex_);
    file->full_hash = hash;
    for (const Field& field : fields_)
      if (!difference(field).empty()) differ_ = true;
  }
}

void DataIdentity::require_same() const {
  if (!differ_) return;
  const std::lock_guard lock(mutex_);
  for (const Field& field : fields_)
    if (const std::string other = difference(field); !other.empty())
      throw RunError(
          fmt::format("{} holds different data from the checkpoint that this run continues: {}",
                      field.name, other),
          "nothing was saved since the data were found to differ; continue with the data of the "
          "checkpoint, or start a new run with checkpoint.load unset");
}

void DataIdentity::save(storage::TrainState& state) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, text] : carried_) state.set(key, text);
  for (const Field& field : fields_) state.set(std::string(kPrefix) + field.name, print(field));
  if (!base_.empty()) state.set(interchange::kBaseContent, base_);
}

}  // namespace mtrain::run
