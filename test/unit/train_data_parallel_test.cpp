// Data parallelism against the single rank: losses, gradients, weights; watched by the stream
// sanitizer.
#include <mutex>

#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "train/model_setup.h"
#include "train/trainer.h"
#include "train_testing.h"

using namespace mtrain;
using namespace train_testing;

namespace {

struct Result {
  std::vector<double> losses, norms;
  std::vector<float> weights;  // after the last step
  double evaluation = 0;
};

Result train(const Recipe& r, Device& device, World world, int64_t steps) {
  const auto data = std::make_shared<CountingData>();
  Trainer trainer(device, r, gpt_config(r.model, kVocab, kSeq), data, std::move(world));
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const StepStats s = trainer.step();
    result.losses.push_back(s.loss);
    result.norms.push_back(s.grad_norm);
  }
  for (Parameter* p : trainer.params().params()) {
    const auto w = p->master.to_host<float>(trainer.compute());
    result.weights.insert(result.weights.end(), w.begin(), w.end());
  }
  // 13 samples: a last batch that is not full.
  const ValidationLoader validation(data, 13,
                                    {.micro_batch = 2,
                                     .dp_rank = trainer.data_parallel().rank(),
                                     .dp_size = trainer.data_parallel().size()});
  result.evaluation = trainer.evaluate(validation);
  return result;
}

Result train_alone(const std::vector<std::string>& changes, int64_t steps) {
  const Recipe r = tiny(changes);
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train(r, *device, World::alone(), steps);
}

// Every rank's results.
std::vector<Result> train_ranks(int ranks, const std::vector<std::string>& changes, int64_t steps) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_thread_ranks(ranks, [&](World& world) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    results[size_t(world.rank())] = train(r, *device, world, steps);
  });
  return results;
}

using Changes = std::vector<std::string>;

Changes with(const Changes& a, const Changes& b) {
  Changes all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

TEST_CASE("ddp trains as a single rank does, under any number of ranks and micro-batches") {
  const Changes batch{"train.global_batch_size=24", "train.micro_batch_size=1",
                      "distributed.strategy=ddp"};
  for (const auto& model : std::vector<Changes>{
           {},
           {"model.share_embeddings_and_output_weights=true"},
           {"model.architecture=gpt2", "model.num_query_groups=4", "model.hidden_dropout=0.1"}}) {
    const Result one = train_alone(with(batch, model), 20);
    for (const int ranks : {2, 4, 8}) {
      const auto results = train_ranks(ranks, with(batch, model), 20);
      CAPTURE(ranks);
      // The numerics contract: 20 losses to 1e-5 relative in fp32.
      check_close(one.losses, results[0].losses, 1e-5);
      check_close(one.norms, results[0].norms, 1e-4);
      CHECK(results[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
      for (const auto& other : results) {
        CHECK((other.losses == results[0].losses));
        CHECK((other.weights == results[0].weights));
        CHECK(other.evaluation == results[0].evaluation);
      }
    }
  }
}

TEST_CASE("overlap and buckets change when gradients are reduced, never a bit of them") {
  const Changes batch{"train.global_batch_size=12", "train.micro_batch_size=2",
                      "distributed.strategy=ddp"};
  for (const char* precision : {"mixed_precision.name=fp32", "mixed_precision.name=bf16_mixed"}) {
    const Changes base = with(batch, {precision});
    const Result late = train_ranks(2, with(base, {"ddp.overlap_grad_reduce=false"}), 6)[0];
    for (const char* bucket :
         {"ddp.bucket_size=auto", "ddp.bucket_size=1", "ddp.bucket_size=9000"}) {
      const Result early =
          train_ranks(2, with(base, {"ddp.overlap_grad_reduce=true", bucket}), 6)[0];
      CAPTURE(precision, bucket);
      CHECK((early.losses == late.losses));
      CHECK((early.weights == late.weights));
    }
    // bf16: losses to 2e-2.
    check_close(train_alone(base, 6).losses, late.losses,
                std::string(precision).ends_with("fp32") ? 1e-5 : 2e-2);
  }
}

TEST_CASE("tokens that do not count are averaged over all ranks' tokens, not rank by rank") {
  // Masked labels fall unevenly: a mean of the ranks' means would differ in the third digit.
  const Changes changes{"train.global_batch_size=6", "train.micro_batch_size=1",
                        "distributed.strategy=ddp"};
  check_close(train_alone(changes, 3).losses, train_ranks(3, changes, 3)[0].losses, 1e-6);
}

TEST_CASE("the rank that computed what is not finite says where, the others leave it the word") {
  const bool overlap = GENERATE(false, true);
  const Recipe r = tiny({"train.micro_batch_size=1", "distributed.strategy=ddp",
                         fmt::format("ddp.overlap_grad_reduce={}", overlap)},
                        3);
  std::vector<std::string> messages(3);
  run_thread_ranks(3, [&](World& world) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    Trainer trainer(*device, r, gpt_config(r.model, kVocab, kSeq), std::make_shared<CountingData>(),
                    world);
    if (world.rank() == 1) {
      Parameter* p = trainer.params().find("layers.1.mlp.down.weight");
      std::vector<float> values(static_cast<size_t>(p->shape.count()), 0.0f);
      values[5] = std::numeric_limits<float>::quiet_NaN();
      trainer.params().set_master(trainer.compute(), *p, values);
    }
    try {
      trainer.step();
    } catch (const RunError& e) {
      messages[size_t(world.rank())] = "run: " + e.message();
    } catch (const CommError& e) {
      messages[size_t(world.rank())] = "comm: " + e.message();
    }
  });
  CAPTURE(messages[0], messages[1], messages[2]);
  CHECK(messages[1].find("run: step 1") == 0);
  CHECK(messages[1].find("layers.1.mlp.down.weight") != std::string::npos);
  for (const int rank : {0, 2}) CHECK(messages[size_t(rank)].find("comm: step 1") == 0);
}
