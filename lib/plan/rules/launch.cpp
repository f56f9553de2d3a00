// Rules of the settings that act when ranks are started, and of the variables for ranks.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

// Variables of other software that recipes often set, and why nothing in mtrain reads them. A name
// that ends in `*` stands for all that begin with it. mtrain's own libraries (CUDA, NCCL, cuBLAS,
// cuDNN) read theirs, which are not listed.
struct Unread {
  std::string_view name, why;
};
constexpr std::string_view kTransformerEngine = "there is no Transformer Engine",
                           kPyTorch = "there is no PyTorch", kPython = "there is no Python",
                           kTransport = "mtrain's own transports carry the experts' tokens",
                           kThreads = "train.threads decides", kHub = "nothing is downloaded",
                           kMetrics = "metrics are written to metrics.jsonl";
constexpr std::array kUnread{Unread{"NVTE_*", kTransformerEngine},
                             Unread{"UB_SKIPMC", kTransformerEngine},
                             Unread{"TORCH_*", kPyTorch},
                             Unread{"TORCHINDUCTOR_*", kPyTorch},
                             Unread{"TORCHDYNAMO_*", kPyTorch},
                             Unread{"PYTORCH_*", kPyTorch},
                             Unread{"TRITON_*", kPyTorch},
                             Unread{"PYTHON*", kPython},
                             Unread{"TOKENIZERS_PARALLELISM", kPython},
                             Unread{"TRANSFORMERS_*", kPython},
                             Unread{"USE_MNNVL", kTransport},
                             Unread{"NVLINK_DOMAIN_SIZE", kTransport},
                             Unread{"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", kTransport},
                             Unread{"NUM_OF_TOKENS_PER_CHUNK_*", kTransport},
                             Unread{"NVSHMEM_*", kTransport},
                             Unread{"OMP_*", kThreads},
                             Unread{"MKL_*", kThreads},
                             Unread{"OPENBLAS_*", kThreads},
                             Unread{"HF_TOKEN", kHub},
                             Unread{"HF_HUB_OFFLINE", kHub},
                             Unread{"HF_DATASETS_OFFLINE", kHub},
                             Unread{"WANDB_*", kMetrics},
                             Unread{"COMET_*", kMetrics},
                             Unread{"MLFLOW_*", kMetrics}};

const Unread* find_unread(std::string_view variable) {
  const auto row = std::ranges::find_if(kUnread, [&](const Unread& known) {
    return known.name.ends_with('*')
               ? variable.starts_with(known.name.substr(0, known.name.size() - 1))
               : variable == known.name;
  });
  return row == kUnread.end() ? nullptr : &*row;
}

// Returns the setting that a variable has in mtrain, or null.
const char* own_setting(std::string_view variable) {
  if (variable == "CUDA_DEVICE_MAX_CONNECTIONS") return "launch.cuda_device_max_connections";
  if (variable == "NVTE_FWD_LAYERNORM_SM_MARGIN" || variable == "NVTE_BWD_LAYERNORM_SM_MARGIN")
    return "launch.layernorm_sm_margin";
  return nullptr;
}

// Lists the variables that have no effect in one warning, by the reason why.
void report_unread(const Recipe& r, Diagnostics& diagnostics) {
  std::vector<std::pair<std::string_view, std::vector<std::string_view>>> reasons;
  for (const auto& [name, variable] : r.launch.env) {
    const Unread* row = find_unread(name);
    if (!row || own_setting(name)) continue;
    auto same = std::ranges::find(reasons, row->why, [](const auto& entry) { return entry.first; });
    if (same == reasons.end()) same = reasons.insert(same, {row->why, {}});
    same->second.push_back(name);
  }
  if (reasons.empty()) return;
  std::string list;
  for (const auto& [why, names] : reasons)
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", fmt::join(names, ", "), why);
  diagnostics.warn("launch.env", fmt::format("nothing in mtrain reads {}", list), "leave them out");
}

// Refuses variables that are settings of their own, and the one that is a secret of mtrain.
void check_names(const Recipe& r, Diagnostics& diagnostics) {
  for (const auto& [name, variable] : r.launch.env)
    if (const char* field = own_setting(name))
      diagnostics.add("launch.env", fmt::format("{} has a setting of its own", name),
                      fmt::format("set {}", field));
  diagnostics.require(!r.launch.env.contains("MTRAIN_TOKEN"), {"launch.env"},
                      "MTRAIN_TOKEN, the job's secret, does not belong in a recipe",
                      "set MTRAIN_TOKEN in the environment, or name a file with --token_file");
}

}  // namespace

void validate_launch(const Recipe& r, const Overlap& o, Diagnostics& diagnostics) {
  if (o.overlap_moe_expert_parallel_comm && r.launch.cuda_device_max_connections == 1)
    diagnostics.warn("launch.cuda_device_max_connections",
                     "1 puts the exchanges of experts into one queue with the compute that they "
                     "should hide behind",
                     "set it to auto, or to 32");
  check_names(r, diagnostics);
  report_unread(r, diagnostics);
  // A printed recipe has the names of variables without their values.
  for (const auto& [name, variable] : r.launch.env)
    if (!variable.value && !std::getenv(name.c_str()) && !find_unread(name))
      diagnostics.warn("launch.env",
                       fmt::format("{} has no value, here or in the environment", name),
                       fmt::format("set it before the start, or write {}: ${{env:NAME}}", name));
  const bool fsdp = r.distributed.strategy == recipe::Strategy::fsdp2 ||
                    r.distributed.strategy == recipe::Strategy::megatron_fsdp;
  diagnostics.require(
      !fsdp || r.launch.cuda_device_max_connections != 1,
      {"launch.cuda_device_max_connections", "distributed.strategy"},
      fmt::format("1 puts the gathers of {} into one queue with the compute they should "
                  "hide behind",
                  enum_name(r.distributed.strategy)),
      "set it to auto, or to 32");
}

}  // namespace mtrain::plan
