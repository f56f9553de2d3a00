#include "predict/step_bound.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "schedule/catalog.h"

namespace mtrain::predict {

using device::StreamKind;

namespace {

// Seconds of a forward, and of the input and weight gradients.
struct Passes {
  double F = 0, I = 0, W = 0;
  double all() const { return F + I + W; }
  void add(const Passes& more, double times = 1) {
    F += times * more.F, I += times * more.I, W += times * more.W;
  }
};

// In this class T counts the tokens of a micro-batch on a rank, and e the bytes of an element of
// the compute type.
class Bounds {
 public:
  Bounds(const RunPlan& plan, const plan::Cluster& cluster, const LaunchCosts& costs)
      : plan_(plan),
        cluster_(cluster),
        costs_(costs),
        l_(plan.layout),
        T_(double(l_.micro_batch) * double(plan.sample_length) / double(l_.cp)),
        H_(double(plan.model.hidden)),
        tp_(double(l_.tp)),
        e_(double(dtype_size(plan.compute_dtype))) {
    if (l_.tp > 1) tp_link_ = consecutive(l_.tp);
  }

  StepBound bound() {
    StepBound b;
    b.seconds = step(false);
    guessing_ = true;
    b.guess = step(true) + data_parallel(b.seconds);
    return b;
  }

 private:
  plan::GroupLink consecutive(int64_t ranks) const {
    std::vector<int64_t> group;
    for (int64_t r = 0; r < ranks; ++r) group.push_back(r);
    return link_of(cluster_, group);
  }

  double seconds(std::string_view name, DType dtype, double flops, double bytes) const {
    const LaunchWork work{
        .name = name, .dtype = dtype, .flops = flops, .read = bytes, .written = 0};
    return flops > 0 && !guessing_ ? costs_.least_seconds(work)
                                   : costs_.cost(work, nullptr).seconds;
  }
  // A GEMM may read its operands in 8 bits, which devices without 8-bit units are slower at.
  double gemm(double M, double N, double K) const {
    const double flops = 2 * M * N * K;
    const double plain =
        seconds("matmul", plan_.compute_dtype, flops, e_ * (M * K + K * N + M * N));
    return plan_.fp8.on ? std::min(plain, seconds("matmul", DType::f8e4m3, flops, 0)) : plain;
  }
  // The weight gradient is added to what earlier micro-batches have summed, in fp32.
  Passes linear(double N, double K) const {
    const double each = gemm(T_, N, K);
    if (plan_.model.lora) return {each, 0, 0};
    return {each, each, each};
  }

  Passes attention_linears(const spec::GroupedAttention& a) const {
    Passes p;
    if (!a.latent) {
      const double heads = double(a.heads) / tp_, kv = std::max(1.0, double(a.kv_heads) / tp_);
      p.add(linear((heads + kv) * double(a.head_dim) + kv * double(a.value_dim()), H_));
    } else {
      const spec::LatentProjections& l = *a.latent;
      const double q = double(a.heads * a.head_dim) / tp_, q_rank = double(l.q_rank),
                   rank = double(l.kv_rank), rope = double(l.rope_dim);
      if (q_rank > 0) p.add(linear(q_rank / tp_, H_));
      p.add(linear(q, q_rank > 0 ? q_rank : H_));
      p.add(linear((rank + rope) / tp_, H_));
      p.add(linear(double(a.heads) * (double(a.head_dim + a.value_dim()) - rope) / tp_, rank));
    }
    p.add(linear(H_, double(a.out_width()) / tp_));
    return p;
  }

  // Scores and sums of values. Documents of a micro-batch attend to themselves alone.
  Passes attention(const spec::GroupedAttention& a) const {
    if (plan_.dataset.by_document()) return {};
    const double S = double(plan_.sample_length),
                 w = a.window > 0 ? std::min(S, double(a.window)) : S,
                 pairs = double(l_.micro_batch) * (S * w - w * w / 2) / double(l_.cp),
                 heads = double(a.heads) / tp_, D = double(a.head_dim), V = double(a.value_dim());
    const auto of = [&](double per_pair) {
      return seconds("attention", plan_.compute_dtype, 2 * heads * pairs * per_pair, 0);
    };
    return {of(D + V), of(3 * D + 2 * V), 0};
  }

  Passes experts(const spec::Experts& e) const {
    const double kept = e.capacity_factor > 0 ? std::min(1.0, e.capacity_factor) : 1,
                 rows = double(e.per_token) * kept, ffn = double(e.ffn);
    const auto each = [&](double weights) {
      const double flops = 2 * T_ * weights / tp_;
      const double plain = seconds("matmul", plan_.compute_dtype, flops, 0);
      return plan_.fp8.on ? std::min(plain, seconds("matmul", DType::f8e4m3, flops, 0)) : plain;
    };
    const double time = each(rows * 3 * H_ * ffn) + each(3 * H_ * double(e.shared_ffn));
    return plan_.model.lora ? Passes{time, 0, 0} : Passes{time, time, time};
  }

  // What a recomputed layer computes again, all but its last GEMM.
  Passes layer(const spec::LayerSpec& layer, bool recomputed) const {
    const spec::GroupedAttention& a = layer.grouped();
    const Passes core = attention(a);
    Passes p = attention_linears(a), again = p;
    p.add(core);
    again.add(core);
    if (const spec::Experts* e = layer.experts()) {
      const Passes rows = experts(*e);
      p.add(rows);
      again.add(rows, guessing_ ? 1 : 0.5);
    } else {
      const auto& mlp = std::get<spec::DenseMlp>(layer.mlp);
      const double ffn = double(mlp.ffn) / tp_;
      const Passes first = linear((mlp.gated() ? 2 : 1) * ffn, H_);
      p.add(first);
      again.add(first);
      p.add(linear(H_, ffn));
      if (plan_.recompute.mlp) p.I += first.F;
    }
    if (recomputed) p.I += again.F;
    if (plan_.recompute.attention_core && !recomputed) p.I += core.F;
    p.add(exchanges(layer));
    if (guessing_) p.add(passes(layer), 1);
    return p;
  }

  // Gathers and scatters of a layer's inputs and outputs, or sums of its outputs.
  Passes exchanges(const spec::LayerSpec& layer) const {
    if (l_.tp == 1) return {};
    const bool hidden = plan_.overlap.tp_comm_overlap || passes_pair();
    if (hidden && !guessing_) return {};
    const bool scatters = plan_.tensor.sequence_parallel;
    const double bytes = T_ * H_ * e_ * (tp_ - 1) / tp_,
                 times = layer.experts() ? 1 : 2;  // the experts' rows travel in other ways
    const auto of = [&](std::string_view name, double wire) {
      return costs_
          .cost({.name = name,
                 .stream = StreamKind::tp,
                 .dtype = plan_.compute_dtype,
                 .wire_bytes = wire,
                 .ranks = l_.tp},
                &tp_link_)
          .seconds;
    };
    const double forward = times * (scatters ? of("all_gather", bytes) + of("reduce_scatter", bytes)
                                             : of("all_reduce", 2 * bytes));
    if (!guessing_) return {forward, 0, 0};
    constexpr double kExposed = 0.2;  // of what chunks hide
    const double exposed = hidden ? kExposed * forward : forward;
    return {exposed, exposed, 0};
  }

  // Whether a forward may hide what a backward waits for.
  bool passes_pair() const {
    const plan::ScheduleShape& s = plan_.schedule_shape;
    return s.moe_overlap || s.table ||
           (l_.pp > 1 &&
            schedule::passes_pair(schedule::schedule_kind(s.schedule), schedule_size(s)));
  }

  // Norms, activations and residuals, in bytes per token: forward, then 1.8 times as much.
  Passes passes(const spec::LayerSpec& layer) const {
    const spec::GroupedAttention& a = layer.grouped();
    const double sp = plan_.tensor.sequence_parallel ? tp_ : 1;
    const auto* mlp = std::get_if<spec::DenseMlp>(&layer.mlp);
    const double width =
        mlp ? 3 * double(mlp->ffn) : 3 * double(layer.experts()->per_token * layer.experts()->ffn);
    const double bytes = T_ * e_ * (8 * H_ / sp + 2 * double(a.qkv_width()) / tp_ + width / tp_);
    const double forward = seconds("norm", plan_.compute_dtype, 0, bytes);
    return {forward, 1.8 * forward, 0};
  }

  Passes head() const {
    const double each = gemm(T_, double(plan_.model.vocab) / tp_, H_);
    return plan_.model.lora ? Passes{each, 0, 0} : Passes{each, each, each};
  }

  // The passes of a micro-batch through each stage.
  std::vector<Passes> stages() const {
    std::vector<Passes> all(static_cast<size_t>(l_.stages));
    std::array<std::vector<std::pair<const spec::LayerSpec*, Passes>>, 2> known;
    const auto of = [&](const spec::LayerSpec& spec, bool recomputed) -> const Passes& {
      auto& list = known[size_t(recomputed)];
      for (const auto& [other, passes] : list)
        if (*other == spec) return passes;
      return list.emplace_back(&spec, layer(spec, recomputed)).second;
    };
    int64_t first = 0;
    for (size_t s = 0; s < all.size(); ++s) {
      const int64_t layers = l_.layers_of_stage[s];
      for (int64_t i = 0; i < layers && first + i < plan_.model.main_layers(); ++i)
        all[s].add(of(plan_.model.layer(first + i), i < plan_.recompute.layers));
      first += layers;
    }
    all.back().add(head());
    return all;
  }

  // A rank begins when a micro-batch has passed the stages before its first one, and after its last
  // backward of that stage the gradient passes the same stages.
  double step(bool with_weights) const {
    const std::vector<Passes> all = stages();
    std::vector<Passes> before(1);
    for (const Passes& stage : all) {
      before.push_back(before.back());
      before.back().add(stage);
    }
    const double micro_batches = double(l_.micro_batches), flushes = double(l_.flushes);
    double longest = 0;
    for (int64_t rank = 0; rank < l_.pp; ++rank) {
      Passes work;
      int64_t first = l_.stages;
      for (const int64_t s : stages_of_rank(plan_.schedule_shape, rank)) {
        work.add(all[size_t(s)], micro_batches);
        first = std::min(first, s);
      }
      const Passes& filled = before[size_t(first)];
      const double drains = filled.I + (with_weights ? filled.W : 0);
      // Weight gradients of a flush that nobody waits for may run while the next one begins.
      const double flush = filled.F + work.F + work.I + drains + (with_weights ? work.W : 0);
      longest = std::max({longest, filled.F + flushes * work.all(), flushes * flush});
    }
    return longest;
  }

  // A guess of what data parallelism adds to a step that computes for `compute` seconds.
  double data_parallel(double compute) const {
    const int64_t ranks = l_.gradient_ranks();
    if (ranks == 1) return 0;
    // The ranks of a group in a domain share its links to the others.
    const int64_t span = std::max<int64_t>(1, l_.tp),
                  here = std::clamp<int64_t>(cluster_.domain_gpus / span, 1, ranks);
    const double inside = cluster_.domain.bytes_per_s,
                 rate = 0.8 * (here == ranks
                                   ? inside
                                   : std::min(inside, cluster_.network.bytes_per_s * double(here)));
    const double parameters = plan_.parameters.total() / tp_ / double(l_.pp),
                 bytes = e_ * parameters, times = double(l_.step_micro_batches());
    const plan::DataParallelOptions& dp = plan_.data_parallel;
    const double reduced = parameters * double(dtype_size(dp.reduce.dtype));
    const double one = compute / times;
    if (dp.shards == plan::ShardLevel::nothing)
      return std::max(0.0, 2 * reduced / rate - 0.6 * one);
    if (dp.shards < plan::ShardLevel::parameters)
      return std::max(0.0, (reduced + bytes) / rate - 0.8 * one);
    const double gathers = (dp.gather.reshard_after_forward ? 2 : 1) * bytes / rate;
    const double reductions = reduced / rate / (dp.defer_reduce ? times : 1);
    return times * std::max(0.1 * gathers, gathers + reductions - 0.8 * one);
  }

  const RunPlan& plan_;
  const plan::Cluster& cluster_;
  const LaunchCosts& costs_;
  const plan::Layout& l_;
  const double T_, H_, tp_, e_;
  plan::GroupLink tp_link_;
  bool guessing_ = false;
};

}  // namespace

StepBound step_bound(const RunPlan& plan, const plan::Cluster& cluster, const LaunchCosts& costs) {
  return Bounds(plan, cluster, costs).bound();
}

}  // namespace mtrain::predict
