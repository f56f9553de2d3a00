#include "train/start_banner.h"

#include "base/strings.h"
#include "model/memory.h"
#include "train/model_setup.h"

namespace mtrain {

namespace {

std::string model_text(const Recipe& r, const GptConfig& c) {
  return fmt::format("{}: {} layers, hidden {}, {} heads ({} kv) of {}, ffn {}, vocabulary {}{}",
                     enum_name(r.model.architecture), c.layers, c.hidden, c.heads, c.kv_heads,
                     c.head_dim, c.ffn, c.vocab, c.tied_embeddings ? ", tied" : "");
}

std::string memory_text(const Recipe& r, const GptConfig& c) {
  const MemoryEstimate m = estimate_memory(c, compute_dtype(r.mixed_precision),
                                           r.train.micro_batch_size * r.dataset.seq_length,
                                           recompute_policy(r.recompute, c.layers));
  return fmt::format("{} planned: parameters {}, gradients {}, optimizer {}, activations {}",
                     human_bytes(double(m.total())), human_bytes(double(m.params)),
                     human_bytes(double(m.grads)), human_bytes(double(m.optimizer)),
                     human_bytes(double(m.activations)));
}

std::string recompute_text(const Recipe& r) {
  std::string text(enum_name(r.recompute.granularity));
  if (r.recompute.granularity == RecomputeGranularity::full && r.recompute.num_layers)
    text +=
        fmt::format(", {} {}", r.recompute.method == RecomputeMethod::block ? "first" : "groups of",
                    *r.recompute.num_layers);
  return text;
}

}  // namespace

std::vector<BannerRow> banner_rows(Trainer& t, const Recipe& r, double peak) {
  const GptConfig& c = t.model().config();
  const int64_t S = r.dataset.seq_length;
  const double flops = flops_per_token(c, S);
  std::vector<BannerRow> rows;
  rows.push_back({"model", model_text(r, c)});
  rows.push_back({"parameters", fmt::format("{} ({} in matmuls), {} FLOPs per token",
                                            human_count(double(count_params(c).total)),
                                            human_count(double(count_params(c).total -
                                                               count_params(c).embedding)),
                                            human_count(flops))});
  rows.push_back({"precision", std::string(enum_name(r.mixed_precision.name))});
  rows.push_back({"batch", fmt::format("{} x {} tokens a step, in micro-batches of {}",
                                       r.train.global_batch_size, S, r.train.micro_batch_size)});
  rows.push_back(
      {"steps", fmt::format("{} to {}, {} tokens in all", t.steps_done() + 1, r.train.steps,
                            human_count(double(r.train.steps * r.train.global_batch_size * S)))});
  rows.push_back({"recompute", recompute_text(r)});
  rows.push_back({"memory", memory_text(r, c)});
  rows.push_back(
      {"device", t.device().description() +
                     (peak > 0 ? fmt::format(", {:.0f} GFLOP/s fp32 measured", peak / 1e9) : "")});
  rows.push_back({"overlap", "one rank: no communication"});
  return rows;
}

}  // namespace mtrain
