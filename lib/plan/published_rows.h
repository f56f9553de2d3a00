// Training speeds that others have published: a planner is fitted to them and judged by them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/plan_trial.h"
#include "plan/run_plan.h"
#include "recipe/model_source.h"

namespace mtrain::plan {

// The shape of a model. Absent parts are those that it does not have.
struct PublishedModel {
  int64_t layers = 0, hidden = 0, heads = 0, groups = 0, head_dim = 0, ffn = 0, vocab = 0;
  std::string activation;  // swiglu, gelu or relu2
  bool tied = false;       // one matrix for the embedding and the head
  struct Experts {
    int64_t number = 0, topk = 0, ffn = 0, first_dense = 0, shared_ffn = 0;
  };
  std::optional<Experts> experts;
  struct Latent {
    int64_t q_lora = 0, kv_lora = 0, nope = 0, rope = 0, value = 0;  // q_lora 0: none
  };
  std::optional<Latent> latent;
  int64_t mtp_layers = 0;
  int64_t window = 0, window_every = 0;  // each window_every-th layer sees everything; 0: all do
};

// One measurement. Sizes that were not published are absent.
struct PublishedRow {
  int64_t number = 0;  // in its file, from 1
  std::string source, model, precision, strategy, recompute, release, task, notes;
  std::string flops_convention, gpu_variant, dispatcher, cuda_graph;
  std::optional<Gpu> gpu;
  int64_t gpus = 0;
  std::optional<int64_t> seq, batch, micro_batch, tp, pp, vp, cp, ep, etp, gpus_per_node;
  std::optional<double> tokens_per_s, tflops;  // of one GPU
  std::optional<bool> tp_overlap, ep_overlap, compile;
  std::string settings;  // everything else that makes a configuration another one
};

struct PublishedRows {
  std::vector<PublishedRow> rows;
  std::map<std::string, PublishedModel> models;

  const PublishedModel* model_of(const PublishedRow& row) const;  // null: unknown
};

// Reads a list of rows, and the shapes of models by name; both are JSON. Throws one UserError with
// all mistakes: unknown and missing keys, wrong types, sizes below 1.
PublishedRows read_published_rows(const std::string& rows, const std::string& models);

// Returns why a row says nothing about a step that mtrain can make; empty: it does.
std::string row_obstacle(const PublishedRow& row, const PublishedRows& all);

// The name under which rows are fitted together: programs with the same kernels are one stack.
std::string stack_of(const PublishedRow& row);
// Equal for rows that differ in their release alone.
std::string configuration_of(const PublishedRow& row);
// A short name of the layout for a table: "llama3_70b 64 x fp8 tp 4 pp 8 x 5".
std::string row_text(const PublishedRow& row);

// FLOPs of forward and backward for a token; causal attention counts half, and recomputation does
// not count. The published TFLOP/s of all rows are turned into tokens by the same convention.
double flops_of_token(const PublishedModel& model, int64_t seq);
// Seconds of a step. The row has no obstacle.
double measured_step(const PublishedRow& row, const PublishedModel& model);

// Settings of a recipe that trains like the row, as far as mtrain can.
std::vector<std::string> settings_of(const PublishedRow& row, const PublishedModel& model);
// The recipe with these settings. `models` must outlive it.
RecipeSource source_of(const PublishedRow& row, const PublishedModel& model,
                       const recipe::ModelSource& models);
// The machines that the row ran on.
Cluster cluster_of(const PublishedRow& row);
// Plans the row on its machines. Throws UserError if a rule of recipes forbids it.
RunPlan plan_of(const PublishedRow& row, const PublishedModel& model,
                const recipe::ModelSource& models);

}  // namespace mtrain::plan
