#include "interchange/folder_check.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"

namespace mtrain::interchange {

namespace {

constexpr uint64_t kMaxLayers = 100'000;               // the maximum of model.num_layers
constexpr int64_t kComparedAtOnce = int64_t{1} << 22;  // elements compared at a time
// The most missing tensors for which an unused tensor with a similar name is suggested. If
// thousands are missing, they have one cause, and a few suggestions show it.
constexpr int kSuggestions = 16;
constexpr size_t kMaxCandidates = 4096;  // more names take seconds to compare

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

std::vector<int64_t> dims(const Shape& shape) {
  std::vector<int64_t> all;
  for (int i = 0; i < shape.rank(); ++i) all.push_back(shape[i]);
  return all;
}

bool is_buffer(const Family& family, std::string_view name) {
  return std::ranges::any_of(family.buffers, [&](auto end) { return name.ends_with(end); });
}

}  // namespace

bool MtpLayers::contains(const Family& family, std::string_view tensor) const {
  constexpr std::string_view kLayers = "layers.";
  if (tensor.starts_with(family.prefix)) tensor.remove_prefix(family.prefix.size());
  if (!tensor.starts_with(kLayers)) return false;
  tensor.remove_prefix(kLayers.size());
  int64_t layer = -1;
  const char* last = tensor.data() + tensor.size();
  const auto [dot, error] = std::from_chars(tensor.data(), last, layer);
  return error == std::errc() && dot != last && *dot == '.' && layer >= first && layer < end;
}

int64_t count_mtp_layers(const std::filesystem::path& folder, const Family& family) {
  if (family.mtp_layers_key.empty()) return 0;
  const auto config = read_json(folder / "config.json");
  int64_t count = family.mtp_layers_default;
  if (config.is_object() && config.contains(family.mtp_layers_key)) {
    const nlohmann::json& value = config.at(std::string(family.mtp_layers_key));
    const bool is_count = value.is_number_unsigned() && value.get<uint64_t>() <= kMaxLayers;
    if (!is_count && !value.is_null())
      throw UserError(fmt::format("{}: {} must be a whole number from 0 to {}, and is {}",
                                  (folder / "config.json").string(), family.mtp_layers_key,
                                  kMaxLayers, value.dump()),
                      "download the folder again, or correct its config.json");
    count = is_count ? value.get<int64_t>() : 0;
  }
  return count;
}

void check_tensor_count(const storage::SafetensorsFolder& folder, const spec::ModelSpec& m,
                        const NameForm& form) {
  // A layer has at least one tensor, and so has each of its experts if they are not fused. If up to
  // kSome tensors are missing, tensor_mistakes() lists them.
  constexpr int64_t kSome = 1 << 17;
  int64_t least = m.layer_count();
  for (const spec::LayerSpec& layer : m.layers)
    if (layer.experts() && !form.fused) least += layer.experts()->count;
  const auto stored = int64_t(folder.tensors().size());
  if (least <= stored + kSome) return;
  throw UserError(
      fmt::format("{}: {} layers of {} experts have at least {} tensors, and the folder "
                  "has {}",
                  (folder.path() / "config.json").string(), m.layer_count(),
                  m.experts() ? m.experts()->count : 0, least, stored),
      "download the folder again, or correct its config.json");
}

std::vector<std::string> tensor_mistakes(const storage::SafetensorsFolder& folder,
                                         const TensorMap& map, const MtpLayers& mtp,
                                         const std::optional<storage::ScaleBlock>& scales) {
  std::vector<std::string> mistakes, unused;
  std::set<std::string, std::less<>> used_scales;
  for (const storage::StoredTensor* t : folder.tensors())
    if (scales && storage::has_scales(*t) && (map.find_hf(t->name) || t->name == map.tied_copy()))
      used_scales.insert(storage::scale_name(t->name));
  int suggestions = 0;
  for (const storage::StoredTensor* t : folder.tensors())
    if (!map.find_hf(t->name) && t->name != map.tied_copy() && !is_buffer(map.family(), t->name) &&
        !mtp.contains(map.family(), t->name) && !used_scales.contains(t->name))
      unused.push_back(t->name);
  const auto check = [&](const std::string& name, const Shape& shape,
                         const std::string& mtrain_name) {
    if (!folder.contains(name)) {
      const std::string meant = ++suggestions > kSuggestions || unused.size() > kMaxCandidates
                                    ? ""
                                    : nearest(name, unused);
      mistakes.push_back(fmt::format("missing: {} {}, which is mtrain's {}{}", name, shape.str(),
                                     mtrain_name,
                                     meant.empty() ? "" : fmt::format("; there is {}", meant)));
      return;
    }
    const storage::StoredTensor& t = folder.info(name);
    if (t.shape != dims(shape))
      mistakes.push_back(fmt::format("{}: its shape is {}, and config.json asks for {}",
                                     folder.origin(name), shape_text(t.shape), shape.str()));
    if (scales && storage::has_scales(t)) {
      if (std::string wrong = storage::scale_mistake(folder, t, *scales); !wrong.empty())
        mistakes.push_back(std::move(wrong));
    } else if (!t.dtype || !(is_float(*t.dtype) || *t.dtype == DType::f64))
      mistakes.push_back(
          fmt::format("{}: mtrain cannot read weights of type {}{}", folder.origin(name), t.type,
                      storage::has_scales(t) ? " without a quantization_config in config.json that "
                                               "names the blocks of their scales"
                                             : ""));
  };
  for (const TensorPiece* p : map.pieces()) check(p->hf_name, p->shape, p->name);
  if (!map.tied_copy().empty() && folder.contains(map.tied_copy()))
    check(map.tied_copy(), map.find("embedding.weight")->shape, "embedding.weight, which is tied");
  for (const TensorPiece& copy : map.copies())
    if (folder.contains(copy.hf_name)) check(copy.hf_name, copy.shape, copy.name);
  for (const std::string& name : unused)
    mistakes.push_back(fmt::format("unmapped: {} {} is a tensor that no part of a {} model reads",
                                   name, shape_text(folder.info(name).shape),
                                   map.family().model_type));
  return mistakes;
}

namespace {
bool equal_tensors(const storage::ValueSource& values, const std::string& one,
                   const std::string& other, int64_t elements) {
  std::vector<float> a, b;
  for (int64_t first = 0; first < elements; first += kComparedAtOnce) {
    const int64_t count = std::min(kComparedAtOnce, elements - first);
    a.resize(size_t(count)), b.resize(size_t(count));
    values.read(one, first, count, a.data());
    values.read(other, first, count, b.data());
    // NaN equals itself.
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) return false;
  }
  return true;
}
}  // namespace

void check_copies(const storage::SafetensorsFolder& folder, const storage::ValueSource& values,
                  const TensorMap& map) {
  const auto name_of = [&](std::string_view table) {
    return map.find(table)->pieces.front().hf_name;
  };
  if (const std::string& copy = map.tied_copy(); !copy.empty() && folder.contains(copy)) {
    const std::string name = name_of("embedding.weight");
    if (!equal_tensors(values, name, copy, map.find("embedding.weight")->shape.count()))
      throw UserError(
          fmt::format("tie_word_embeddings is true, and {} differs from {}", copy, name),
          "set tie_word_embeddings: false in config.json if the output layer has weights of its "
          "own; else remove that tensor");
  }
  for (const TensorPiece& copy : map.copies())
    if (folder.contains(copy.hf_name) &&
        !equal_tensors(values, name_of(copy.name), copy.hf_name, copy.shape.count()))
      throw UserError(fmt::format("{} differs from {}, which multi-token prediction shares",
                                  copy.hf_name, name_of(copy.name)),
                      "set model.mtp_num_layers: 0 to leave these layers out");
}

}  // namespace mtrain::interchange
