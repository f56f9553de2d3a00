#include "storage/safetensors_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "base/strings.h"

namespace mtrain::storage {
namespace fs = std::filesystem;

namespace {

constexpr const char* kSaveAgain =
    "save the model again with save_pretrained() of transformers, or copy its folder again";

constexpr const char *kAdapter = "an adapter, not a full model", *kQuantized = "a quantized model",
                     *kPickle = "weights as a PyTorch pickle";
constexpr const char* kMerge =
    "merge it into its base model with merge_and_unload() of peft, then save_pretrained()";
constexpr const char* kDequantize =
    "use the model that it was made from, or dequantize() it in transformers and "
    "save_pretrained()";
constexpr const char* kLoadPickle =
    "load them into the model in transformers, then save_pretrained(), which writes safetensors";

// What a folder holds instead of a model's weights as safetensors, and what converts it. The error
// reports the first row that fits.
struct Foreign {
  const char *begin, *end;  // how the name of one of its files begins and ends
  const char *what, *hint;
  bool beside_weights = false;  // refused even if the folder holds safetensors of a model, too
};
constexpr Foreign kForeign[] = {
    {"adapter_config.json", "", kAdapter, kMerge, true},
    {"adapter_model.", "", kAdapter, kMerge, true},
    {"quantize_config.json", "", kQuantized, kDequantize, true},
    {"quant_config.json", "", kQuantized, kDequantize, true},
    {"hf_quant_config.json", "", kQuantized, kDequantize, true},
    {"", ".gguf", "weights as GGUF",
     "convert them: AutoModelForCausalLM.from_pretrained(folder, gguf_file=<name>) of "
     "transformers, then save_pretrained()"},
    {"", ".distcp", "a distributed checkpoint of PyTorch (DCP)",
     "convert it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch <folder> "
     "<file>, then load the file into the model in transformers and save_pretrained()"},
    {"consolidated", "", "weights with their publisher's names, not those of transformers",
     "use the model's folder in the format of transformers, or convert it with transformers' "
     "convert_<family>_weights_to_hf.py"},
    {"pytorch_model", ".bin", kPickle,
     "convert them: AutoModelForCausalLM.from_pretrained(folder) of transformers, then "
     "save_pretrained(), which writes safetensors"},
    {"", ".bin", kPickle, kLoadPickle},
    {"", ".pt", kPickle, kLoadPickle},
    {"", ".pth", kPickle, kLoadPickle},
    {"tf_model", ".h5", "weights of TensorFlow",
     "convert them: from_pretrained(folder, from_tf=True) of transformers, then "
     "save_pretrained()"},
    {"flax_model", ".msgpack", "weights of Flax",
     "convert them: from_pretrained(folder, from_flax=True) of transformers, then "
     "save_pretrained()"}};

std::set<std::string> names_in(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw UserError(
        fmt::format("{} is not a folder", folder.string()),
        "give the folder of a model, which holds its config.json and model.safetensors");
  std::set<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.insert(it->path().filename().string());
  if (error) throw UserError(fmt::format("cannot list {}: {}", folder.string(), error.message()));
  return names;
}

void refuse_foreign(const fs::path& folder, const std::set<std::string>& names, bool has_weights) {
  for (const Foreign& f : kForeign)
    for (const std::string& name : names)
      if ((f.beside_weights || !has_weights) && name.starts_with(f.begin) && name.ends_with(f.end))
        throw UserError(fmt::format("{} holds {} ({})", folder.string(), f.what, name), f.hint);
}

bool is_weights(const std::string& name) {
  // Some publishers add a file with the weights in their own format to the files of transformers.
  return name.ends_with(".safetensors") && !name.starts_with("consolidated");
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(const fs::path& path,
                                                           std::string_view text) {
  using nlohmann::json;
  const auto fail = [&](const std::string& what) {
    return UserError(fmt::format("{} is not an index of shards: {}", path.string(), what),
                     kSaveAgain);
  };
  const json index = parse_json(text, path.string(), kSaveAgain);
  if (!index.is_object()) throw fail("it is not a JSON object");
  const auto files = index.find("weight_map");
  if (files == index.end() || !files->is_object()) throw fail("it has no object `weight_map`");
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, value] : files->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : std::string();
    if (!file.ends_with(".safetensors") || file.find('/') != std::string::npos)
      throw fail(fmt::format("the file of tensor `{}` is not the name of a .safetensors file: {}",
                             tensor, value.dump()));
    file_of[tensor] = file;
  }
  return file_of;
}

SafetensorsFolder::SafetensorsFolder(fs::path folder) : path_(std::move(folder)) {
  const std::set<std::string> names = names_in(path_);
  const bool single = names.contains(kModelFile), index = names.contains(kIndexFile);
  refuse_foreign(path_, names, single || index);
  if (index) {
    open_shards();
  } else if (single) {
    open_single();
  } else {
    const auto shard = std::ranges::find_if(names, is_weights);
    if (shard != names.end())
      throw UserError(fmt::format("{} holds {}, but no {} that lists the files of the model",
                                  path_.string(), *shard, kIndexFile),
                      kSaveAgain);
    throw UserError(fmt::format("{} holds no {} and no {}", path_.string(), kModelFile, kIndexFile),
                    hub_missing_files_hint(path_) +
                        "give the folder of a model, which holds its config.json and its weights");
  }
  // Other files may be a part of another model, or show that the folder was not copied completely.
  for (const std::string& name : names)
    if (is_weights(name) && std::ranges::none_of(files_, [&](const auto& file) {
          return file->path().filename() == name;
        }))
      throw UserError(fmt::format("{} holds {}{}", path_.string(), name,
                                  index ? fmt::format(", which {} does not name", kIndexFile)
                                        : fmt::format(" beside {}", kModelFile)),
                      "remove the file if it is not a part of the model");
  for (const auto& file : files_)
    for (const StoredTensor& t : file->tensors()) {
      tensors_.push_back(&t);
      file_of_[t.name] = file.get();
    }
}

void SafetensorsFolder::open_single() {
  files_.push_back(std::make_unique<SafetensorsReader>(path_ / kModelFile));
}

void SafetensorsFolder::open_shards() {
  const auto listed = parse_safetensors_index(path_ / kIndexFile, read_file(path_ / kIndexFile));
  std::set<std::string> names;
  for (const auto& [tensor, file] : listed) names.insert(file);
  std::vector<std::string> problems;
  std::map<std::string, std::string> found;  // the file that holds a tensor
  std::set<std::string> absent;
  for (const std::string& name : names) {
    std::error_code error;
    if (!fs::exists(path_ / name, error)) {
      problems.push_back(fmt::format("{} is absent", name));
      absent.insert(name);
      continue;
    }
    files_.push_back(std::make_unique<SafetensorsReader>(path_ / name));
    for (const StoredTensor& t : files_.back()->tensors()) {
      const auto [at, first] = found.emplace(t.name, name);
      const auto said = listed.find(t.name);
      if (!first)
        problems.push_back(
            fmt::format("tensor `{}` is in both {} and {}", t.name, at->second, name));
      else if (said == listed.end())
        problems.push_back(fmt::format("tensor `{}` of {} is not in the index", t.name, name));
      else if (said->second != name)
        problems.push_back(fmt::format("tensor `{}` is in {}, but the index names {}", t.name, name,
                                       said->second));
    }
  }
  for (const auto& [tensor, file] : listed)
    if (!found.contains(tensor) && !absent.contains(file))
      problems.push_back(fmt::format("tensor `{}` is not in {}", tensor, file));
  if (problems.empty()) return;
  constexpr size_t kShown = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, problems.size()); ++i) text += "\n  " + problems[i];
  if (problems.size() > kShown) text += fmt::format("\n  and {} more", problems.size() - kShown);
  throw UserError(fmt::format("{} and its shards disagree:{}", (path_ / kIndexFile).string(), text),
                  (absent.empty() ? "" : hub_missing_files_hint(path_)) + kSaveAgain);
}

const SafetensorsReader& SafetensorsFolder::file(std::string_view name) const {
  if (const auto it = file_of_.find(name); it != file_of_.end()) return *it->second;
  std::vector<std::string> names;
  for (const StoredTensor* t : tensors_) names.push_back(t->name);
  const std::string close = nearest(name, names);
  throw UserError(fmt::format("{} has no tensor `{}`", path_.string(), name),
                  close.empty() ? fmt::format("it has {} tensors with other names", names.size())
                                : fmt::format("did it mean `{}`?", close));
}

int64_t SafetensorsFolder::bytes_read() const {
  int64_t sum = 0;
  for (const auto& file : files_) sum += file->bytes_read();
  return sum;
}

}  // namespace mtrain::storage
