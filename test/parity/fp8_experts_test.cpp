// Tests models with experts whose GEMMs are in 8 bits, as a CPU emulates them: on one rank, and
// over ranks.
#include <map>
#include <set>
#include <sstream>

#include "run/run_checkpoint.h"
#include "test/support/temporary_folder.h"
#include "train_fp8_testing.h"

namespace parity_fp8_experts_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// The bound of losses, as of dense models: between 8 bits and bf16, and between layouts.
constexpr double kLosses = 1e-2;
// The bound of the gradients of step 1, as of dense models.
constexpr double kGradients = 0.15;

// A dense layer, then layers of 8 experts beside a shared one under a gate.
const Changes kExperts{"model.num_layers=3",
                       "model.moe.num_experts=8",
                       "model.moe.router_topk=2",
                       "model.moe.ffn_hidden_size=48",
                       "model.moe.shared_expert_ffn_hidden_size=32",
                       "model.moe.shared_expert_gate=true",
                       "model.moe.first_dense_layers=1",
                       "model.moe.load_balancing_type=aux_loss",
                       "model.moe.aux_loss_coeff=0.02",
                       "model.moe.z_loss_coeff=0.001",
                       "train.global_batch_size=8",
                       "train.micro_batch_size=2"};
const Changes kPlain = with(kBf16, kExperts), kCurrent = with(kTensorwise, kExperts),
              kHistory = with(kDelayed, kExperts);

const Changes kMegatron{"distributed.strategy=megatron_ddp"}, kFsdp2{"distributed.strategy=fsdp2"};
Changes over(int ep, const Changes& strategy) {
  return with(strategy, {fmt::format("distributed.ep_size={}", ep)});
}

// The name, with the range of experts if it has experts -> scale and history.
std::map<std::string, std::string> by_name(const std::string& state) {
  std::map<std::string, std::string> lines;
  std::istringstream text(state);
  for (std::string line; std::getline(text, line);) {
    const size_t name = line.find(' '), colon = line.find(':');
    const size_t end = colon == std::string::npos ? name : line.find(' ', colon);
    lines[line.substr(0, end)] = line.substr(end);
  }
  return lines;
}

std::vector<std::map<std::string, std::string>> scales_of_ranks(const Changes& changes, int ranks) {
  const Recipe r = tiny(changes, ranks);
  std::vector<std::map<std::string, std::string>> states(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    states[size_t(rank.rank())] = by_name(t.quantizer()->state(t.compute()));
  });
  return states;
}

// Returns the scale and the maxima of a line.
std::vector<double> numbers(const std::string& line) {
  std::vector<double> all;
  std::istringstream text(line);
  for (std::string word; text >> word;) all.push_back(std::strtod(word.c_str(), nullptr));
  return all;
}

// Returns the single rank's gradients of the parameters that a rank has. Of the experts it has the
// part with the number `part`.
Result own_part(const Result& one, const Result& rank, size_t part) {
  Result own;
  for (const auto& [name, gradient] : rank.gradients) {
    const std::vector<float>& whole = one.gradients.at(name);
    const auto begin =
        whole.begin() + int64_t(whole.size() == gradient.size() ? 0 : part * gradient.size());
    own.gradients[name] = {begin, begin + int64_t(gradient.size())};
  }
  return own;
}

}  // namespace

TEST_CASE("50 steps of experts in 8 bits follow bf16") {
  const Result reference = train_alone(kPlain, 50);
  CHECK(reference.losses.back() < 0.5 * reference.losses.front());
  for (const Changes& changes :
       {kCurrent, kHistory, with(kCurrent, {"mixed_precision.fp8=e4m3"})}) {
    CAPTURE(changes);
    const Result result = train_alone(changes, 50);
    check_close(reference.losses, result.losses, kLosses);
    check_gradients(reference, result, kGradients);
    CHECK(result.losses[0] != reference.losses[0]);
  }
}

TEST_CASE("all GEMMs of experts read 8 bits, and those of the router do not") {
  for (const Changes& changes : {kCurrent, kHistory}) {
    Run run(changes);
    std::map<std::string, std::set<DType>> types;  // the operands' types, by GEMM
    run.device->set_launch_check([&](Stream&, const device::LaunchInfo& info) {
      const std::string name = info.name;
      if (name.starts_with("experts_") || name.starts_with("matmul_"))
        for (const size_t operand : {size_t(0), size_t(1)})
          types[name].insert(info.reads.at(operand).dtype);
    });
    run.losses(2);
    run.device->set_launch_check({});
    const std::set<DType> e4m3{DType::f8e4m3}, both{DType::f8e4m3, DType::f8e5m2};
    for (const std::string linear : {"experts_up", "experts_down"}) {
      CHECK(types.at(linear + "_fwd") == e4m3);
      CHECK(types.at(linear + "_dgrad") == both);
      CHECK(types.at(linear + "_wgrad") == both);
    }
    for (const char* shared : {"matmul_fc1_dgrad", "matmul_fc2_wgrad", "matmul_qkv_dgrad"})
      CHECK(types.at(shared) == both);
    for (const char* name : {"matmul_router_fwd", "matmul_router_dgrad", "matmul_router_wgrad",
                             "matmul_shared_gate_fwd"})
      for (const DType type : types.at(name)) CHECK_FALSE(is_float8(type));
  }
}

TEST_CASE("experts in 8 bits that are computed again, or evaluated, leave no trace") {
  for (const Changes& base : {kCurrent, kHistory}) {
    const auto reference = Run(base).losses(4);
    for (const char* modules : {"[moe]", "[moe_act]", "[moe,moe_act,shared_experts,mlp]"}) {
      CAPTURE(modules);
      CHECK(Run(with(base, {"recompute.granularity=selective",
                            std::string("recompute.modules=") + modules}))
                .losses(4) == reference);
    }
    CHECK(Run(with(base, {"recompute.cheap=false"})).losses(4) == reference);
    CHECK(Run(with(base, {"recompute.granularity=full", "recompute.num_layers=2"})).losses(4) ==
          reference);
    CHECK(train_alone(base, 4).losses == reference);  // evaluates in between
  }
}

TEST_CASE("layouts of experts in 8 bits give the losses of one rank") {
  struct Case {
    int ranks;
    Changes layout;
  };
  const Changes again{"recompute.granularity=selective", "recompute.modules=[moe,moe_act]"};
  const std::vector<Case> cases{
      {2, {"distributed.strategy=ddp"}},
      {2, kFsdp2},
      {2, over(2, kMegatron)},
      {2, over(2, kFsdp2)},
      {2, over(2, with(kMegatron, {"model.moe.token_dispatcher=all_gather"}))},
      {2, over(2, with(kFsdp2, again))},
      {2, over(2, with(kFsdp2, {"recompute.granularity=full", "recompute.num_layers=1"}))},
      {2, over(2, with(kFsdp2, {"distributed.cp_size=2"}))},
      {4, over(2, kMegatron)},
      {4, over(2, with(kFsdp2, {"distributed.defer_fsdp_grad_sync=false"}))},
      {4, over(2, with(kMegatron, {"distributed.pp_size=2", "distributed.pipeline={}"}))},
      {4, over(2, with(kMegatron, {"distributed.pp_size=2", "distributed.vpp_size=1",
                                   "distributed.pipeline.pp_schedule=zero_bubble"}))}};
  for (const Changes& recipe : {kCurrent, kHistory}) {
    const Result one = train_alone(recipe, compared_steps(10));
    for (const Case& c : cases) {
      CAPTURE(c.layout);
      const auto ranks = train_ranks(c.ranks, with(recipe, c.layout), compared_steps(10));
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const Result& r = ranks[rank];
        check_close(one.losses, r.losses, kLosses);
        CHECK(r.losses == ranks[0].losses);
        // The ranks of ep are neighbours, and there are two of them.
        check_gradients(own_part(one, r, rank % 2), r, kGradients);
      }
    }
  }
}

TEST_CASE("experts in 8 bits under tensor parallelism give the losses of one rank") {
  const Changes wider{"model.moe.ffn_hidden_size=64"},
      tp = with(kMegatron, {"distributed.tp_size=2"}),
      sp = with(tp, {"distributed.sequence_parallel=true"}),
      undivided = with(sp, {"distributed.expert_tp_size=1", "distributed.ep_size=2"}),
      shared = with(sp, {"distributed.expert_tp_size=1"}),
      sharded =
          with(over(2, kFsdp2), {"distributed.tp_size=2", "distributed.sequence_parallel=true",
                                 "mixed_precision.fp8_param_gather=true"});
  struct Case {
    int ranks;
    Changes layout;
  };
  const std::vector<Case> cases{
      {2, tp},
      {2, sp},
      {2, undivided},
      {4, undivided},
      {2, shared},
      {4, with(shared, kFsdp2)},
      {4, with(sp, {"distributed.ep_size=2"})},
      {4, sharded},
      {4, with(sharded, {"distributed.expert_tp_size=1"})},
      {4, with(undivided, {"distributed.pp_size=2", "distributed.pipeline={}"})}};
  for (const Changes& recipe : {kCurrent, kHistory}) {
    const Result one = train_alone(with(recipe, wider), compared_steps(10));
    for (const Case& c : cases) {
      CAPTURE(recipe, c.layout);
      for (const Result& r :
           train_ranks(c.ranks, with(with(recipe, wider), c.layout), compared_steps(10)))
        check_close(one.losses, r.losses, kLosses);
    }
  }
}

TEST_CASE("undivided experts on ranks of tensor parallelism have delayed scales of their own") {
  const auto ranks = scales_of_ranks(
      with(kHistory, with(kMegatron, {"distributed.tp_size=2", "distributed.sequence_parallel=true",
                                      "distributed.expert_tp_size=1", "distributed.ep_size=2",
                                      "model.moe.ffn_hidden_size=64"})),
      2);
  const std::string up = "layers.1.mlp.experts.gate_up.weight ";
  CHECK(ranks[0].contains(up + "0:4"));
  CHECK(ranks[1].contains(up + "4:8"));
  CHECK(ranks[0].at(up + "0:4") != ranks[1].at(up + "4:8"));
  for (const auto& [name, line] : ranks[0])
    if (!name.ends_with(":4")) CHECK(line == ranks[1].at(name));
}

TEST_CASE("undivided experts that tp ranks share have one rank's delayed scales") {
  const Changes wider = with(kHistory, {"model.moe.ffn_hidden_size=64"});
  const auto one = scales_of_ranks(wider, 1)[0];
  const auto ranks = scales_of_ranks(
      with(wider, with(kMegatron, {"distributed.tp_size=2", "distributed.sequence_parallel=true",
                                   "distributed.expert_tp_size=1"})),
      2);
  const std::string experts = "layers.1.mlp.experts.gate_up.";
  REQUIRE(one.contains(experts + "weight 0:8"));
  for (const auto& rank : ranks) {
    REQUIRE(rank.size() == one.size());
    for (const auto& [name, line] : rank) {
      CAPTURE(name, line, one.at(name));
      CHECK(line == ranks[0].at(name));
      // Sums over ranks round activations and gradients differently, and the maximum is of single
      // elements. Step 1 has the same weights.
      const std::vector<double> own = numbers(line), want = numbers(one.at(name));
      REQUIRE(own.size() == want.size());
      for (size_t i = 0; i < own.size(); ++i)
        CHECK(std::abs(own[i] - want[i]) <= kGradients * std::abs(want[i]));
      if (name.find("experts") != name.npos && name.find(".weight") != name.npos)
        CHECK(line == one.at(name));
    }
  }
}

TEST_CASE("delayed scales are of a rank's experts: the same where the experts are, one rank's") {
  const auto one = scales_of_ranks(kHistory, 1)[0];
  // Three roles for each of: two linears of attention in each layer, two of the dense layer's MLP,
  // and in each of two layers those of the shared expert and of the experts.
  REQUIRE(one.size() == 3 * (3 * 2 + 2 + 2 * (2 + 2)));
  const auto whole = scales_of_ranks(with(kHistory, {"distributed.strategy=ddp"}), 2);
  CHECK(whole[0] == whole[1]);
  const auto spread = scales_of_ranks(with(kHistory, over(2, kMegatron)), 4);
  const std::string up = "layers.1.mlp.experts.gate_up.weight ";
  REQUIRE(one.contains(up + "0:8"));
  CHECK(whole[0].at(up + "0:8") == one.at(up + "0:8"));  // step 1: the same weights
  for (size_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(spread[rank] == spread[rank % 2]);
    CHECK(spread[rank].contains(up + (rank % 2 ? "4:8" : "0:4")));
    for (const auto& [name, line] : spread[rank])
      if (!name.ends_with(":8") && !name.ends_with(":4")) CHECK(line == spread[0].at(name));
  }
  // The larger of the two maxima is that of all experts. The line has the scale and four maxima in
  // hexadecimal.
  const auto last = [](const std::string& line) {
    return std::strtod(line.substr(line.rfind(' ')).c_str(), nullptr);
  };
  CHECK(std::max(last(spread[0].at(up + "0:4")), last(spread[1].at(up + "4:8"))) ==
        last(one.at(up + "0:8")));
}

TEST_CASE("experts in 8 bits resume with the same bits, and under other layouts") {
  const TemporaryFolder root;
  const auto layout = [](int ep) { return with(kHistory, over(ep, kMegatron)); };
  std::filesystem::path folder;
  const auto two_steps = [&](const Changes& changes, bool saves) {
    const Recipe r = tiny(changes, 2);
    std::vector<double> losses;
    run_ranks(2, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      if (saves) {
        for (int i = 0; i < 3; ++i) t.step();
        const auto saved = run::save_run(t, root.path);
        if (rank.rank() == 0) folder = saved;
      } else {
        run::resume_run(t, folder);
      }
      for (int i = 0; i < 2; ++i) {
        const double loss = t.step().loss;
        if (rank.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  const auto straight = two_steps(layout(2), true);
  CHECK(two_steps(layout(2), false) == straight);
  check_close(straight, two_steps(layout(1), false), kLosses);
  Run one(kHistory);
  run::resume_run(one.trainer, folder);
  check_close(straight, one.losses(2), kLosses);
  // From one rank to two.
  folder = run::save_run(one.trainer, root.path / "one");
  check_close(one.losses(2), two_steps(layout(2), false), kLosses);
}

}  // namespace parity_fp8_experts_test
