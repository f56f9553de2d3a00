// Trains models with experts over ranks, and compares them with a single rank.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "train_pieces.h"
#include "train_ranks.h"

namespace train_testing {

inline constexpr int64_t kExperts = 8, kMicroBatches = 8;
inline const int64_t kSteps = compared_steps(20);

// A dense layer, then layers of 8 experts; eight micro-batches of one sample.
inline const Changes kPlain{"model.num_layers=4",
                            "model.moe.num_experts=8",
                            "model.moe.router_topk=2",
                            "model.moe.ffn_hidden_size=40",
                            "model.moe.first_dense_layers=1",
                            "model.moe.load_balancing_type=aux_loss",
                            "model.moe.aux_loss_coeff=0.05",
                            "model.moe.z_loss_coeff=0.001",
                            "optimizer.lr=3e-3",
                            "train.global_batch_size=8",
                            "train.micro_batch_size=1"};
// Weights that do not sum to 1, and a shared expert under a gate.
inline const Changes kShared{"model.num_layers=4",
                             "model.moe.num_experts=8",
                             "model.moe.router_topk=3",
                             "model.moe.ffn_hidden_size=40",
                             "model.moe.router_pre_softmax=true",
                             "model.moe.norm_topk_prob=false",
                             "model.moe.shared_expert_ffn_hidden_size=56",
                             "model.moe.shared_expert_gate=true",
                             "model.moe.load_balancing_type=seq_aux_loss",
                             "model.moe.aux_loss_coeff=0.05",
                             "optimizer.lr=3e-3",
                             "train.global_batch_size=8",
                             "train.micro_batch_size=1"};

// Groups of experts, biases, the loads of the step before, and experts that drop tokens.
inline const Changes kBalanced{"model.num_layers=4",
                               "model.moe.num_experts=8",
                               "model.moe.router_topk=2",
                               "model.moe.ffn_hidden_size=40",
                               "model.moe.router_score=sigmoid",
                               "model.moe.num_groups=4",
                               "model.moe.group_topk=2",
                               "model.moe.router_bias_update_rate=0.003",
                               "model.moe.load_balancing_type=global_aux_loss",
                               "model.moe.aux_loss_coeff=0.02",
                               "model.moe.expert_capacity_factor=1.25",
                               "model.moe.token_drop_policy=position",
                               "optimizer.lr=3e-3",
                               "train.global_batch_size=8",
                               "train.micro_batch_size=1"};

inline const Changes kAllGather{"model.moe.token_dispatcher=all_gather"},
    kFlex{"model.moe.token_dispatcher=flex"},
    kPadded{"model.moe.pad_expert_input_to_capacity=true"},
    kKeepRouters{"distributed.moe.ignore_router_for_ac=true"}, kFull{"recompute.granularity=full"};

inline Changes ep(int size) { return {fmt::format("distributed.ep_size={}", size)}; }
inline Changes tp(int size) { return {fmt::format("distributed.tp_size={}", size)}; }
inline const Changes kSequence{"distributed.sequence_parallel=true"},
    kWhole{"distributed.sequence_parallel=true", "distributed.expert_tp_size=1"};

inline Changes cp2(const char* how) {
  return {"distributed.cp_size=2", fmt::format("model.cp_comm_type={}", how)};
}

inline Changes pipelined(const char* schedule, int stages) {
  return {"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", stages),
          fmt::format("distributed.pipeline.pp_schedule={}", schedule)};
}

// What a router has chosen in a forward.
struct RouterChoice {
  std::vector<float> logits_TE;
  std::vector<int32_t> expert_TK;
};
// By layer; the forwards of a layer follow in the order of the rank's micro-batches.
using Choices = std::map<std::string, std::vector<RouterChoice>>;

// A launch of a rank's step: the scope in which it was enqueued ("0F1 > layers.0.attention", or
// "weights of 0B0"), and the name of the kernel or of the collective.
struct Launched {
  std::string scope, name;
  bool paired = false;  // a forward and a backward ran together
  std::string text() const { return scope + " " + name; }
};

// Returns what a rank enqueues in a step, in this order.
inline std::vector<Launched> launches_of(int ranks, const Changes& changes, int of_rank = 0) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Launched> launches;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (rank.rank() == of_rank)
      rank.device.set_launch_check([&](Stream&, const device::LaunchInfo& info) {
        launches.push_back({rank.device.scope(), info.name, rank.device.pairs()});
      });
    t.step();
    rank.device.set_launch_check({});
  });
  REQUIRE_FALSE(launches.empty());
  return launches;
}

// The exchanges of experts' rows that a rank enqueued while a forward and a backward ran together.
struct PairedExchanges {
  int64_t all = 0, without_rows = 0;  // without rows: none left this rank, or none arrived
};

// Records every forward of a router while it lives.
class WatchRouters {
 public:
  WatchRouters(Device& device, Choices& choices) : device_(device) {
    device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
      const std::string scope = device.scope();
      // A shared expert's gate, in the segment `merge`, is not a choice.
      if (info.name != std::string("route_tokens") || !scope.ends_with(".route")) return;
      choices[scope.substr(scope.rfind("layers."))].push_back(
          {Tensor::of(info.reads[0]).to_host<float>(stream),
           Tensor::of(info.writes[0]).to_host<int32_t>(stream)});
    });
  }
  ~WatchRouters() { device_.set_launch_check({}); }

 private:
  Device& device_;
};

struct Trained {
  int dp_rank = 0, dp = 1;
  std::vector<int64_t> tokens;  // those of a micro-batch that this rank routes; empty: all
  std::vector<double> losses, norms, balance;
  double evaluation = 0;
  Pieces gradients;              // in step 1, clipped, times 1 - beta
  std::vector<Choices> choices;  // by step; empty unless routers are watched
  PairedExchanges paired;        // counted unless routers are watched
};

inline void count_exchanges(Device& device, PairedExchanges& paired) {
  device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
    if (!device.pairs() || stream.id().kind != device::StreamKind::ep ||
        info.name != std::string("all_to_all"))
      return;
    ++paired.all;
    paired.without_rows += info.reads[0].bytes == 0 || info.writes[0].bytes == 0;
  });
}

inline Trained train_all(const Recipe& r, Device& device, comm::World world, int64_t steps,
                         bool watch, const std::shared_ptr<const data::Dataset>& data) {
  train::Trainer t = make_trainer(device, r, data, std::move(world));
  Trained result{.dp_rank = t.data_parallel().rank(), .dp = t.data_parallel().size()};
  const data::ValidationLoader validation(
      data, 5, {.micro_batch = 1, .dp_rank = result.dp_rank, .dp_size = result.dp});
  for (int64_t i = 0; i < steps; ++i) {
    std::unique_ptr<WatchRouters> watching;
    result.choices.emplace_back();
    if (watch)
      watching = std::make_unique<WatchRouters>(device, result.choices.back());
    else
      count_exchanges(device, result.paired);
    const train::StepStats s = t.step();
    watching.reset();
    device.set_launch_check({});
    result.losses.push_back(s.loss);
    result.norms.push_back(s.grad_norm);
    result.balance.push_back(s.experts.value().balance_loss);
    if (i == 0)
      result.gradients = pieces(t, [&](model::ParamUnit& unit) {
        return t.data_parallel().gather_unit(
            unit, t.optimizer().state()[0].values.own(t.compute(), unit));
      });
    if (i == steps / 2) t.evaluate(validation);  // must not change the training
  }
  result.evaluation = t.evaluate(validation);
  return result;
}

inline Trained one_rank(
    const Changes& model, int64_t steps, bool watch = true,
    const std::shared_ptr<const data::Dataset>& data = std::make_shared<CountingData>()) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train_all(tiny(model), *device, comm::World::alone(), steps, watch, data);
}

// Returns the numbers of the tokens of an unpacked sample that a rank routes. Of its 2 cp chunks a
// rank of cp has one from each end, and a rank of sequence parallelism has a part of these.
inline std::vector<int64_t> tokens_of(const Recipe& r, int rank) {
  const auto& d = r.distributed;
  const int64_t tp = rank % d.tp_size, cp = rank / d.tp_size % d.cp_size,
                chunk = kSeq / (2 * d.cp_size);
  std::vector<int64_t> tokens;
  for (const int64_t c : {cp, 2 * d.cp_size - 1 - cp})
    for (int64_t t = 0; t < chunk; ++t) tokens.push_back(c * chunk + t);
  if (!d.sequence_parallel) return tokens;
  const auto part = ptrdiff_t(tokens.size()) / d.tp_size;
  return {tokens.begin() + tp * part, tokens.begin() + (tp + 1) * part};
}

inline std::vector<Trained> all_ranks(
    int ranks, const Changes& changes, int64_t steps, bool watch = true,
    const std::shared_ptr<const data::Dataset>& data = std::make_shared<CountingData>()) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Trained> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(r, rank.device, rank.world, steps, watch, data);
    results[size_t(rank.rank())].tokens = tokens_of(r, rank.rank());
  });
  return results;
}

// Returns the choice of some tokens; of all, if none are named.
inline RouterChoice choice_of(const RouterChoice& all, const std::vector<int64_t>& tokens) {
  if (tokens.empty()) return all;
  RouterChoice some;
  const auto T = int64_t(all.logits_TE.size()) / kExperts, K = int64_t(all.expert_TK.size()) / T;
  const auto copy = [](const auto& from, int64_t t, int64_t width, auto& to) {
    to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
  };
  for (const int64_t t : tokens) {
    copy(all.logits_TE, t, kExperts, some.logits_TE);
    copy(all.expert_TK, t, K, some.expert_TK);
  }
  return some;
}

// If a choice differs from the single rank's, the scores must be nearly equal: compares the logits
// of experts that only one of them has chosen.
inline void expect_same_choice(const RouterChoice& one, const RouterChoice& other) {
  REQUIRE(one.expert_TK.size() == other.expert_TK.size());
  const size_t T = one.logits_TE.size() / kExperts, K = one.expert_TK.size() / T;
  for (size_t t = 0; t < T; ++t) {
    const auto chosen = [&](const RouterChoice& c) {
      const auto begin = c.expert_TK.begin() + ptrdiff_t(t * K);
      std::vector<int32_t> sorted(begin, begin + ptrdiff_t(K));
      std::sort(sorted.begin(), sorted.end());
      return sorted;
    };
    const auto a = chosen(one), b = chosen(other);
    std::vector<int32_t> differ;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(),
                                  std::back_inserter(differ));
    if (differ.empty()) continue;
    const auto logit = [&](int32_t e) { return one.logits_TE[t * kExperts + size_t(e)]; };
    const auto [low, high] = std::ranges::minmax(differ, {}, logit);
    INFO("token " << t << " flips at a margin of " << logit(high) - logit(low));
    CHECK(logit(high) - logit(low) < 1e-5);
  }
}

inline void expect_same_choices(const Trained& one, const std::vector<Trained>& ranks) {
  for (const Trained& r : ranks)
    for (size_t step = 0; step < r.choices.size(); ++step) {
      REQUIRE_FALSE(r.choices[step].empty());
      for (const auto& [layer, own] : r.choices[step]) {
        const auto& all = one.choices[step].at(layer);
        REQUIRE(all.size() == kMicroBatches);
        REQUIRE(own.size() == kMicroBatches / size_t(r.dp));
        for (size_t k = 0; k < own.size(); ++k) {
          CAPTURE(step, layer, k);
          expect_same_choice(choice_of(all[k * size_t(r.dp) + size_t(r.dp_rank)], r.tokens),
                             own[k]);
        }
      }
    }
}

// The parts of a parameter on all ranks make up the single rank's.
inline void expect_same_gradients(const Trained& one, const std::vector<Trained>& ranks) {
  for (const auto& [name, piece] : one.gradients) {
    std::vector<Trained> with_it;
    for (const Trained& r : ranks)
      if (r.gradients.count(name)) {
        with_it.emplace_back();
        with_it.back().gradients[name] = r.gradients.at(name);
      }
    INFO(name);
    REQUIRE_FALSE(with_it.empty());
    Trained want;
    want.gradients[name] = piece;
    check_tensors(want, with_it, &Trained::gradients, 1e-5);
  }
}

// The numerics contract: losses to 1e-5 relative in fp32, the first step's gradients, too.
inline void expect_as_alone(const Trained& one, const std::vector<Trained>& ranks,
                            bool watched = true) {
  for (const Trained& r : ranks) {
    check_close(one.losses, r.losses, 1e-5);
    check_close({one.norms[0]}, {r.norms[0]}, 1e-5);
    check_close(one.balance, r.balance, 1e-5);
    CHECK(r.evaluation == Approx(one.evaluation).epsilon(1e-5));
    CHECK((r.losses == ranks[0].losses));
    CHECK((r.norms == ranks[0].norms));
  }
  if (watched) expect_same_choices(one, ranks);
  expect_same_gradients(one, ranks);
}

// Two trainings of the same layout must agree in every bit.
inline void expect_same_bits(const std::vector<Trained>& a, const std::vector<Trained>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) {
    CAPTURE(rank);
    REQUIRE_FALSE(a[rank].losses.empty());
    CHECK((a[rank].losses == b[rank].losses));
    CHECK((a[rank].norms == b[rank].norms));
    CHECK((a[rank].balance == b[rank].balance));
    CHECK(a[rank].evaluation == b[rank].evaluation);
    REQUIRE_FALSE(a[rank].gradients.empty());
    CHECK(a[rank].gradients.size() == b[rank].gradients.size());
    for (const auto& [name, piece] : a[rank].gradients) {
      INFO(name);
      REQUIRE(b[rank].gradients.contains(name));
      CHECK((b[rank].gradients.at(name) == piece));
    }
  }
}

struct Layout {
  int ranks;
  Changes changes;
};

inline Changes join(std::initializer_list<Changes> parts) {
  Changes all;
  for (const Changes& p : parts) all = with(all, p);
  return all;
}

inline void expect_layouts(const std::vector<Layout>& layouts, bool watch = true,
                           const std::vector<Changes>& models = {kPlain, kShared},
                           int64_t steps = kSteps) {
  std::vector<Changes> rows;
  for (const Layout& l : layouts)
    rows.push_back(with(l.changes, {fmt::format("{} ranks", l.ranks)}));
  const std::vector<size_t> tried = rows_to_try(rows);
  for (size_t m = 0; m < models.size(); ++m) {
    const Trained one = one_rank(models[m], steps);
    CHECK(one.losses.back() < (steps == kSteps ? 0.97 : 1) * one.losses.front());
    for (size_t i = 0; i < tried.size(); ++i) {
      if (tried.size() >= models.size() && !in_turn(i, m, models.size())) continue;
      const Layout& l = layouts[tried[i]];
      CAPTURE(models[m], l.ranks, l.changes);
      expect_as_alone(one, all_ranks(l.ranks, with(models[m], l.changes), steps, watch), watch);
    }
  }
}

}  // namespace train_testing
