// Makes data sets, and runs of a tiny model on them, each in a folder of its own.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/dataset/indexed_dataset.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "run/run.h"
#include "run/run_folder.h"
#include "test/support/temporary_folder.h"
#include "train/data_setup.h"

namespace mtrain {

struct Lab : TemporaryFolder {
  Lab() {
    for (const char* name : {"a", "b"}) {
      data::IndexedDatasetWriter writer(path / name, data::TokenType::u16);
      std::vector<int32_t> tokens;
      for (int i = 0; i < 4000; ++i) tokens.push_back((i * 7 + name[0]) % 200);
      writer.add_tokens(tokens);
      writer.finish();
    }
  }

  Recipe recipe(const std::string& run, const std::vector<std::string>& changes = {}) const {
    std::vector<std::string> overrides{"model.num_layers=1",
                                       "model.hidden_size=32",
                                       "model.num_attention_heads=4",
                                       "model.ffn_hidden_size=32",
                                       "tokenizer.type=byte",
                                       "dataset.seq_length=16",
                                       "dataset.train=" + (path / "a").string(),
                                       "train.steps=4",
                                       "train.global_batch_size=2",
                                       "train.micro_batch_size=2",
                                       "train.threads=1",
                                       "lr_scheduler.style=constant",
                                       "mixed_precision.name=fp32",
                                       "checkpoint.every_steps=2",
                                       "checkpoint.keep=0",
                                       "train.run_dir=" + (path / run).string()};
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    Diagnostics diagnostics;
    Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "lab", overrides,
                                      diagnostics);
    diagnostics.throw_if_errors();
    return r;
  }
  RunPlan plan(const std::string& run, const std::vector<std::string>& changes = {}) const {
    const Recipe r = recipe(run, changes);
    return plan::make_plan(r, 1, train::vocabulary(plan::tokenizer_options(r)));
  }
  void train(const std::string& run, const std::vector<std::string>& changes = {},
             const std::string& job = "") const {
    launch::Job here{.id = job};
    if (!job.empty()) here.restarts = starts_[run + job]++;
    const RunPlan made = plan(run, changes);
    run::run_training(made, {.job = here});
  }
  // Makes some steps of a job whose ranks die before they have saved.
  void train_and_die(const std::string& run, std::vector<std::string> changes,
                     const std::string& job) const {
    changes.insert(changes.end(), {"checkpoint.every_steps=0", "checkpoint.at_end=false"});
    train(run, changes, job);
  }
  // Trains like a later command of the job's newest start.
  void train_again(const std::string& run, const std::vector<std::string>& changes,
                   const std::string& job) const {
    const RunPlan made = plan(run, changes);
    run::run_training(made, {.job = {.restarts = starts_[run + job] - 1, .id = job}});
  }
  // Returns where the next start of the job would begin.
  std::string start(const std::string& run, const std::vector<std::string>& changes,
                    const std::string& job) const {
    launch::Job here{.id = job};
    if (!job.empty()) here.restarts = starts_[run + job];
    const auto start = run::claim_run_folder(plan(run, changes).folders, here);
    return start ? start->path.string() : "step 1";
  }
  std::filesystem::path step(const std::string& run, int n) const {
    return path / run / "checkpoints" / fmt::format("step-{:08}", n);
  }
  std::string load(const std::string& run, int n) const {
    return "checkpoint.load=" + step(run, n).string();
  }

  // Returns the lines of metrics.jsonl that are about steps.
  std::vector<nlohmann::json> steps(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    const std::string text = read_file(path / run / "metrics.jsonl");
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      nlohmann::json line = nlohmann::json::parse(text.substr(at, text.find('\n', at) - at));
      if (line.contains("loss")) lines.push_back(std::move(line));
    }
    return lines;
  }
  std::set<std::string> checkpoints(const std::string& run) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path / run / "checkpoints"))
      names.insert(entry.path().filename());
    return names;
  }

 private:
  mutable std::map<std::string, int> starts_;  // starts of each run by each job
};

}  // namespace mtrain
