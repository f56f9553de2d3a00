// A training that begins with the weights of a Hugging Face folder.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/dataset/indexed_dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "interchange/continued_model.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "plan/run_plan.h"
#include "run/evaluate_model.h"
#include "run/generate_text.h"
#include "run/run.h"
#include "run/stored_model.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"
#include "storage/safetensors_folder.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/environment.h"
#include "test/support/temporary_folder.h"
#include "train/data_setup.h"

namespace interchange_start_test {

using namespace mtrain;
using Catch::Matchers::Contains;

namespace {

const std::vector<std::string> kSizes{"model.num_layers=2", "model.hidden_size=32",
                                      "model.num_attention_heads=4", "model.ffn_hidden_size=40"};

class Lab : public TemporaryFolder {
 public:
  Lab() {
    data::IndexedDatasetWriter writer(path / "text", data::TokenType::u16);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 2000; ++i) tokens.push_back((i * 7) % 200);
    writer.add_tokens(tokens);
    writer.finish();
  }

  // Trains, and returns the folder of the last checkpoint.
  std::filesystem::path train(const std::string& run, const std::vector<std::string>& changes,
                              const launch::Job& job = {.id = "one"}) const {
    std::vector<std::string> overrides{"tokenizer.type=byte",
                                       "dataset.seq_length=16",
                                       "dataset.train=" + (path / "text").string(),
                                       "train.steps=2",
                                       "train.global_batch_size=2",
                                       "train.micro_batch_size=2",
                                       "train.threads=1",
                                       "lr_scheduler.style=constant",
                                       "lr_scheduler.warmup_steps=0",
                                       "mixed_precision.name=fp32",
                                       "train.run_dir=" + (path / run).string()};
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    const std::string file = (path / "recipe.yaml").string();
    write_file_atomic(file, "model: {}\n");
    Diagnostics diagnostics;
    const std::string saved = interchange::continued_model(file, overrides, job.restarts > 0);
    const Recipe r =
        plan::load_recipe(interchange::model_source(), file, overrides, diagnostics, 1, {}, saved);
    diagnostics.throw_if_errors();
    RunPlan plan = plan::make_plan(r, 1, train::vocabulary(plan::tokenizer_options(r)));
    plan.dataset.tokenizer = plan::tokenizer_options(interchange::without_lost_tokenizer(r, saved));
    run::run_training(plan, {.job = job});
    const auto latest = storage::find_latest(path / run / "checkpoints");
    return latest ? latest->path : std::filesystem::path();
  }
};

std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Whether both checkpoints have the same weights.
bool same_weights(const std::filesystem::path& a, const std::filesystem::path& b) {
  return same_tensors(a, b, storage::TensorSet::weights);
}

}  // namespace

TEST_CASE("a run begins with the weights of the folder that model.from names") {
  const Lab lab;
  for (const std::string family : {"llama", "gpt2", "qwen3"}) {
    INFO(family);
    const auto sizes = with({"model.architecture=" + family, "model.hidden_dropout=0"}, kSizes);
    const auto trained = lab.train("trained-" + family, sizes);
    const std::string folder = (lab / ("hf-" + family)).string();
    interchange::export_hf(trained, folder, {.max_shard_bytes = 20'000});
    // Steps of this length change no weight, whose last place is larger.
    const std::vector<std::string> from{"model.from=" + folder, "optimizer.lr=1e-35",
                                        "model.attention_dropout=0", "optimizer.weight_decay=0"};
    const auto begun = lab.train("begun-" + family, from);
    CHECK(same_weights(begun, trained));
    const auto random = lab.train("random-" + family, with(from, {"model.init=random"}));
    CHECK_FALSE(same_weights(random, trained));
    // A restart before anything was saved begins with the folder again.
    const auto unsaved = with(from, {"checkpoint.at_end=false"});
    CHECK(lab.train("again-" + family, unsaved, {.id = "job"}).empty());
    CHECK(same_weights(lab.train("again-" + family, from, {.restarts = 1, .id = "job"}), trained));
    // A checkpoint takes precedence over the folder, which may then be gone.
    const auto more =
        lab.train("begun-" + family, with(from, {"checkpoint.load=latest", "train.steps=3"}));
    CHECK(more.filename() == "step-00000003");
    CHECK_THROWS_WITH(lab.train("other-" + family, with(from, {"model.num_layers=3"})),
                      Contains("model.num_layers") && Contains("config.json"));
  }
}

TEST_CASE("the biases of routers come with a folder, and a run keeps them or moves them on") {
  const Lab lab;
  const auto trained = lab.train(
      "trained", with(kSizes, {"model.architecture=dots1", "model.moe.num_experts=4",
                               "model.moe.router_topk=2", "model.moe.ffn_hidden_size=16",
                               "model.moe.num_shared_experts=1", "model.kv_channels=8",
                               "model.moe.router_bias_update_rate=0.01", "train.steps=1"}));
  const auto biases = [](const std::filesystem::path& folder, const std::string& name) {
    const auto file = open_checkpoint_tensors(folder, storage::TensorSet::weights);
    std::vector<float> values(4);
    file->read(name, 0, 4, values.data());
    return values;
  };
  const std::string ours = "layers.1.mlp.router.bias",
                    theirs = "model.layers.1.mlp.gate.e_score_correction_bias";
  const auto moved = biases(trained, ours);  // by one step: a second may move them back
  CHECK(moved != std::vector<float>(4));
  const std::string folder = (lab / "hf").string();
  interchange::export_hf(trained, folder, {.dtype = DType::bf16});
  CHECK(biases(folder, theirs) == moved);
  const std::vector<std::string> from{"model.from=" + folder},
      latest{"checkpoint.load=latest", "train.steps=3"};
  CHECK(biases(lab.train("kept", from), ours) == moved);
  CHECK(biases(lab.train("kept", with(from, latest)), ours) == moved);
  const std::vector<std::string> rate{"model.moe.router_bias_update_rate=0.01", "train.steps=1"};
  const auto first = biases(lab.train("moved", with(from, rate)), ours);
  CHECK(first != moved);
  const auto further = with(with(from, rate), {"checkpoint.load=latest", "train.steps=2"});
  CHECK(biases(lab.train("moved", further), ours) != first);
  CHECK(biases(lab.train("random", with(from, {"model.init=random"})), ours) ==
        std::vector<float>(4));
}

TEST_CASE("a model of bytes is exported with a tokenizer of bytes, and used as the run is") {
  const Lab lab;
  const auto trained = lab.train("bytes", with(kSizes, {"train.steps=20", "optimizer.lr=1e-2"}));
  const std::string folder = (lab / "hf").string();
  interchange::export_hf(trained, folder, {});

  const auto ours = data::make_byte_tokenizer();
  const auto theirs = data::load_tokenizer(folder);
  std::string all;
  for (int b = 0; b < 256; ++b) all += char(b);
  std::vector<int32_t> ids, want;
  ours->encode(all + "caf\xc3\xa9\r\n <|endoftex", want);
  theirs->encode(all + "caf\xc3\xa9\r\n <|endoftex", ids);
  CHECK(ids == want);
  CHECK(theirs->decode(ids) == ours->decode(want));
  CHECK(theirs->eod() == ours->eod());
  CHECK(theirs->vocab_size() == ours->vocab_size());
  CHECK(data::read_eos_ids(folder, *theirs) == std::vector<int32_t>{256});

  const auto text = [&](const std::string& model) {
    std::string written;
    run::generate_text({.model = model, .prompts = {"\x15\x1c"}},
                       {.tokens = 9, .sampling = {.temperature = 0}},
                       {.text = [&](size_t, std::string_view bytes) { written += bytes; },
                        .end = [](size_t, generate::End) {}});
    return written;
  };
  CHECK(text(folder) == text(trained.string()));
  CHECK(text(folder).size() == 11);
  const auto loss = [&](const std::string& model) {
    return run::evaluate_model({.model = model, .data = {(lab / "text").string()}});
  };
  CHECK(loss(folder).nats_per_token == loss(trained.string()).nats_per_token);
  CHECK(loss(folder).bytes == loss(trained.string()).bytes);
}

TEST_CASE("a run begins with a downloaded model by its name on the Hub") {
  namespace fs = std::filesystem;
  const Lab lab;
  const auto trained = lab.train("trained", kSizes);
  const fs::path repository = lab / "models--org--tiny";
  fs::create_directories(repository / "refs");
  fs::create_directories(repository / "snapshots");
  write_file_atomic(repository / "refs" / "main", "0123abc");
  interchange::export_hf(trained, repository / "snapshots" / "0123abc", {});
  const Environment cache("HF_HUB_CACHE", lab.path.c_str());
  const auto from = [](const std::string& model) {
    return std::vector<std::string>{"model.from=" + model, "tokenizer.type=huggingface",
                                    "tokenizer.path=${model.from}"};
  };
  const auto named = lab.train("named", from("org/tiny"));
  CHECK(same_weights(named,
                     lab.train("folder", from((repository / "snapshots" / "0123abc").string()))));
  const auto nats = [&](const std::string& model) {
    return run::evaluate_model({.model = model, .data = {(lab / "text").string()}}).nats_per_token;
  };
  CHECK(nats("org/tiny") == nats(trained.string()));
  // The recipe that the run saves keeps the name; its checkpoint needs no cache.
  CHECK_THAT(read_file(named / "recipe.yaml"), Contains("from: org/tiny"));
  fs::remove_all(repository);
  CHECK(nats(named.string()) > 0);
  CHECK_THROWS_WITH(lab.train("later", from("org/tiny")), Contains("hf download org/tiny"));
}

TEST_CASE("a run that continues from a checkpoint needs the folder of model.from no more") {
  namespace fs = std::filesystem;
  const Lab lab;
  // Values that differ from the run's own defaults: norm, positions, and the width of a head.
  const auto trained = lab.train("trained", with({"model.architecture=qwen3", "model.kv_channels=4",
                                                  "model.norm_epsilon=0.001"},
                                                 kSizes));
  const fs::path folder = lab / "hf", away = lab / "away";
  interchange::export_hf(trained, folder, {.dtype = DType::bf16});
  const std::vector<std::string> from{"model.from=" + folder.string(), "tokenizer.type=huggingface",
                                      "tokenizer.path=${model.from}"};
  const auto whole = lab.train("whole", with(from, {"train.steps=4"}));
  const auto half = lab.train("half", from, {.id = "job"});
  fs::rename(folder, away);
  CHECK_THROWS_WITH(lab.train("new", from), Contains("there is no folder"));
  const auto on = with(from, {"train.steps=3"});
  // By the user, and by a launcher that starts the job again.
  CHECK(lab.train("half", with(on, {"checkpoint.load=latest"})).filename() == "step-00000003");
  const auto more = with(from, {"train.steps=4"});
  const auto last = lab.train("half", more, {.restarts = 1, .id = "one"});
  CHECK(same_weights(last, whole));
  CHECK_THROWS_WITH(
      lab.train("half", with(more, {"checkpoint.load=latest", "model.hidden_size=64"})),
      Contains("model.hidden_size: saved with 32, now 64"));

  // Commands that need only the model do not need the folder, either.
  const auto nats = [&] {
    return run::evaluate_model({.model = last.string(), .data = {(lab / "text").string()}})
        .nats_per_token;
  };
  const double before = nats();
  interchange::export_hf(last, lab / "out", {});
  CHECK(storage::SafetensorsFolder(lab / "out").tensors()[0]->type == "F32");
  // A folder that now has another model is ignored in the same way.
  fs::create_directory(folder);
  write_file_atomic(folder / "config.json", R"({"model_type": "llama", "hidden_size": 4})");
  CHECK(lab.train("half", with(from, {"train.steps=5", "checkpoint.load=latest"})).filename() ==
        "step-00000005");
  CHECK(nats() == before);
  interchange::export_hf(last, lab / "out2", {});
  fs::remove_all(folder);
  fs::rename(away, folder);
  interchange::export_hf(last, lab / "out3", {});
  CHECK(storage::SafetensorsFolder(lab / "out3").tensors()[0]->type == "BF16");
}

TEST_CASE("a run that continues one whose checkpoints lie elsewhere needs no folder, either") {
  namespace fs = std::filesystem;
  const Lab lab;
  interchange::export_hf(lab.train("trained", kSizes), lab / "hf", {});
  const std::vector<std::string> from{"model.from=" + (lab / "hf").string()};
  const std::string elsewhere = "checkpoint.dir=" + (lab / "elsewhere").string();
  CHECK(lab.train("first", with(from, {elsewhere})).empty());  // not in the run folder
  fs::remove_all(lab / "hf");
  const auto latest = lab.train(
      "second", with(from, {"checkpoint.load=" + (lab / "first").string(), "train.steps=3"}));
  CHECK(latest.filename() == "step-00000003");
}

TEST_CASE("an imported checkpoint is not a training to resume") {
  const Lab lab;
  const auto trained = lab.train("first", with(kSizes, {"train.steps=1"}));
  interchange::export_hf(trained, lab / "hf", {});
  const auto imported = interchange::import_hf(interchange::open_hf_folder(lab / "hf"), lab / "in");
  CHECK_THROWS_WITH(lab.train("again", with(kSizes, {"checkpoint.load=" + imported.string()})),
                    Contains("no training to continue") && Contains("model.from"));
}

TEST_CASE("a run names the weight of the folder that is not finite, and the file that fails") {
  const Lab lab;
  const auto trained = lab.train("trained", kSizes);
  const std::filesystem::path folder = lab / "hf";
  interchange::export_hf(trained, folder, {.max_shard_bytes = 20'000});
  const std::vector<std::string> from{"model.from=" + folder.string()};
  // mtrain has queries, keys and values in one tensor; the error names each as in the folder.
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  const storage::SafetensorsFolder tensors(folder);
  const std::filesystem::path file =
      folder / tensors.origin(name).substr(folder.string().size() + 1,
                                           std::string("model-00001-of-00001.safetensors").size());
  const std::string text = read_file(file);
  std::string bad = text;
  const auto at = size_t(tensors.info(name).begin) + 4 * 123;
  bad.replace(at, 4, std::string("\x00\x00\xc0\x7f", 4));
  write_file_atomic(file, bad);
  CHECK_THROWS_WITH(lab.train("nan", from),
                    Contains(fmt::format("{}: tensor `{}` has nan as element 123, which is not "
                                         "finite",
                                         file.string(), name)));
  write_file_atomic(file, text.substr(0, text.size() - 1));
  CHECK_THROWS_WITH(lab.train("short", from), Contains(file.string()) && Contains("ends"));
  CHECK_THROWS_AS(lab.train("short", from), UserError);
  write_file_atomic(file, text);
  CHECK(!lab.train("sound", from).empty());
}

TEST_CASE("a run ends texts as its tokenizer's folder says, and sees all of its positions") {
  const Lab lab;
  const auto bytes = lab.train("bytes", with(kSizes, {"train.steps=1"}));
  CHECK(run::open_model(bytes, {}).end_ids() == std::vector<int32_t>{256});
  CHECK(run::open_model(bytes, {}).context() == 16);
  interchange::export_hf(bytes, lab / "hf", {});
  write_file_atomic(lab / "hf/generation_config.json", R"({"eos_token_id": [10, 13]})");
  CHECK(run::open_model(lab / "hf", {}).end_ids() == std::vector<int32_t>{10, 13});
  const auto further =
      lab.train("further", {"model.from=" + (lab / "hf").string(), "tokenizer.type=huggingface",
                            "tokenizer.path=" + (lab / "hf").string(), "dataset.seq_length=8"});
  const run::StoredModel model = run::open_model(further, {});
  // The ids that end the folder's texts, and those that end the documents that the run has read.
  CHECK(model.end_ids() == std::vector<int32_t>{10, 13, 256});
  CHECK(model.context() == 16);
}

}  // namespace interchange_start_test
