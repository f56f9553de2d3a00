#include "run/stored_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "checkpoint/read_weights.h"
#include "interchange/adapter_folder.h"
#include "interchange/byte_tokenizer.h"
#include "interchange/checkpoint_record.h"
#include "interchange/import.h"
#include "interchange/locate_checkpoint.h"
#include "interchange/model_source.h"
#include "interchange/trained_weights.h"
#include "observe/progress.h"
#include "run/bf16_choice.h"
#include "run/end_texts.h"
#include "run/gemm_choice.h"
#include "run/rank_consistency.h"
#include "storage/checkpoint_tensors.h"
#include "train/data_setup.h"

namespace mtrain::run {

namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Returns the file of a tokenizer, which may be named by its folder.
fs::path file_of(const fs::path& tokenizer) {
  std::error_code error;
  return fs::is_directory(tokenizer, error) ? tokenizer / "tokenizer.json" : tokenizer;
}

// Returns whether the folder holds a model of a different program. open_hf_folder() reports its
// errors. Files that end in .bin do not count: data sets also have them.
bool has_foreign_model(const fs::path& folder) {
  constexpr std::string_view kNames[] = {"config.json", "adapter_config.json"};
  constexpr std::string_view kEnds[] = {".safetensors", ".gguf", ".distcp", ".pt", ".pth", ".h5"};
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (std::ranges::count(kNames, name) || name.starts_with("pytorch_model") ||
        std::ranges::any_of(kEnds, [&](auto ending) { return name.ends_with(ending); }))
      return true;
  }
  return false;
}

std::vector<checkpoint::ReplicatedTensor> of_model(const train::RouterState& routers) {
  std::vector<checkpoint::ReplicatedTensor> tensors = routers.tensors();
  std::erase_if(tensors, [](const checkpoint::ReplicatedTensor& r) { return !r.of_model; });
  return tensors;
}

std::set<std::string> tensors_of_predictions(const spec::ModelSpec& model) {
  std::set<std::string> names;
  for (int64_t layer = model.main_layers(); layer < model.layer_count(); ++layer) {
    for (const spec::TensorSpec& t : spec::layer_tensors(model, layer)) names.insert(t.name);
    names.insert(fmt::format("layers.{}.mlp.router.load_fraction", layer));
  }
  return names;
}

// Returns the weights of a folder, or those with merged adapters.
const storage::ValueSource& weights_of(const StoredModel& m) {
  return m.merged ? *m.merged : *m.hugging_face;
}

}  // namespace

int64_t StoredModel::context() const {
  int64_t context = std::max(saved.sample_length, saved.model.max_positions);
  // LongRoPE's factors were chosen for the sequence length; longer texts may need different ones.
  for (const spec::LayerSpec& layer : saved.model.layers) {
    const auto& attention = layer.grouped();
    const int64_t most = attention.rotary.scaling.valid_positions;
    if (most > 0) context = std::min(context, most);
  }
  return context;
}

std::vector<int32_t> StoredModel::end_ids() const {
  if (!tokenizer) return {};
  if (is_file(folder / "config.json")) return data::read_eos_ids(folder, *tokenizer);
  const auto& path = saved.tokenizer.path;
  const fs::path beside = !path                     ? fs::path()
                          : fs::is_directory(*path) ? fs::path(*path)
                                                    : fs::path(*path).parent_path();
  std::vector<int32_t> ids = data::read_eos_ids(path ? beside : folder, *tokenizer);
  if (const auto eod = tokenizer->eod(); eod && std::ranges::find(ids, *eod) == ids.end())
    ids.push_back(*eod);
  return ids;
}

const data::Tokenizer& StoredModel::text_tokenizer() const {
  const char* hint = "name the tokenizer that built its data: --tokenizer <tokenizer.json>";
  if (exceeds_bytes)
    throw UserError(fmt::format("the recipe of {} names no tokenizer, and the model was trained on "
                                "ids above {}, which are not bytes",
                                folder.string(), interchange::kByteEnd),
                    hint);
  if (!tokenizer && !saved.tokenizer.path)
    throw UserError(fmt::format("the model in {} has only NullTokenizer, which cannot decode ids",
                                folder.string()),
                    hint);
  if (!tokenizer) train::open_tokenizer(saved.tokenizer);  // throws, since there is no such file
  MT_CHECK(tokenizer, "{} was missing, and exists now", *saved.tokenizer.path);
  return *tokenizer;
}

namespace {

// Merges the adapters at `path` into the model, which has none of its own.
void add_adapter(StoredModel& m, const fs::path& path) {
  if (const auto run = interchange::locate_checkpoint(path)) {
    if (!m.hugging_face)
      throw UserError(fmt::format("{} is a checkpoint, and the adapters of {} are trained beside a "
                                  "Hugging Face folder",
                                  m.folder.string(), path.string()),
                      "give that folder as --model; or the run alone, without --adapter");
    const auto trained = interchange::open_trained(run->path, m.folder);
    if (trained.adapters.empty())
      throw UserError(fmt::format("{} has no adapters", run->path.string()),
                      "give it as --model instead of --adapter");
    m.merged = std::make_shared<interchange::MergedWeights>(m.hugging_face, trained.file,
                                                            trained.adapters);
    m.fingerprint += trained.file->fingerprint();
    return;
  }
  if (!interchange::has_adapter(path))
    throw UserError(fmt::format("{} has neither {} nor a checkpoint", path.string(),
                                interchange::kAdapterConfig),
                    "give a folder that peft or `mtrain export hf` wrote, or a run with adapters");
  if (!m.hugging_face)
    throw UserError(fmt::format("{} is a checkpoint, and {} names the modules of a Hugging Face "
                                "folder",
                                m.folder.string(), path.string()),
                    "give the adapter's base model as --model");
  const auto adapter = interchange::open_adapter_folder(path, m.hugging_face->map());
  m.merged = std::make_shared<interchange::MergedWeights>(m.hugging_face, adapter.factors,
                                                          adapter.adapters);
  m.fingerprint += adapter.fingerprint;
}

// Merges the adapters of a checkpoint's own recipe.
void merge_own_adapters(StoredModel& m) {
  const auto trained = interchange::open_trained(m.folder);
  m.merged = trained.merged();
  m.saved.model.lora.reset();
}

}  // namespace

StoredModel open_model(const fs::path& given, const plan::Machine& machine,
                       const std::string& tokenizer, const std::string& adapter) {
  if (const auto problem = hub_problem(given)) throw UserError(problem->message, problem->hint);
  const fs::path path = hub_model_folder(given);
  StoredModel m;
  if (const auto found = interchange::locate_checkpoint(path)) {
    m.folder = found->path;
    m.reading = std::make_shared<storage::ReadMark>(m.folder);
    m.recipe = checkpoint::saved_recipe(m.folder);
    m.fingerprint = open_checkpoint_tensors(m.folder, storage::TensorSet::weights)->fingerprint();
  } else if (has_foreign_model(path)) {
    const interchange::HfFolder folder = interchange::open_hf_folder(path);
    m.folder = path;
    m.recipe = {.file = path, .text = interchange::imported_recipe(folder, path)};
    m.hugging_face = folder.source();
    m.left_out = folder.left_out;
    m.fingerprint = interchange::fingerprint(folder);
  } else {
    throw UserError(
        fmt::format("{} holds no complete checkpoint and no Hugging Face model", path.string()),
        "give a run folder, a checkpoint, or a folder with config.json and "
        "safetensors; nothing is downloaded");
  }
  m.recipe.machine = machine;
  m.saved = plan::read_saved_run(interchange::model_source(), m.recipe);
  m.unused = tensors_of_predictions(m.saved.model);
  m.saved.model = spec::without_predictions(std::move(m.saved.model));
  m.saved.model.vocab = train::vocabulary(m.saved.tokenizer);
  if (m.saved.model.lora) {
    if (!adapter.empty())
      throw UserError(fmt::format("{} already has adapters", m.folder.string()),
                      "leave --adapter out, or give the base model as --model");
    merge_own_adapters(m);
  }
  if (!adapter.empty()) add_adapter(m, adapter);
  plan::TokenizerOptions& used = m.saved.tokenizer;
  if (!tokenizer.empty()) {
    used = plan::TokenizerOptions();
    used.model_vocab = m.saved.model.vocab;
    used.unknown = tokenizer == "NullTokenizer";
    if (tokenizer != "byte" && !used.unknown) used.path = tokenizer;
  }
  m.exceeds_bytes = tokenizer.empty() && !used.path && interchange::exceeds_bytes(m.folder);
  // A model whose size is in the recipe does not need the tokenizer, which may no longer exist.
  if (!tokenizer.empty() || !used.path || is_file(file_of(*used.path)))
    m.tokenizer = train::open_tokenizer(used);
  return m;
}

void report(const StoredModel& m) {
  if (!m.left_out.empty()) log::info(m.left_out);
  if (!m.hugging_face) interchange::report_checkpoint(m.folder);
}

void require_same_model(const comm::HostCollectives& control, const StoredModel& m) {
  require_same_on_all_ranks(control, "model in " + m.folder.string(), m.fingerprint,
                            "give all ranks the same files: a folder that all hosts share");
}

void load_weights(Stream& stream, model::ParamStore& params, const train::RouterState& routers,
                  const StoredModel& m, int rank) {
  std::optional<observe::ProgressLine> screen;
  if (rank == 0) screen.emplace();
  const auto progress = [&](int64_t done, int64_t total) {
    if (screen) screen->activity(percent_text("reading weights", done, total));
  };
  if (m.merged || m.hugging_face)
    checkpoint::read_model(stream, params, of_model(routers), weights_of(m), progress);
  else
    checkpoint::load_weights(stream, params, of_model(routers), m.folder, progress, m.unused);
}

void load_model(train::Trainer& t, const StoredModel& m) {
  require_same_model(t.control(), m);
  std::optional<observe::ProgressLine> screen;
  checkpoint::CheckpointParts parts = t.checkpoint_parts();
  if (t.control().rank() == 0) {
    screen.emplace();
    parts.progress = [&](std::string_view, int64_t done, int64_t total) {
      screen->activity(percent_text("reading weights", done, total));
    };
  }
  if (m.merged || m.hugging_face) {
    checkpoint::start_from(parts, weights_of(m));
    return choose_bf16_arithmetic(t.device(), t.control(), t.plan());
  }
  const storage::TrainState state = checkpoint::load_model(parts, m.folder);
  restore_bf16_arithmetic(t.device(), t.control(), t.plan(), state);
  if (const auto tuner = gemm_tuner(t.device(), t.plan())) restore_gemms(*tuner, state);
}

}  // namespace mtrain::run
