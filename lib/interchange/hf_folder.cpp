#include "interchange/hf_folder.h"

#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/hub_cache.h"
#include "base/strings.h"
#include "interchange/config.h"
#include "interchange/config/quantization.h"
#include "interchange/folder_check.h"
#include "recipe/model_spec.h"
#include "storage/fingerprint.h"
#include "storage/scaled_folder.h"

namespace mtrain::interchange {

namespace {

namespace fs = std::filesystem;

// Calls `f`, and adds the text of a UserError to `errors`.
template <class F>
void collect(std::vector<std::string>& errors, const F& f) {
  try {
    f();
  } catch (const UserError& e) {
    errors.emplace_back(e.what());
  }
}

// Describes the tensors of multi-token prediction layers; "" if there are none.
std::string describe_mtp(const storage::SafetensorsFolder& tensors, const Family& family,
                         const MtpLayers& mtp) {
  int64_t count = 0, elements = 0;
  for (const storage::StoredTensor* t : tensors.tensors())
    if (mtp.contains(family, t->name)) {
      ++count;
      elements +=
          std::accumulate(t->shape.begin(), t->shape.end(), int64_t{1}, std::multiplies<>());
    }
  if (count == 0) return "";
  return fmt::format(
      "{} tensors of the layers from {} on, with {} parameters, are left out: they "
      "predict further tokens ({}), which model.mtp_num_layers or `import hf --mtp` asks for",
      count, mtp.first, human_count(double(elements)), family.mtp_layers_key);
}

}  // namespace

HfFolder open_hf_folder(const std::filesystem::path& path,
                        const std::vector<std::string>& ignore_keys, int64_t mtp) {
  if (const auto problem = hub_problem(path)) throw UserError(problem->message, problem->hint);
  const std::filesystem::path folder = hub_model_folder(path);
  std::vector<std::string> errors;
  std::optional<recipe::Recipe> recipe;
  std::shared_ptr<const storage::SafetensorsFolder> tensors;
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored))  // otherwise read_config() reports it
    collect(errors, [&] { tensors = std::make_shared<storage::SafetensorsFolder>(folder); });
  // A folder in a different format also lacks config.json; the message about its format is enough.
  if (errors.empty() || std::filesystem::exists(folder / "config.json", ignored))
    collect(errors, [&] { recipe = read_config(folder, ignore_keys); });
  if (!errors.empty()) throw UserError(fmt::format("{}", fmt::join(errors, "\n")));
  const Family* family = find_family(enum_name(recipe->model.architecture));
  MT_CHECK(family, "{} has keys and no tensors", enum_name(recipe->model.architecture));
  const int64_t named = count_mtp_layers(folder, *family), own = recipe->model.num_layers;
  recipe->model.mtp_num_layers = mtp == kAllMtpLayers ? named : mtp;
  if (const int64_t asked = recipe->model.mtp_num_layers; asked > named)
    throw UserError(fmt::format("{}: {} layers of multi-token prediction are asked for, and "
                                "config.json names {}",
                                folder.string(), asked, named),
                    "set model.mtp_num_layers to what the folder has, or model.init: random");
  const auto contains = [&](std::string_view name) { return tensors->contains(name); };
  const NameForm form = NameForm::of(*family, contains);
  const spec::ModelSpec model = recipe::model_spec(recipe->model);
  check_tensor_count(*tensors, model, form);
  TensorMap map(model, *family, form);
  const MtpLayers unread{own + recipe->model.mtp_num_layers, own + named};
  const fs::path config = folder / "config.json";
  const auto block = read_scale_block(read_file(config), config.string());
  std::vector<std::string> mistakes = tensor_mistakes(*tensors, map, unread, block);
  std::shared_ptr<const storage::ValueSource> values = tensors;
  if (block) values = std::make_shared<storage::ScaledFolder>(tensors, *block);
  if (mistakes.empty()) collect(mistakes, [&] { check_copies(*tensors, *values, map); });
  constexpr size_t kShown = 100;
  if (mistakes.size() > kShown) {
    const size_t more = mistakes.size() - kShown;
    mistakes.resize(kShown);
    mistakes.push_back(fmt::format("and {} more", more));
  }
  if (!mistakes.empty())
    throw UserError(fmt::format("{}: the tensors are not those of its config.json\n  {}",
                                folder.string(), fmt::join(mistakes, "\n  ")),
                    "download the folder again, or correct its config.json");
  std::string left_out = describe_mtp(*tensors, *family, unread);
  return {std::move(*recipe), std::move(tensors), std::move(values), std::move(map),
          std::move(left_out)};
}

std::string fingerprint(const HfFolder& f) {
  std::vector<const storage::SafetensorsReader*> files;
  for (const auto& file : f.tensors->files()) files.push_back(file.get());
  const Fnv1a config = Fnv1a().add(read_file(f.tensors->path() / "config.json"));
  return fmt::format("config.json that hashes to {:016x}, {}", config.value(),
                     storage::weights_fingerprint(files));
}

std::string describe(const HfFolder& f) {
  const recipe::ModelConfig& m = f.recipe.model;
  const Family& family = f.map.family();
  std::map<std::string, int64_t, std::less<>> types;
  int64_t bytes = 0;
  for (const storage::StoredTensor* t : f.tensors->tensors()) {
    ++types[std::string(t->type)];
    bytes += t->bytes;
  }
  std::vector<std::string> counts;
  for (const auto& [type, count] : types) counts.push_back(fmt::format("{} {}", count, type));
  const std::string experts =
      m.moe.num_experts == 0
          ? ""
          : fmt::format(", {} experts, {} of them per token", m.moe.num_experts, m.moe.router_topk);
  const std::string predictions =
      m.mtp_num_layers > 0 ? fmt::format(", {} of multi-token prediction", m.mtp_num_layers) : "";
  const size_t files = f.tensors->files().size();
  const std::string ignored =
      m.ignore_keys.empty() ? ""
                            : fmt::format("ignored     {} of config.json (model.ignore_keys)\n",
                                          fmt::join(m.ignore_keys, ", "));
  return fmt::format(
      "family      {} ({})\n"
      "model       {} layers{}, hidden {}, heads {} / {} of {}, ffn {}, vocabulary {}, positions "
      "{}{}{}\n"
      "parameters  {} ({})\n"
      "tensors     {} of theirs, {} of mtrain's; types: {}{}\n"
      "files       {} with {} of data\n"
      "{}{}\n",
      family.model_type, family.class_name, m.num_layers, predictions, m.hidden_size,
      m.num_attention_heads, m.kv_heads(), m.head_dim(), m.ffn_size(), m.vocab_size,
      m.max_position_embeddings.value_or(0),
      m.share_embeddings_and_output_weights ? ", tied embeddings" : "", experts,
      human_count(double(f.map.parameters())), f.map.parameters(), f.tensors->tensors().size(),
      f.map.tensors().size(), fmt::join(counts, ", "),
      types.contains("F8_E4M3") ? " (F8_E4M3 is read as BF16)" : "",
      files == 1 ? "1 file" : fmt::format("{} files", files), human_bytes(double(bytes)), ignored,
      f.left_out.empty() ? "Every tensor is mapped."
                         : fmt::format("Every other tensor is mapped; {}.", f.left_out));
}

}  // namespace mtrain::interchange
