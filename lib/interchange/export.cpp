#include "interchange/export.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "base/log.h"
#include "interchange/adapter_folder.h"
#include "interchange/byte_tokenizer.h"
#include "interchange/checkpoint_record.h"
#include "interchange/config.h"
#include "interchange/hf_source.h"
#include "interchange/import.h"
#include "interchange/model_source.h"
#include "interchange/side_files.h"
#include "interchange/trained_weights.h"
#include "recipe/model_spec.h"
#include "recipe/recipe.h"
#include "storage/checkpoint_tensors.h"
#include "storage/finite_values.h"
#include "storage/free_space.h"
#include "storage/manifest.h"
#include "storage/new_folder.h"
#include "storage/read_mark.h"
#include "storage/safetensors_folder.h"

namespace mtrain::interchange {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kExportedAtOnce = int64_t{1} << 22;  // elements in memory at a time

using Types = std::map<std::string, DType, std::less<>>;

// Returns the folder from which the model came, if it has a config.json; else an empty path. If
// that folder is gone, warns about what the export lacks.
fs::path origin_of(const fs::path& checkpoint) {
  if (fs::exists(checkpoint / "config.json")) return checkpoint;
  const recipe::ModelConfig model = recorded_model(checkpoint);
  if (!model.from) return {};
  const fs::path from = hub_model_folder(*model.from);
  if (fs::exists(from / "config.json")) return from;
  log::warn(
      fmt::format("{}, from which the model came, is gone: its types of tensors and its other "
                  "keys of config.json are not in the export",
                  from.string()));
  return {};
}

DType type_of(std::string_view name) {
  if (name == "F8_E4M3") return DType::bf16;  // weights in 8 bits are read as bf16
  return name == "BF16" ? DType::bf16 : name == "F16" ? DType::f16 : DType::f32;
}

// The reverse of it.
const char* type_text(DType type) {
  return type == DType::bf16 ? "BF16" : type == DType::f16 ? "F16" : "F32";
}

// Returns the dtypes of the tensors in the folder from which the model came.
Types imported_types(const storage::CheckpointTensors& weights, const fs::path& checkpoint,
                     const fs::path& origin) {
  Types types;
  if (const auto at = weights.metadata().find(kImportedTypes); at != weights.metadata().end()) {
    const json saved = parse_json(at->second, weights.path().string() + ": its metadata",
                                  "import the folder again");
    if (!saved.is_object())
      throw UserError(fmt::format("{}: its metadata is damaged", weights.path().string()),
                      "import the folder again");
    for (const auto& [name, type] : saved.items())
      if (type.is_string()) types[name] = type_of(type.get<std::string>());
  } else if (!origin.empty() && origin != checkpoint) {
    try {
      const storage::SafetensorsFolder folder(origin);
      for (const storage::StoredTensor* t : folder.tensors()) types[t->name] = type_of(t->type);
    } catch (const UserError& e) {
      // The weights come from the checkpoint, so this folder may be gone or damaged.
      log::warn(
          fmt::format("tensors are exported as fp32, since the types of the folder from which the "
                      "model came are lost: {}",
                      e.message()));
    }
  }
  return types;
}

// The vocabulary's size may come from the tokenizer. The recipe then does not have it.
void take_vocabulary(recipe::Recipe& r, const storage::ValueSource& weights) {
  const Shape table = weights.shape("embedding.weight");
  r.model.vocab_size = table[0];
}

// Every tensor of the checkpoint must have a name in the family, since the model computes with it.
// Exceptions are load_fraction of routers, which only steers training, and adapters, which
// open_trained() has checked. So are layers of multi-token prediction that the family does not
// name.
void check_tensors(const TrainedWeights& trained, const TensorMap& map,
                   const spec::ModelSpec& model) {
  const storage::ValueSource& weights = *trained.weights;
  std::vector<std::string> wrong;
  std::set<std::string> unnamed;
  for (const spec::TensorSpec& t : spec::tensors(model))
    if (!map.find(t.name)) unnamed.insert(t.name);
  if (!unnamed.empty())
    log::warn(
        fmt::format("the layers of multi-token prediction are left out: a {} folder has no "
                    "names for them",
                    map.family().model_type));
  for (const storage::CheckpointTensors::Entry& t : trained.file->entries())
    if (!map.find(t.name) && !unnamed.contains(t.name) &&
        !t.name.ends_with(".router.load_fraction") && t.name.find(".lora.") == std::string::npos)
      wrong.push_back(
          fmt::format("{} has no name in a {} folder", t.name, map.family().model_type));
  for (const MappedTensor& t : map.tensors()) {
    if (!weights.contains(t.name))
      wrong.push_back(fmt::format("{} is missing", t.name));
    else if (!(weights.shape(t.name) == t.shape))
      wrong.push_back(fmt::format("{} is {}, and the recipe says {}", t.name,
                                  weights.shape(t.name).str(), t.shape.str()));
  }
  if (!wrong.empty())
    throw UserError(fmt::format("{}: the tensors are not those of its recipe\n  {}",
                                trained.file->path().string(), fmt::join(wrong, "\n  ")));
}

struct Shard {
  std::string name;
  std::vector<storage::TensorInfo> tensors;
  int64_t bytes = 0;
};

std::vector<Shard> make_shards(const TensorMap& map, const Types& types,
                               const ExportOptions& options) {
  std::vector<Shard> shards(1);
  std::vector<const TensorPiece*> pieces = map.pieces();
  for (const TensorPiece& copy : map.copies()) pieces.push_back(&copy);
  for (const TensorPiece* p : pieces) {
    // transformers keeps biases of routers in fp32, whatever the dtype of the weights.
    const bool state = map.find(p->name)->is_state;
    const auto at = types.find(p->hf_name);
    const DType dtype = state               ? DType::f32
                        : options.dtype     ? *options.dtype
                        : at == types.end() ? DType::f32
                                            : at->second;
    storage::TensorInfo info{p->hf_name, dtype, p->shape};
    if (!shards.back().tensors.empty() &&
        shards.back().bytes + info.bytes() > options.max_shard_bytes)
      shards.emplace_back();
    shards.back().bytes += info.bytes();
    shards.back().tensors.push_back(std::move(info));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? std::string(storage::kModelFile)
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    // The writer aligns all tensors if wider dtypes come first.
    std::ranges::stable_sort(shards[i].tensors, std::greater<>(),
                             [](const auto& t) { return dtype_size(t.dtype); });
  }
  return shards;
}

// Converts all values to T. Throws UserError if T cannot hold one of them.
template <class T>
ConstSpan convert(const std::vector<float>& values, const std::string& name, std::vector<T>& out) {
  out.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = T(values[i]);
    if (!std::isfinite(float(out[i])))
      throw UserError(
          fmt::format("{}: the value {} is none of {}", name, values[i], dtype_name(dtype_of<T>)),
          std::isfinite(values[i]) ? "export with --dtype bf16 or fp32"
                                   : "the weights are damaged, or training diverged");
  }
  return {out.data(), int64_t(out.size()), dtype_of<T>};
}

void write_shard(const fs::path& folder, const Shard& shard, const HfView& view,
                 const std::function<void()>& before_piece) {
  storage::SafetensorsWriter writer(folder / shard.name, shard.tensors, {{"format", "pt"}});
  std::vector<float> values;
  for (const storage::TensorInfo& t : shard.tensors)
    for (int64_t first = 0; first < t.shape.count(); first += kExportedAtOnce) {
      if (before_piece) before_piece();
      values.resize(size_t(std::min(kExportedAtOnce, t.shape.count() - first)));
      view.read(t.name, first, int64_t(values.size()), values.data());
      with_float(t.dtype, [&]<class T>() {
        std::vector<T> out;
        writer.write_part(t.name, convert<T>(values, t.name, out));
      });
    }
  writer.commit();
}

void write_index(const fs::path& folder, const std::vector<Shard>& shards) {
  json index{{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    bytes += shard.bytes;
    for (const storage::TensorInfo& t : shard.tensors) index["weight_map"][t.name] = shard.name;
  }
  index["metadata"]["total_size"] = bytes;
  write_file_atomic(folder / storage::kIndexFile, index.dump(2) + "\n");
}

// Returns the dtype that most elements have.
DType main_type(const std::vector<Shard>& shards) {
  std::map<DType, int64_t> counts;
  for (const Shard& shard : shards)
    for (const storage::TensorInfo& t : shard.tensors) counts[t.dtype] += t.shape.count();
  return std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; })->first;
}

std::string torch_name(DType type) {
  return type == DType::bf16 ? "bfloat16" : type == DType::f16 ? "float16" : "float32";
}

void write_generation_config(const fs::path& folder, const std::string& config_text,
                             bool reads_bytes) {
  if (fs::exists(folder / "generation_config.json")) return;
  json config = parse_json(config_text, "config.json");
  if (reads_bytes && config.at("eos_token_id").is_null()) config["eos_token_id"] = kByteEnd;
  json generation{{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (!config.at(key).is_null()) generation[key] = config.at(key);
  write_file_atomic(folder / "generation_config.json", generation.dump(2) + "\n");
}

// Copies the files of the tokenizer with which the model was trained: the recipe's tokenizer, or if
// it names none, that of the folder from which the weights came. An imported checkpoint has these
// files itself, since that folder may be gone.
std::vector<std::string> copy_texts(const fs::path& origin, const fs::path& checkpoint,
                                    const recipe::TokenizerConfig& tokenizer, const fs::path& to) {
  const bool imported = origin == checkpoint;
  if (imported || !tokenizer.path) {
    const bool fits = imported || tokenizer.type != recipe::TokenizerType::byte;
    return origin.empty() || !fits ? std::vector<std::string>{} : copy_side_files(origin, to);
  }
  const fs::path at = *tokenizer.path;
  if (!fs::exists(at))
    log::warn(fmt::format("there is no tokenizer at {}: the export has none", at.string()));
  if (fs::is_directory(at)) return copy_side_files(at, to);
  std::vector<std::string> copied = copy_tokenizer(at, to);
  for (std::string& name : copy_side_files(fs::absolute(at).parent_path(), to))
    copied.push_back(std::move(name));
  return copied;
}

// What an export consists of. It depends on the checkpoint, the options, and the folder from which
// the model came.
struct Contents {
  recipe::Recipe recipe;
  fs::path origin;
  std::string config, model_type;
  std::unique_ptr<TensorMap> map;
  std::vector<Shard> shards;
};

// Returns the model without layers that the family does not name.
spec::ModelSpec written_model(const Contents& c) {
  const spec::ModelSpec model = recipe::model_spec(c.recipe.model);
  return names_predictions(*find_family(c.model_type), c.recipe.model)
             ? model
             : spec::without_predictions(model);
}

Contents contents_of(const fs::path& checkpoint, const TrainedWeights& trained,
                     const ExportOptions& options) {
  Contents c{.recipe = recorded_recipe(checkpoint, {"~model.from"})};
  take_vocabulary(c.recipe, *trained.weights);
  c.origin = trained.base.empty() ? origin_of(checkpoint) : fs::path(trained.base);
  const std::string base = c.origin.empty() ? "" : read_file(c.origin / "config.json");
  write_config(c.recipe, {base, "float32"}, c.model_type);  // finds the family
  c.map = std::make_unique<TensorMap>(written_model(c), *find_family(c.model_type));
  check_tensors(trained, *c.map, recipe::model_spec(c.recipe.model));
  c.shards = make_shards(
      *c.map, options.dtype ? Types() : imported_types(*trained.file, checkpoint, c.origin),
      options);
  c.config = write_config(c.recipe, {base, torch_name(main_type(c.shards))}, c.model_type);
  return c;
}

// The text in which one rank sends the contents to the others: their hosts may lack the folder from
// which the model came. It has what the checkpoint itself does not determine.
constexpr char kEndOfOrigin = '\0';  // paths may hold bytes that JSON cannot

std::string print_contents(const Contents& c) {
  const DType most = main_type(c.shards);
  json others = json::object();
  for (const Shard& shard : c.shards)
    for (const storage::TensorInfo& t : shard.tensors)
      if (t.dtype != most) others[t.name] = type_text(t.dtype);
  const json text{{"model_type", c.model_type},
                  {"config", c.config},
                  {"dtype", type_text(most)},
                  {"other_dtypes", others}};
  return c.origin.string() + kEndOfOrigin + text.dump();
}

Contents parse_contents(const std::string& text, const fs::path& checkpoint,
                        const TrainedWeights& trained, ExportOptions options) {
  const size_t end = text.find(kEndOfOrigin);
  MT_CHECK(end != std::string::npos, "no text of print_contents()");
  const json all = parse_json(text.substr(end + 1), "the contents of a Hugging Face folder");
  Contents c{.recipe = recorded_recipe(checkpoint, {"~model.from"})};
  take_vocabulary(c.recipe, *trained.weights);
  c.origin = text.substr(0, end);
  c.config = all.at("config").get<std::string>();
  c.model_type = all.at("model_type").get<std::string>();
  c.map = std::make_unique<TensorMap>(written_model(c), *find_family(c.model_type));
  const DType most = type_of(all.at("dtype").get<std::string>());
  Types types;
  for (const TensorPiece* p : c.map->pieces()) types[p->hf_name] = most;
  for (const TensorPiece& copy : c.map->copies()) types[copy.hf_name] = most;
  for (const auto& [name, type] : all.at("other_dtypes").items())
    types[name] = type_of(type.get<std::string>());
  options.dtype.reset();
  c.shards = make_shards(*c.map, types, options);
  return c;
}

// Writes the files that hold no weights. Returns the names of those that are copied.
std::vector<std::string> write_other_files(const Contents& c, const fs::path& checkpoint,
                                           const fs::path& folder) {
  if (c.shards.size() > 1) write_index(folder, c.shards);
  write_file_atomic(folder / "config.json", c.config);
  std::vector<std::string> copied = copy_texts(c.origin, checkpoint, c.recipe.tokenizer, folder);
  // Whether mtrain trained the model on bytes. Without a tokenizer, an import's ids are unknown.
  const bool reads_bytes = c.origin != checkpoint &&
                           c.recipe.tokenizer.type == recipe::TokenizerType::byte &&
                           c.recipe.model.vocab_size >= kByteVocabulary &&
                           !exceeds_bytes(checkpoint) && !fs::exists(folder / "tokenizer.json");
  if (reads_bytes) write_byte_tokenizer(folder);
  write_generation_config(folder, c.config, reads_bytes);
  return copied;
}

// Whether the export is a folder of adapters.
bool writes_adapters(const TrainedWeights& trained, const ExportOptions& options) {
  return !trained.adapters.empty() && !options.merge;
}

// Writes a folder of adapters, and the tokenizer of the model.
Exported write_adapters(const Contents& c, const TrainedWeights& trained,
                        const fs::path& checkpoint, const fs::path& folder,
                        const ExportOptions& options) {
  const spec::ModelSpec model = adapted_model(c.recipe);
  const storage::FiniteValues finite(*trained.file, storage::FiniteValues::Of::checkpoint);
  const WrittenAdapter written =
      write_adapter_folder(folder, *c.map, finite, trained.adapters, *model.lora, c.origin.string(),
                           options.dtype.value_or(DType::f32));
  return {.model_type = c.model_type,
          .parameters = written.parameters,
          .bytes = written.bytes,
          .files = 1,
          .side_files = fmt::format(
              "{}", fmt::join(copy_texts(c.origin, checkpoint, c.recipe.tokenizer, folder), ", ")),
          .adapters = true,
          .sizes = {{kAdapterModel, written.bytes}}};
}

// Writes the files of a part into `folder`, which exists.
Exported write_part(const Contents& c, const TrainedWeights& trained, const fs::path& checkpoint,
                    const fs::path& folder, const ExportPart& part, const ExportOptions& options) {
  if (writes_adapters(trained, options))
    return part.rank == 0 ? write_adapters(c, trained, checkpoint, folder, options)
                          : Exported{.model_type = c.model_type, .adapters = true};
  Exported done{
      .model_type = c.model_type, .parameters = c.map->parameters(), .files = int(c.shards.size())};
  const auto merged = trained.merged();
  const HfView view(*merged, *c.map);
  for (size_t i = 0; i < c.shards.size(); ++i) {
    if (int(i % size_t(part.ranks)) == part.rank)
      write_shard(folder, c.shards[i], view, options.before_piece);
    done.bytes += c.shards[i].bytes;
    done.sizes[c.shards[i].name] = c.shards[i].bytes;
  }
  if (part.rank == 0)
    done.side_files = fmt::format("{}", fmt::join(write_other_files(c, checkpoint, folder), ", "));
  return done;
}

// Waits up to a minute: some file systems show late what another host has written.
bool wait_until(const std::function<bool()>& visible) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!visible()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

RunError unseen(const fs::path& file) {
  return RunError(
      fmt::format("{} does not see {}, which another rank has made", host_name(), file.string()),
      "checkpoint.dir must be a folder that all hosts share");
}

}  // namespace

Exported export_hf(const fs::path& checkpoint, const fs::path& output,
                   const ExportOptions& options) {
  const storage::ReadMark reading(checkpoint);
  const TrainedWeights trained = open_trained(checkpoint, options.base);
  for (const auto& [given, option] :
       {std::pair(options.merge, "--merge"), std::pair(!options.base.empty(), "--base")})
    if (given && trained.adapters.empty())
      throw UserError(
          fmt::format("{} has no effect: {} has no adapters", option, checkpoint.string()),
          "leave it out");
  const Contents contents = contents_of(checkpoint, trained, options);
  storage::NewFolder folder(output);
  Exported done = write_part(contents, trained, checkpoint, folder.path(), {}, options);
  folder.commit();
  return done;
}

std::string plan_consolidated(const fs::path& checkpoint, const fs::path& folder,
                              const ExportOptions& options) {
  // The run that saves the checkpoint has compared its base model as it began.
  const TrainedWeights trained = open_trained(checkpoint, {}, false);
  const Contents contents = contents_of(checkpoint, trained, options);
  int64_t bytes = 0;
  if (writes_adapters(trained, options))
    bytes = adapter_folder_bytes(*contents.map, *trained.file, trained.adapters,
                                 options.dtype.value_or(DType::f32));
  else
    for (const Shard& shard : contents.shards) bytes += shard.bytes;
  storage::require_space(folder, bytes);
  return print_contents(contents);
}

Exported write_consolidated(const fs::path& checkpoint, const fs::path& folder,
                            const std::string& contents, const ExportPart& part,
                            const ExportOptions& options) {
  std::error_code error;
  // The file that lists the tensors depends on the format, and on what this host sees.
  const auto listed = [&] {
    return fs::is_regular_file(storage::manifest_path(checkpoint), error);
  };
  if (!wait_until(listed)) throw unseen(storage::manifest_path(checkpoint));
  if (!wait_until([&] { return fs::is_directory(folder, error); })) throw unseen(folder);
  const TrainedWeights trained = open_trained(checkpoint, {}, false);
  return write_part(parse_contents(contents, checkpoint, trained, options), trained, checkpoint,
                    folder, part, options);
}

void await_consolidated(const fs::path& folder, const Exported& exported) {
  std::error_code error;
  for (const auto& [name, bytes] : exported.sizes) {
    const fs::path file = folder / name;
    const auto visible = [&, bytes = bytes] {
      const auto size = fs::file_size(file, error);
      return !error && int64_t(size) > bytes;
    };
    if (!wait_until(visible)) throw unseen(file);
  }
}

namespace {

// Reports adapters that peft cannot have: an error if checkpoints are to hold them in its form.
void check_adapters(const recipe::Recipe& r, const Family& family, bool saves,
                    Diagnostics& diagnostics) {
  try {
    const TensorMap map(spec::without_predictions(recipe::model_spec(r.model)), family);
    check_adapter_folder(map, adapters_of(adapted_model(r)));
  } catch (const UserError& e) {
    if (saves)
      diagnostics.add("checkpoint.save_consolidated", e.message(), e.hint());
    else
      diagnostics.warn("peft.target_modules", e.message(), e.hint());
  }
}

}  // namespace

void check_consolidated(const recipe::Recipe& recipe, Diagnostics& diagnostics) {
  const bool saves = recipe.checkpoint.save_consolidated != recipe::SaveConsolidated::no;
  if ((!saves && !recipe.peft.on()) || diagnostics.has_errors()) return;
  recipe::Recipe r = recipe;
  if (r.model.vocab_size == 0) r.model.vocab_size = 1;  // the tokenizer, not open yet, decides it
  std::string model_type;
  try {
    write_config(r, {"", "float32"}, model_type);
  } catch (const UserError& e) {
    if (saves)
      diagnostics.add("checkpoint.save_consolidated",
                      "the checkpoints of this model have no Hugging Face form: " + e.message(),
                      "set it to false; mtrain reads its own checkpoints");
    return;
  }
  if (r.peft.on()) check_adapters(r, *find_family(model_type), saves, diagnostics);
}

int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double, std::less<>> units{
      {"", 1},     {"B", 1},      {"KB", 1e3},      {"MB", 1e6},
      {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", double(1 << 30)}};
  size_t end = 0;
  double number = -1;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const auto unit = units.find(text.substr(end));
  if (end == 0 || unit == units.end() || !(number * unit->second >= 1) ||
      number * unit->second > 9e18)
    throw UserError(fmt::format("`{}` is not a number of bytes", text),
                    "write it as 5GB, 500MB or 1GiB");
  return int64_t(number * unit->second);
}

}  // namespace mtrain::interchange
