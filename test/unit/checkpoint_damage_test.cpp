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

// The newest checkpoint of a run of 4 steps is damaged in this way, and a file is named.
struct Damage {
  const char* what;
  std::function<void()> make;
  const char* named;
};

std::vector<Damage> damages_of(const fs::path& step) {
  const auto flip = [step](const char* name, int64_t from_end) {
    std::string text = read_file(step / name);
    text[text.size() - size_t(from_end)] ^= 1;
    write_file_atomic(step / name, text);
  };
  return {{"a bit of the index", [=] { flip("index.json", 30); }, "index.json"},
          {"a bit of the state", [=] { flip("state.json", 30); }, "state.json"},
          {"a byte of the moments is missing",
           [=] {
             fs::resize_file(step / "optimizer-00000.safetensors",
                             fs::file_size(step / "optimizer-00000.safetensors") - 1);
           },
           "optimizer-00000.safetensors"},
          {"a bit of a weight", [=] { flip("weights-00000.safetensors", 999); },
           "weights-00000.safetensors"},
          {"a bit of a moment", [=] { flip("optimizer-00000.safetensors", 999); },
           "optimizer-00000.safetensors"},
          {"a bit of a name in the header",
           [=] { replace_in(step / "weights-00000.safetensors", "mlp.down", "mlp.dowm"); },
           "weights-00000.safetensors"}};
}

// Restores the run folder `run` from its copy.
void restore(const fs::path& run, const fs::path& copy) {
  fs::remove_all(run);
  fs::copy(copy, run, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

double loss_of_step(const Lab& lab, const std::string& run, int64_t step) {
  for (const auto& line : lab.steps(run))
    if (line.at("step") == step) return line.at("loss").get<double>();
  FAIL("no step " << step);
  return 0;
}

}  // namespace

TEST_CASE("a run sets a damaged newest checkpoint aside, and continues from the one before it") {
  const DamageLab lab;
  lab.train("a", {"train.steps=6", "checkpoint.every_steps=2", "checkpoint.at_end=false"});
  const double expected = loss_of_step(lab, "a", 6);
  fs::remove_all(lab / "a");
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  fs::copy(lab / "a", lab / "copy", fs::copy_options::recursive);
  for (const Damage& damage : damages_of(step)) {
    INFO(damage.what);
    restore(lab / "a", lab / "copy");
    damage.make();
    // Using a model also reads every file that it needs, and changes nothing.
    if (std::string(damage.named) != "optimizer-00000.safetensors")
      CHECK_THROWS_WITH(lab.loss("a"), Contains(damage.named));
    CHECK(lab.complaint("a", {"checkpoint.keep=1"}).empty());
    CHECK(loss_of_step(lab, "a", 6) == expected);
    // It is neither deleted by checkpoint.keep nor replaced by the step that is saved again.
    CHECK(fs::exists(step.string() + ".damaged/weights-00000.safetensors"));
    CHECK(lab.checkpoints("a").contains("step-00000006"));
    CHECK(read_file(lab / "a/checkpoints/latest") == "step-00000006\n");
  }
}

TEST_CASE("a path that is damaged is an error, and so is a file that is missing or unreadable") {
  const DamageLab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  fs::copy(lab / "a", lab / "copy", fs::copy_options::recursive);
  for (const Damage& damage : damages_of(step)) {
    INFO(damage.what);
    restore(lab / "a", lab / "copy");
    damage.make();
    const auto before = files_of(lab / "a");
    for (const std::string& path : {step.string(), (lab / "a").string()}) {
      std::string said;
      try {
        lab.train("a", {"train.steps=6", "checkpoint.load=" + path});
      } catch (const RunError& e) {
        said = e.what();
      }
      CHECK_THAT(said, Contains((step / damage.named).string()));
      CHECK(files_of(lab / "a") == before);
    }
  }
  for (const char* name : {"index.json", "state.json", "weights-00000.safetensors",
                           "optimizer-00000.safetensors", "optimizer-00000.safetensors.sums"}) {
    INFO(name);
    restore(lab / "a", lab / "copy");
    fs::remove(step / name);
    const auto before = files_of(lab / "a");
    CHECK_THAT(lab.complaint("a"),
               Catch::StartsWith("exit code 1") && Contains((step / name).string()));
    CHECK(files_of(lab / "a") == before);
  }
  // With the path of a sound checkpoint the run resumes, and keeps the other under another name.
  lab.train("a", {"train.steps=6", "checkpoint.load=" + lab.step("a", 2).string()});
  CHECK(fs::exists(lab.step("a", 6)));
  CHECK(fs::exists(step.string() + ".abandoned/weights-00000.safetensors"));
  CHECK(lab.complaint("a").empty());
}

TEST_CASE(
    "several damaged checkpoints are set aside; without a sound one, a run never begins anew") {
  const DamageLab lab;
  lab.train("a");
  fs::copy(lab / "a", lab / "copy", fs::copy_options::recursive);
  lab.train("a", {"checkpoint.load=latest", "train.steps=8"});
  // One shows when it is chosen, the other when its tensors are read.
  for (const Damage& damage : {damages_of(lab.step("a", 8))[1], damages_of(lab.step("a", 6))[4]})
    damage.make();
  CHECK(lab.complaint("a", {"train.steps=10"}).empty());
  for (const int n : {6, 8}) CHECK(fs::exists(lab.step("a", n).string() + ".damaged"));
  for (const size_t kind : {1, 3}) {
    restore(lab / "a", lab / "copy");
    for (const int n : {2, 4}) damages_of(lab.step("a", n))[kind].make();
    for (int start = 0; start < 2; ++start) {
      CHECK_THAT(lab.complaint("a"), Catch::StartsWith("exit code 1"));
      CHECK(lab.steps("a").size() == 4);
    }
  }
  // A start after the last one was set aside, by hand or by a run that was killed.
  restore(lab / "a", lab / "copy");
  for (const int n : {2, 4}) fs::rename(lab.step("a", n), lab.step("a", n).string() + ".damaged");
  fs::remove(lab / "a/checkpoints/latest");
  CHECK_THAT(lab.complaint("a"), Catch::StartsWith("exit code 1") && Contains("damaged"));
  CHECK_THAT(lab.complaint("a", {"checkpoint.load_or_start=true"}),
             Catch::StartsWith("exit code 1"));
}

TEST_CASE("a run that was killed right after it had set a checkpoint aside continues") {
  const DamageLab lab;
  lab.train("a");
  fs::rename(lab.step("a", 4), lab.step("a", 4).string() + ".damaged");  // `latest` still names it
  CHECK(read_file(lab / "a/checkpoints/latest") == "step-00000004\n");
  CHECK(lab.complaint("a").empty());
  CHECK(lab.steps("a").size() == 6);
  CHECK(read_file(lab / "a/checkpoints/latest") == "step-00000006\n");
}

TEST_CASE("a restarted job falls back like checkpoint.load=latest") {
  const DamageLab lab;
  lab.train("a", {}, "job");
  damages_of(lab.step("a", 4))[3].make();
  lab.train("a", {"train.steps=6"}, "job");
  CHECK(fs::exists(lab.step("a", 4).string() + ".damaged"));
  CHECK(fs::exists(lab.step("a", 6)));
}

TEST_CASE("a run may start where a folder to load from is empty or does not exist") {
  const DamageLab lab;
  for (const char* from : {"nowhere", "empty"}) {
    fs::create_directory(lab / "empty");
    const std::string run = std::string("from_") + from;
    CHECK_THROWS_AS(lab.train(run, {"checkpoint.load=" + (lab / from).string()}), UserError);
    lab.train(run,
              {"checkpoint.load.path=" + (lab / from).string(), "checkpoint.load.or_start=true"});
    CHECK(lab.checkpoints(run).contains("step-00000004"));
  }
  // The same command continues where it has saved, and repeats where it has not.
  const std::string own = "checkpoint.load=" + (lab / "b/checkpoints").string();
  const Settings command{own, "checkpoint.load_or_start=true"};
  Settings without = command;
  without.insert(without.end(), {"checkpoint.every_steps=0", "checkpoint.at_end=false"});
  lab.train("b", without);
  lab.train("b", command);
  CHECK(lab.steps("b").size() == 4);
  Settings more = command;
  more.push_back("train.steps=6");
  lab.train("b", more);
  CHECK(lab.steps("b").size() == 6);
  // Damage is not emptiness.
  for (const int n : {2, 4, 6}) damages_of(lab.step("b", n))[1].make();
  CHECK_THROWS_AS(lab.train("b", more), RunError);
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
  const fs::path first = lab.step("a", 2), second = lab.step("a", 4);
  add_files(control, first, writer.files([] { throw RunError("the disk is full"); }));
  writer.committed(first);
  CHECK(writer.take_note().empty());
  CHECK_FALSE(fs::exists(first / "consolidated"));
  CHECK(storage::complete_checkpoint(first));
  writer.complete(second);
  CHECK_THAT(writer.take_note(), Contains((first / "consolidated").string()) &&
                                     Contains((second / "consolidated").string()));
  CHECK(fs::exists(first / "consolidated/config.json"));
}

}  // namespace checkpoint_damage_test
