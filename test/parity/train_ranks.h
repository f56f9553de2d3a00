// Runs the tiny training over ranks, and collects its results.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"

namespace train_testing {

struct Result {
  std::vector<double> losses, norms;
  std::vector<float> weights;  // after the last step
  double evaluation = 0;
  std::map<std::string, std::vector<float>> gradients;  // gradients of step 1, clipped
};

inline std::vector<float> full_weights(train::Trainer& t) {
  std::vector<float> weights;
  for (model::ParamUnit* unit : t.params().units()) {
    const Tensor master = full_master(t.data_parallel(), *unit);
    for (const model::Parameter* p : unit->params) {
      const auto w = master.flat(p->begin, p->shape).to_host_float(t.compute());
      weights.insert(weights.end(), w.begin(), w.end());
    }
  }
  return weights;
}

// Returns the first moments, which after one step are the gradients times 1 - beta.
inline std::map<std::string, std::vector<float>> first_gradients(train::Trainer& t) {
  std::map<std::string, std::vector<float>> gradients;
  for (model::ParamUnit* unit : t.params().units()) {
    const Tensor m = t.data_parallel().gather_unit(
        *unit, t.optimizer().state()[0].values.own(t.compute(), *unit));
    for (const model::Parameter* p : unit->params)
      gradients[p->name] = m.flat(p->begin, {p->real_count()}).to_host_float(t.compute());
  }
  return gradients;
}

inline Result train_all(
    const Recipe& r, Device& device, comm::World world, int64_t steps,
    std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>()) {
  train::Trainer trainer = make_trainer(device, r, data, std::move(world));
  // 13 samples leave the last batch partly filled.
  const data::ValidationLoader validation(
      data, 13,
      {.micro_batch = std::min<int64_t>(2, r.train.micro_batch_size),
       .dp_rank = trainer.data_parallel().rank(),
       .dp_size = trainer.data_parallel().size()});
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats s = trainer.step();
    result.losses.push_back(s.loss);
    result.norms.push_back(s.grad_norm);
    if (i == 0) result.gradients = first_gradients(trainer);
    if (i == steps / 2) trainer.evaluate(validation);  // must not change the training
  }
  result.evaluation = trainer.evaluate(validation);
  result.weights = full_weights(trainer);
  return result;
}

inline Result train_alone(
    const std::vector<std::string>& changes, int64_t steps,
    std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>()) {
  const Recipe r = tiny(changes);
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train_all(r, *device, comm::World::alone(), steps, std::move(data));
}

// Returns the result of every rank.
inline std::vector<Result> train_ranks(
    int ranks, const std::vector<std::string>& changes, int64_t steps,
    const std::string& backend = "thread",
    std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>()) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_ranks(ranks, backend, [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(r, rank.device, rank.world, steps, data);
  });
  return results;
}

// Returns the statistics of the routers in the first step, for every rank.
inline std::vector<train::ExpertStats> first_expert_stats(int ranks, const Changes& changes) {
  const Recipe r = tiny(changes, ranks);
  std::vector<train::ExpertStats> all(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer trainer =
        make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    all[size_t(rank.rank())] = trainer.step().experts.value();
  });
  return all;
}

// The bound is relative to the L2 norm of each parameter's gradient.
inline void check_gradients(const Result& one, const Result& other, double bound) {
  REQUIRE(one.gradients.size() == other.gradients.size());
  for (const auto& [name, want] : one.gradients) {
    const auto& got = other.gradients.at(name);
    REQUIRE(got.size() == want.size());
    double difference = 0, length = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(double(got[i]) - want[i], 2);
      length += std::pow(double(want[i]), 2);
    }
    INFO(name);
    CHECK(std::sqrt(difference) <= bound * std::sqrt(length));
  }
}

}  // namespace train_testing
