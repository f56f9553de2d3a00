// The Hugging Face form of checkpoints (checkpoint.save_consolidated).
#include <map>
#include <optional>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/read_weights.h"
#include "comm/host_collectives.h"
#include "interchange/export.h"
#include "run/consolidated_writer.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/manifest.h"
#include "test/support/damage_testing.h"
#include "test/support/run_lab.h"
#include "train/build_trainer.h"
#include "train/data_setup.h"

namespace parity_consolidated_test {

using namespace mtrain;
using Catch::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// Returns the text of each file in a folder, by its name.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] =
        entry.is_regular_file() ? read_file(entry.path()) : "(a folder)";
  return files;
}

}  // namespace

TEST_CASE("checkpoints are also written as mtrain export hf would write them") {
  const Lab lab;
  fs::copy_file(fs::path(MTRAIN_SOURCE_DIR) / "test/golden/tokenizer/contiguous.json",
                lab / "own.json");
  write_file_atomic(lab / "special_tokens_map.json", "{ }\n");
  const std::vector<std::string> tokenizer{
      fmt::format("tokenizer={{type: huggingface, path: {}}}", (lab / "own.json").string())};
  const auto train = [&](const std::string& run, const std::string& setting) {
    auto changes = tokenizer;
    if (!setting.empty()) changes.push_back("checkpoint.save_consolidated=" + setting);
    lab.train(run, changes);
  };
  train("none", "");
  train("every", "every");
  train("final", "final");
  for (const auto& [run, step] : {std::pair{"every", 2}, {"every", 4}, {"final", 4}}) {
    INFO(run << " " << step);
    const fs::path again = lab / fmt::format("{}-{}", run, step);
    interchange::export_hf(lab.step(run, step), again, {});
    const auto written = files_of(lab.step(run, step) / "consolidated");
    CHECK(written == files_of(again));
    CHECK(written.at("tokenizer.json") == read_file(lab / "own.json"));
    CHECK(written.at("special_tokens_map.json") == "{ }\n");
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"})
      CHECK(written.count(name));
  }
  CHECK_FALSE(fs::exists(lab.step("final", 2) / "consolidated"));
  CHECK_FALSE(fs::exists(lab.step("none", 4) / "consolidated"));
  for (const char* run : {"every", "final"}) {
    const auto own = lab.steps(run), none = lab.steps("none");
    REQUIRE(own.size() == none.size());
    for (size_t i = 0; i < own.size(); ++i) CHECK(own[i]["loss"] == none[i]["loss"]);
  }
}

TEST_CASE("a run that begins with a saved Hugging Face folder has the checkpoint's weights") {
  const Lab lab;
  lab.train("saved", {"checkpoint.save_consolidated=final"});
  const fs::path saved = lab.step("saved", 4);
  const std::vector<std::string> other{"train.seed=9", "dataset.train=" + (lab / "b").string()};
  auto from = other;
  from.push_back("model.from=" + (saved / "consolidated").string());
  lab.train("from", from);
  const RunPlan plan = lab.plan("alone", other);
  const auto device = Device::cpu(1);
  train::Trainer trainer = train::build_trainer(
      *device, plan, train::open_training_data(plan.dataset, {plan.model.vocab}),
      comm::World::alone());
  checkpoint::start_from(trainer.checkpoint_parts(),
                         *open_checkpoint_tensors(saved, storage::TensorSet::weights));
  for (const json& step : lab.steps("from")) {
    const double loss = trainer.step().loss;
    CHECK(step["loss"] == Approx(loss).epsilon(1e-7));
  }
}

TEST_CASE("a Hugging Face folder that a kill has interrupted is written when the run resumes") {
  const Lab lab;
  for (const std::string which : {"every", "final"}) {
    INFO(which);
    const std::vector<std::string> consolidated{"checkpoint.save_consolidated=" + which};
    lab.train(which, consolidated);
    const fs::path step = lab.step(which, 4), form = step / "consolidated",
                   cut = step / "consolidated.tmp-1";
    const auto whole = files_of(form);
    fs::rename(form, cut);
    fs::resize_file(cut / "model.safetensors", 100);
    auto again = consolidated;
    again.push_back("checkpoint.load=latest");
    if (which == "every") again.push_back("train.steps=6");
    lab.train(which, again);
    CHECK(files_of(form) == whole);
    CHECK_FALSE(fs::exists(cut));
    if (which == "every") CHECK(fs::exists(lab.step(which, 6) / "consolidated/config.json"));
  }
}

TEST_CASE("a Hugging Face folder that cannot be written does not affect the checkpoint") {
  const Lab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  const auto before = files_of(step);
  const auto device = Device::cpu(1);
  comm::World world = comm::World::alone();
  const comm::HostCollectives control(world, *device);
  run::ConsolidatedWriter writer(control);
  int pieces = 0;
  add_files(control, step, writer.files([&] {  // with a warning
    ++pieces;
    CHECK_FALSE(fs::exists(step / "consolidated"));
    throw RunError("the disk is full");
  }));
  CHECK(pieces == 1);
  CHECK(files_of(step) == before);
  CHECK(storage::complete_checkpoint(step));
  writer.committed(step);
  CHECK(writer.take_note().empty());
  writer.complete({});
  CHECK_THAT(writer.take_note(), Contains((step / "consolidated").string()) && Contains("llama"));
  CHECK(writer.take_note().empty());
  CHECK(fs::exists(step / "consolidated/config.json"));
  CHECK(storage::complete_checkpoint(step));
  // A form of an earlier version is one.
  fs::rename(step / "consolidated", step / "hf");
  writer.complete(step);
  CHECK_FALSE(fs::exists(step / "consolidated"));
}

TEST_CASE("ranks that share a Hugging Face folder write the bytes of an export") {
  const Lab lab;
  struct Row {
    const char* name;
    std::vector<std::string> changes;
  };
  for (const Row& row : std::vector<Row>{
           {"tied", {"model.share_embeddings_and_output_weights=true"}},
           {"experts",
            {"model.moe.num_experts=4", "model.moe.router_topk=2", "model.moe.ffn_hidden_size=24",
             "model.architecture=mixtral"}},
           {"bf16", {"mixed_precision.name=bf16_mixed", "optimizer.master_weights=false"}}}) {
    lab.train(row.name, row.changes);
    const fs::path step = lab.step(row.name, 4);
    const interchange::ExportOptions options{.max_shard_bytes = 5'000};
    const fs::path exported = lab / (std::string(row.name) + "-export");
    CHECK(interchange::export_hf(step, exported, options).files > 4);
    const auto wanted = files_of(exported);
    for (const int ranks : {1, 4}) {
      INFO(row.name << ", " << ranks << " ranks");
      const fs::path folder = lab / fmt::format("{}-{}", row.name, ranks);
      fs::create_directory(folder);
      const std::string contents = interchange::plan_consolidated(step, folder, options);
      CHECK(fs::is_empty(folder));
      std::optional<interchange::Exported> done;
      for (int rank = ranks - 1; rank >= 0; --rank) {
        done = interchange::write_consolidated(step, folder, contents, {rank, ranks}, options);
        CHECK((files_of(folder).size() < wanted.size()) == (rank > 0));
      }
      interchange::await_consolidated(folder, *done);
      CHECK(files_of(folder) == wanted);
    }
  }
}

TEST_CASE("only the host of rank 0 needs the folder from which the model came") {
  const Lab lab;
  const fs::path from = lab / "from", away = lab / "away";
  lab.train("base");
  interchange::export_hf(lab.step("base", 4), from, {.dtype = DType::bf16});
  write_file_atomic(from / "special_tokens_map.json", "{ }\n");
  lab.train("a", {"model.from=" + from.string()});
  const fs::path step = lab.step("a", 4), exported = lab / "export";
  const interchange::ExportOptions options{.max_shard_bytes = 5'000};
  REQUIRE(interchange::export_hf(step, exported, options).files > 2);
  const auto wanted = files_of(exported);
  CHECK_THAT(wanted.at("config.json"), Contains("bfloat16"));
  constexpr int kRanks = 3;
  // On the other hosts there is no such folder, or one with other types of tensors.
  for (const bool other : {false, true}) {
    CAPTURE(other);
    const fs::path folder = lab / (other ? "other" : "absent");
    fs::create_directory(folder);
    const std::string contents = interchange::plan_consolidated(step, folder, options);
    for (int rank = kRanks - 1; rank >= 0; --rank) {
      if (rank == kRanks - 1) {
        fs::rename(from, away);
        if (other) interchange::export_hf(lab.step("base", 2), from, {});
      } else if (rank == 0) {
        fs::remove_all(from);
        fs::rename(away, from);
      }
      interchange::write_consolidated(step, folder, contents, {rank, kRanks}, options);
    }
    CHECK(files_of(folder) == wanted);
  }
}

TEST_CASE("a Hugging Face folder that could not be removed is not part of the checkpoint") {
  const Lab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4);
  const auto device = Device::cpu(1);
  comm::World world = comm::World::alone();
  const comm::HostCollectives control(world, *device);
  run::ConsolidatedWriter writer(control);
  storage::CheckpointWriter save(lab / "again", 4);
  fs::copy(step, save.folder(), fs::copy_options::recursive);
  // What is left if neither the form can be written nor its folder be removed.
  const fs::path left = save.folder() / "consolidated.tmp-7-some-host";
  fs::create_directory(left);
  write_file_atomic(left / "model.safetensors", "a part");
  save.set_index(read_index(step, storage::read_manifest(step)), {});
  const fs::path again = save.commit();
  CHECK(storage::read_manifest(again).sizes == storage::read_manifest(step).sizes);
  REQUIRE(fs::exists(again / left.filename()));
  writer.complete(again);
  CHECK_FALSE(fs::exists(again / left.filename()));
  CHECK(storage::complete_checkpoint(again));
  interchange::export_hf(again, lab / "export", {});
  CHECK(files_of(again / "consolidated") == files_of(lab / "export"));
}

TEST_CASE("weights that are not finite have no Hugging Face folder, and are named") {
  const Lab lab;
  lab.train("a");
  const fs::path step = lab.step("a", 4), file = step / "weights-00000.safetensors";
  const auto at = storage::SafetensorsReader(file).info("layers.0.mlp.down.weight@0").begin;
  std::string text = read_file(file);
  text.replace(size_t(at) + 4 * 7, 4, std::string("\x00\x00\xc0\x7f", 4));
  write_file_atomic(file, text);
  seal_again(step, 4);
  CHECK_THROWS_WITH(interchange::export_hf(step, step / "hf", {}),
                    Contains("model.layers.0.mlp.down_proj.weight") && Contains("nan") &&
                        Contains("training diverged"));
  CHECK_FALSE(fs::exists(step / "consolidated"));
}

}  // namespace parity_consolidated_test
