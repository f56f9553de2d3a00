// Runs that meet damaged checkpoints, as `mtrain` starts them.
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "interchange/checkpoint_record.h"
#include "interchange/export.h"
#include "run/consolidated_writer.h"
#include "run/evaluate_model.h"
#include "run/folder_watch.h"
#include "storage/file_sums.h"
#include "storage/safetensors.h"
#include "storage/state.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/run_lab.h"

namespace checkpoint_damage_test {

using namespace mtrain;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

using Settings = std::vector<std::string>;

struct DamageLab : Lab {
  // Returns the error of a run that cannot resume, with its exit code; empty if it resumes.
  std::string complaint(const std::string& run, Settings changes = {}) const {
    changes.push_back("checkpoint.load=latest");
    changes.push_back("train.steps=6");
    try {
      train(run, changes);
    } catch (const UserError& e) {
      return std::string("exit code 2: ") + e.what();
    } catch (const std::exception& e) {
      return std::string("exit code 1: ") + e.what();
    }
    return "";
  }
  double loss(const std::string& model) const {
    return run::evaluate_model({.model = (path / model).string(), .data = {(path / "b").string()}})
        .nats_per_token;
  }
};

// All files of a folder with their content, without hidden ones and the log, to which a failed
// start adds its error.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with(".") &&
        entry.path().filename() != "log.txt")
      files[fs::relative(entry.path(), folder).string()] = read_file(entry.path());
  return files;
}

void replace_in(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = read_file(file);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  write_file_atomic(file, text.replace(at, from.size(), to));
}

}  // namespace

TEST_CASE("a run ends with exit code 1 at a damaged newest checkpoint, and changes nothing") {
  const DamageLab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  struct Row {
    const char* what;
    std::function<void()> damage;
    const char* named;
  };
  const auto flip = [&](const char* name, int64_t from_end) {
    std::string text = read_file(step / name);
    text[text.size() - size_t(from_end)] ^= 1;
    write_file_atomic(step / name, text);
  };
  for (const Row& row : std::vector<Row>{
           {"a bit of the index", [&] { flip("index.json", 30); }, "index.json"},
           {"a byte of the moments is missing",
            [&] {
              fs::resize_file(step / "optimizer-00000.safetensors",
                              fs::file_size(step / "optimizer-00000.safetensors") - 1);
            },
            "optimizer-00000.safetensors"},
           {"no state", [&] { fs::remove(step / "state.json"); }, "state.json"},
           {"a bit of a weight", [&] { flip("weights-00000.safetensors", 999); },
            "weights-00000.safetensors"},
           {"a bit of a moment", [&] { flip("optimizer-00000.safetensors", 999); },
            "optimizer-00000.safetensors"},
           {"a bit of a name in the header",
            [&] { replace_in(step / "weights-00000.safetensors", "mlp.down", "mlp.dowm"); },
            "weights-00000.safetensors"}}) {
    INFO(row.what);
    fs::copy(step, lab / "sound");
    row.damage();
    const auto before = files_of(lab / "a");
    const std::string said = lab.complaint("a", {"checkpoint.keep=1"});
    CHECK_THAT(said, Catch::StartsWith("exit code 1") && Contains((step / row.named).string()));
    CHECK(files_of(lab / "a") == before);
    // Using a model also reads every file that it needs.
    if (std::string(row.named) != "optimizer-00000.safetensors")
      CHECK_THROWS_WITH(lab.loss("a"), Contains(row.named));
    fs::remove_all(step);
    fs::rename(lab / "sound", step);
  }
  // With the path of a sound checkpoint the run resumes, and keeps the damaged one under another
  // name.
  fs::remove(step / "state.json");
  lab.train("a", {"train.steps=6", "checkpoint.load=" + lab.step("a", 2).string()});
  CHECK(fs::exists(lab.step("a", 6)));
  CHECK(fs::exists(step.string() + ".abandoned/weights-00000.safetensors"));
  CHECK(lab.complaint("a").empty());
}

TEST_CASE(
    "recipe.yaml in a checkpoint is a copy: a comment is silent, a change is named and idle") {
  const DamageLab lab;
  lab.train("a");
  const double loss = lab.loss("a");
  const fs::path step = lab.step("a", 4), copy = step / "recipe.yaml";
  const std::string printed = read_file(copy);
  CHECK(printed.find("ignore_keys") == std::string::npos);  // earlier versions read the copy
  CHECK(interchange::changed_copy(step).empty());
  write_file_atomic(copy, "# mine\n\n" + printed + "# end\n");
  CHECK(interchange::changed_copy(step).empty());
  for (const auto& [from, to] :
       std::map<std::string, std::string>{{"hidden_size: 32", "hidden_size: 64"},
                                          {"seed: ", "seed: 1"},
                                          {"type: byte", "type: huggingface"},
                                          {(lab / "a").string(), (lab / "nowhere").string()}}) {
    INFO(from);
    write_file_atomic(copy, printed);
    replace_in(copy, from, to);
    CHECK_THAT(interchange::changed_copy(step), Contains(copy.string()));
    CHECK(lab.loss("a") == loss);
    CHECK(lab.complaint("a", {"checkpoint.at_end=false", "checkpoint.every_steps=0"}).empty());
  }
  for (const char* damaged : {"", "model: [", "\x00\xff", "model: {no_such_field: 1}\n"}) {
    write_file_atomic(copy, damaged);
    CHECK_THAT(interchange::changed_copy(step), Contains(copy.string()));
    CHECK(lab.loss("a") == loss);
  }
  fs::remove(copy);
  CHECK_THAT(interchange::changed_copy(step), Contains(copy.string()));
  interchange::export_hf(step, lab / "hf", {});
  CHECK(lab.complaint("a").empty());
}

TEST_CASE("the recipe in state.json decides what may resume; older folders have the file") {
  const DamageLab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  CHECK_THAT(lab.complaint("a", {"train.seed=9"}), Contains("train.seed"));
  // A folder of an earlier version, with a comment added to its recipe.yaml.
  make_format_1(step, 4);
  storage::TrainState old;
  const storage::TrainState now = storage::TrainState::load(step / "state.json");
  for (const char* key : {"step", "ranks"}) old.set(key, now.integer(key));
  old.save(step / "state.json");
  remove_sums(step);
  nlohmann::json files;
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "state.json", "recipe.yaml"})
    files[name] = fs::file_size(step / name);
  write_file_atomic(step / "manifest.json",
                    nlohmann::json{{"format", 1}, {"step", 4}, {"files", files}}.dump());
  std::ofstream(step / "recipe.yaml", std::ios::app) << "# a comment\n";
  CHECK_THAT(lab.complaint("a", {"train.seed=9"}), Contains("train.seed"));
  CHECK_THAT(lab.complaint("a", {"model.ffn_hidden_size=64"}), Contains("model.ffn_hidden_size"));
  CHECK(lab.complaint("a").empty());
}

TEST_CASE(
    "moments and weights that no training has are refused, though their checksums are right") {
  const DamageLab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  struct Row {
    const char *file, *tensor;
    float value;
    const char* named;
  };
  for (const Row& row : std::vector<Row>{
           {"optimizer-00000.safetensors", "layers.0.mlp.down.weight.m", INFINITY, "not finite"},
           {"optimizer-00000.safetensors", "layers.0.mlp.down.weight.v", NAN, "not finite"},
           {"optimizer-00000.safetensors", "layers.0.mlp.down.weight.v", -1e-3f, "never negative"},
           {"weights-00000.safetensors", "layers.0.mlp.down.weight", -INFINITY, "not finite"}}) {
    INFO(row.tensor << " " << row.value);
    const std::string sound = read_file(step / row.file);
    std::string text = sound;
    const auto at =
        storage::SafetensorsReader(step / row.file).info(row.tensor + std::string("@0")).begin +
        4 * 5;
    text.replace(size_t(at), 4, reinterpret_cast<const char*>(&row.value), 4);
    write_file_atomic(step / row.file, text);
    seal_again(step, 4);
    CHECK_THAT(lab.complaint("a"),
               Contains("index.json") && Contains(row.tensor) && Contains(row.named));
    write_file_atomic(step / row.file, sound);
    seal_again(step, 4);
  }
  CHECK(lab.complaint("a").empty());
}

TEST_CASE("a step that was whole before `latest` named it is continued, and not set aside") {
  const DamageLab lab;
  lab.train("a");
  storage::set_latest(lab / "a/checkpoints", 2);
  lab.train("a", {"checkpoint.load=latest", "train.steps=6"});
  for (const auto& entry : fs::directory_iterator(lab / "a/checkpoints"))
    CHECK(entry.path().string().find("abandoned") == std::string::npos);
  CHECK(fs::exists(lab.step("a", 4)));
  CHECK(fs::exists(lab.step("a", 6)));
  CHECK(read_file(lab / "a/checkpoints/latest") == "step-00000006\n");
}

TEST_CASE("a folder for checkpoints that cannot be written is an error before training") {
  const DamageLab lab;
  std::ofstream(lab / "file") << "x";
  CHECK_THROWS_WITH(lab.train("a", {"checkpoint.dir=" + (lab / "file/sub").string()}),
                    Contains("checkpoint.dir"));
  CHECK_FALSE(fs::exists(lab / "a/metrics.jsonl"));
}

TEST_CASE("a run folder that is deleted, renamed or replaced under a run is named") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  fs::create_directory(run);
  const run::FolderWatch watch(run);
  watch.check();
  fs::rename(run, folder / "moved");
  CHECK_THROWS_WITH(watch.check(), Contains(run.string()) && Contains("deleted or renamed"));
  fs::create_directory(run);
  CHECK_THROWS_WITH(watch.check(), Contains(run.string()) && Contains("replaced"));
  fs::remove(run);
  fs::rename(folder / "moved", run);
  watch.check();
}

TEST_CASE("a Hugging Face form that cannot be written is a warning, and is written again later") {
  const DamageLab lab;
  lab.train("a");
  const auto device = Device::cpu(1);
  comm::World world = comm::World::alone();
  const comm::HostCollectives control(world, *device);
  run::ConsolidatedWriter writer(control);
  const auto fails = [] { throw RunError("the disk is full"); };
  writer.begin(lab.step("a", 2), fails);
  writer.finish();
  CHECK(writer.take_note().empty());
  CHECK_FALSE(fs::exists(lab.step("a", 2) / "hf"));
  CHECK(storage::complete_checkpoint(lab.step("a", 2)));
  writer.begin(lab.step("a", 4));
  writer.finish();
  CHECK_THAT(writer.take_note(), Contains((lab.step("a", 2) / "hf").string()) &&
                                     Contains((lab.step("a", 4) / "hf").string()));
  CHECK(fs::exists(lab.step("a", 2) / "hf/config.json"));
}

}  // namespace checkpoint_damage_test
