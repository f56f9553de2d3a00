// Compares context parallelism with a single rank: losses, gradients and weights. Runs under the
// stream sanitizer.
#include <algorithm>
#include <filesystem>

#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_context_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

struct ContextCase {
  const char* name;
  int cp;
  Changes changes;
};

Changes cp_of(int size, const std::string& type) {
  return {fmt::format("distributed.cp_size={}", size), "distributed.cp_comm_type=" + type};
}
const Changes kLevels{"distributed.hierarchical_context_parallel_sizes=[2,2]"};

std::vector<ContextCase> context_cases() {
  return {{"p2p", 2, cp_of(2, "p2p")},
          {"p2p", 4, cp_of(4, "p2p")},
          {"all_gather", 2, cp_of(2, "all_gather")},
          {"all_gather", 4, cp_of(4, "all_gather")},
          {"a2a", 2, cp_of(2, "a2a")},
          {"a2a", 4, cp_of(4, "a2a")},
          {"a2a+p2p", 4, with(cp_of(4, "a2a+p2p"), kLevels)}};
}

const std::vector<Changes> kStrategies{
    {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"},
    {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"},
    {"distributed.strategy=fsdp2"}};

// Enough kv heads for every case, and several sequences at once.
const Changes kBase{"train.global_batch_size=6", "train.micro_batch_size=3",
                    "model.num_query_groups=4"};

void check_ranks_agree(const std::vector<Result>& results) {
  for (const Result& other : results) {
    CHECK((other.losses == results[0].losses));
    CHECK((other.weights == results[0].weights));
    CHECK(other.evaluation == results[0].evaluation);
  }
}

void check_alike(const Result& one, const std::vector<Result>& results) {
  // The numerics contract in fp32: losses and the gradients of step 1 to 1e-5 relative.
  check_close(one.losses, results[0].losses, 1e-5);
  check_close(one.norms, results[0].norms, 1e-4);
  check_gradients(one, results[0], 1e-5);
  CHECK(results[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
  check_ranks_agree(results);
}

}  // namespace

TEST_CASE("every type of context parallelism trains as a single rank does") {
  const Changes qwen3{"model.architecture=qwen3"};
  const Changes gpt2{"model.architecture=gpt2", "model.hidden_dropout=0.1",
                     "model.embedding_dropout=0.1"};
  const Result of_qwen3 = train_alone(with(kBase, qwen3), compared_steps(20)),
               of_gpt2 = train_alone(with(kBase, gpt2), compared_steps(20));
  size_t turn = 0;
  for (const ContextCase& c : context_cases()) {
    const auto check = [&](const Result& one, const Changes& model, const Changes& strategy,
                           int dp) {
      CAPTURE(c.name, c.cp, dp, strategy[0], model[0]);
      const Changes changes = with(with(with(kBase, model), strategy), c.changes);
      check_alike(one, train_ranks(c.cp * dp, changes, compared_steps(20)));
    };
    for (const Changes& strategy : kStrategies) check(of_qwen3, qwen3, strategy, 1);
    // With data parallelism, and with dropout, each case uses the next strategy.
    check(of_qwen3, qwen3, kStrategies[turn % 3], 2);
    check(of_gpt2, gpt2, kStrategies[(turn + 1) % 3], 1);
    ++turn;
  }
}

TEST_CASE("rotary positions that turn a part of each head, scaled, are those of a single rank") {
  const Changes rope{"model.rotary_percent=0.5", "model.rope_scaling=yarn",
                     "model.rope_scaling.factor=4",
                     "model.rope_scaling.original_max_position_embeddings=8"};
  const Changes base = with(kBase, rope);
  const Result one = train_alone(base, 5);
  CHECK((one.losses != train_alone(kBase, 5).losses));
  for (const ContextCase& c : context_cases()) {
    CAPTURE(c.name, c.cp);
    check_alike(one, train_ranks(c.cp, with(base, c.changes), 5));
  }
  const Changes tensor{"distributed.tp_size=2", "distributed.cp_size=2"};
  check_close(one.losses, train_ranks(4, with(base, tensor), 5)[0].losses, 1e-5);
}

TEST_CASE("the length of whole samples chooses longrope's factors, not that of a rank's part") {
  const Changes longrope{"model.rope_scaling=longrope",
                         "model.rope_scaling.original_max_position_embeddings=16",
                         "model.rope_scaling.short_factor=[1, 1, 1, 1, 1, 1]",
                         "model.rope_scaling.long_factor=[1, 1.5, 2, 3, 4, 5]"};
  const Changes base = with(kBase, longrope);
  const Result one = train_alone(base, 5);
  const Changes equal{"model.rope_scaling.short_factor=[1, 1.5, 2, 3, 4, 5]"};
  CHECK((one.losses == train_alone(with(base, equal), 5).losses));
  check_alike(one, train_ranks(2, with(base, cp_of(2, "p2p")), 5));
  const Changes pipeline{"distributed.pp_size=2", "distributed.pipeline={}"};
  check_close(one.losses, train_ranks(2, with(base, pipeline), 5)[0].losses, 1e-5);
}

TEST_CASE("types by layer, recomputation, bf16, and averages in the collective") {
  const Changes layers = with({"model.num_layers=4", "distributed.cp_size=4",
                               "distributed.cp_comm_type=[p2p,all_gather,a2a,a2a+p2p]"},
                              kLevels);
  const Changes base = with(kBase, {"model.num_layers=4"});
  const Result one = train_alone(base, compared_steps(20));
  check_alike(one, train_ranks(4, with(base, layers), compared_steps(20)));
  const std::vector<double> first(one.losses.begin(), one.losses.begin() + 5);
  for (const char* recompute : {"full", "selective"}) {
    CAPTURE(recompute);
    const Changes again{fmt::format("recompute.granularity={}", recompute)};
    check_close(first, train_ranks(4, with(with(base, layers), again), 5)[0].losses, 1e-5);
  }
  const Changes average{"distributed.strategy=megatron_ddp", "ddp.average_in_collective=true"};
  check_close(first, train_ranks(4, with(with(base, layers), average), 5)[0].losses, 1e-5);
  const Changes bf16{"mixed_precision.name=bf16_mixed"};
  const Result half = train_alone(with(base, bf16), compared_steps(20));
  for (const auto& type : context_cases()) {
    CAPTURE(type.name, type.cp);
    // The numerics contract in bf16.
    check_close(
        half.losses,
        train_ranks(type.cp, with(with(base, bf16), type.changes), compared_steps(20))[0].losses,
        2e-2);
  }
}

TEST_CASE("overlap of context parallelism changes when data travels, never a bit of it") {
  for (const char* precision : {"fp32", "bf16_mixed"})
    for (const ContextCase& c : context_cases()) {
      if (c.cp == 2) continue;
      const Changes changes =
          with(with(kBase, {fmt::format("mixed_precision.name={}", precision)}), c.changes);
      const Result on = train_ranks(c.cp, changes, 3)[0],
                   off = train_ranks(c.cp, with(changes, {"comm_overlap.cp_overlap=false"}), 3)[0];
      CAPTURE(precision, c.name);
      CHECK((on.losses == off.losses));
      CHECK((on.weights == off.weights));
    }
}

TEST_CASE("context parallelism over every backend of communication") {
  const Result one = train_alone(kBase, 5);
  for (const ContextCase& c : context_cases()) {
    if (c.cp == 2) continue;
    const Changes changes = with(kBase, c.changes);
    const Result thread = train_ranks(c.cp, changes, 5)[0];
    CAPTURE(c.name);
    CHECK((train_ranks(c.cp, changes, 5, "shared_memory")[0].weights == thread.weights));
    check_close(one.losses, train_ranks(c.cp, changes, 5, "gloo")[0].losses, 1e-5);
  }
}

TEST_CASE("a sliding window reaches over the ranks that share a sequence") {
  const Changes window{"model.architecture=mistral", "model.window_size=7"};
  const Result one = train_alone(with(kBase, window), 5);
  for (const char* type : {"all_gather", "a2a"}) {
    CAPTURE(type);
    check_close(one.losses, train_ranks(2, with(with(kBase, window), cp_of(2, type)), 5)[0].losses,
                1e-5);
  }
}

TEST_CASE("windows and rotary positions of some layers train as on a single rank") {
  const Changes layers{"model.num_layers=4",
                       "model.window_size=7",
                       "model.window_attn_skip_freq=[1,0,1,0]",
                       "model.no_rope_freq=[0,0,1,1]",
                       "model.rotary_base_local=100",
                       "model.query_pre_attn_scalar=6",
                       "model.attn_logit_softcapping=2"};
  const Changes base = with(kBase, layers);
  const Result one = train_alone(base, 5);
  // Each setting affects the losses.
  for (size_t i = 1; i < layers.size(); ++i) {
    Changes without = with(kBase, layers);
    std::erase(without, layers[i]);
    if (i == 1) std::erase(without, layers[2]), std::erase(without, layers[4]);
    CAPTURE(layers[i]);
    CHECK((train_alone(without, 5).losses != one.losses));
  }
  const Changes tensor{"distributed.tp_size=2", "distributed.sequence_parallel=true"},
      pipeline{"distributed.pp_size=2", "distributed.pipeline={}"},
      recompute{"recompute=selective", "recompute.modules=[core_attn,norms]"};
  check_alike(one, train_ranks(2, with(base, cp_of(2, "all_gather")), 5));
  check_alike(one, train_ranks(2, with(base, cp_of(2, "a2a")), 5));
  // Rings are for layers without a window.
  check_alike(one, train_ranks(2, with(base, cp_of(2, "[all_gather,p2p,a2a,p2p]")), 5));
  check_alike(one, train_ranks(4,
                               with(with(base, cp_of(4, "[a2a,a2a+p2p,all_gather,p2p]")),
                                    with(kLevels, recompute)),
                               5));
  check_close(one.losses, train_ranks(2, with(with(base, tensor), recompute), 5)[0].losses, 1e-5);
  // The second stage begins with a layer of its own kind.
  check_close(one.losses, train_ranks(2, with(base, pipeline), 5)[0].losses, 1e-5);
  check_close(
      one.losses,
      train_ranks(4, with(with(base, pipeline), cp_of(2, "[a2a,p2p,all_gather,p2p]")), 5)[0].losses,
      1e-5);
  const Changes bf16{"mixed_precision.name=bf16_mixed"};
  const Result half = train_alone(with(base, bf16), 5);
  for (const Changes& layout : {tensor, cp_of(2, "[all_gather,p2p,a2a,p2p]")})
    check_close(half.losses, train_ranks(2, with(with(base, bf16), layout), 5)[0].losses, 2e-2);
}

namespace {

// Each packed document in a sample of its own.
class AloneCountingData : public CountingData {
 public:
  explicit AloneCountingData(int64_t packs) {
    data::Sample packed;
    for (int64_t i = 0; i < packs; ++i) {
      PackedCountingData().sample(i, packed);
      int64_t at = 0;
      for (const int64_t length : packed.documents) {
        data::Sample one;
        for (int64_t s = 0; s < kSeq; ++s) {
          const auto from = size_t(at + s);
          one.input.push_back(s < length ? packed.input[from] : 0);
          one.label.push_back(s < length ? packed.label[from] : -1);
          one.position.push_back(int32_t(s));
        }
        samples_.push_back(one);
        at += length;
      }
    }
  }
  int64_t size() const override { return int64_t(samples_.size()); }
  void sample(int64_t index, data::Sample& out) const override {
    out = samples_[size_t(index) % samples_.size()];
  }

 private:
  std::vector<data::Sample> samples_;
};

const Changes kPacked{"train.global_batch_size=2", "train.micro_batch_size=1",
                      "model.num_query_groups=4", "packed_sequence.packed_sequence_size=24"};

}  // namespace

TEST_CASE("packed documents train as one rank does, whatever they are padded to") {
  const auto data = std::make_shared<PackedCountingData>();
  const Changes gpt2{"model.architecture=gpt2", "model.hidden_dropout=0.1"};
  const Result one = train_alone(kPacked, compared_steps(20), data),
               of_gpt2 = train_alone(with(kPacked, gpt2), 5, data),
               half = train_alone(with(kPacked, {"mixed_precision.name=bf16_mixed"}),
                                  compared_steps(20), data);
  size_t turn = 0;
  for (const ContextCase& c : context_cases()) {
    CAPTURE(c.name, c.cp);
    const Changes changes = with(with(kPacked, c.changes), kStrategies[turn++ % 3]);
    check_alike(one, train_ranks(c.cp, changes, compared_steps(20), "thread", data));
    check_alike(of_gpt2, train_ranks(c.cp, with(changes, gpt2), 5, "thread", data));
    const Changes bf16{"mixed_precision.name=bf16_mixed"};
    check_close(
        half.losses,
        train_ranks(c.cp, with(changes, bf16), compared_steps(20), "thread", data)[0].losses, 2e-2);
  }
  check_alike(one, train_ranks(4, with(with(kPacked, kStrategies[0]), cp_of(2, "p2p")),
                               compared_steps(20), "thread", data));
}

TEST_CASE("packed documents do not see each other") {
  const Recipe packed = tiny(kPacked),
               plain = tiny({"model.num_query_groups=4", "train.micro_batch_size=1"});
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  const auto loss = [&](const Recipe& r, const std::shared_ptr<const data::Dataset>& data,
                        int64_t samples) {
    train::Trainer t = make_trainer(*device, r, data);
    return t.evaluate(data::ValidationLoader(data, samples, {.micro_batch = 1}));
  };
  // A step reports its number of attended pairs per token, here of two samples.
  int64_t pairs = 0;
  for (const int64_t i : {0, 1}) {
    data::Sample sample;
    PackedCountingData().sample(i, sample);
    for (const int64_t length : sample.documents) pairs += length * length;
  }
  train::Trainer t = make_trainer(*device, packed, std::make_shared<PackedCountingData>());
  CHECK(t.step().mean_document_length == pairs / (2 * kSeq));
  const auto alone = std::make_shared<AloneCountingData>(5);
  CHECK(loss(packed, std::make_shared<PackedCountingData>(), 5) ==
        Approx(loss(plain, alone, alone->size())).epsilon(1e-6));
}

TEST_CASE("a checkpoint resumes under any context parallelism, and under none") {
  const Result straight = train_alone(kBase, 6);
  const std::vector<double> tail(straight.losses.begin() + 3, straight.losses.end());
  const TemporaryFolder root;
  const auto run = [&](int ranks, const Changes& changes, const fs::path* from,
                       const fs::path& to) {
    const Recipe r = tiny(with(kBase, changes), ranks);
    std::vector<double> losses;
    comm::run_thread_ranks(ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>(), world);
      if (from) run::resume_run(t, *from);
      std::vector<double> own;
      for (int i = 0; i < 3; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (world.rank() == 0) losses = own;
    });
    return losses;
  };
  const Changes ring = with(cp_of(2, "p2p"), kStrategies[0]),
                exchange = with(cp_of(4, "a2a"), kStrategies[2]);
  run(4, ring, nullptr, root.path / "a");
  const fs::path saved = storage::find_latest(root.path / "a")->path;
  check_close(tail, run(4, exchange, &saved, {}), 1e-5);
  check_close(tail, run(1, {}, &saved, {}), 1e-5);
  const auto whole = train_ranks(4, with(kBase, ring), 6)[0].losses;
  CHECK((run(4, ring, &saved, {}) == std::vector<double>(whole.begin() + 3, whole.end())));
}

TEST_CASE("a number that is not finite is reported by the rank whose positions it came from") {
  // Ranks 0 and 1 share a sequence, as do 2 and 3; position 23 is rank 0's (the last chunk).
  class Poisoned : public CountingData {
   public:
    void sample(int64_t index, data::Sample& out) const override {
      CountingData::sample(index, out);
      for (int32_t& token : out.input) token %= kVocab - 1;
      if (index == 0) out.input.back() = kVocab - 1;
    }
  };
  for (const ContextCase& c : context_cases()) {
    if (c.cp != 2) continue;
    const Recipe r = tiny(with(with(kBase, c.changes),
                               {"distributed.strategy=megatron_ddp", "model.architecture=gpt2"}),
                          4);
    std::vector<std::string> messages(4);
    comm::run_thread_ranks(4, [&](comm::World& world) {
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      train::Trainer t = make_trainer(*device, r, std::make_shared<Poisoned>(), world);
      t.change_weights([&] {
        // Finite, but too large for the sum in its layer norm.
        model::Parameter* table = t.params().find("embedding.weight");
        std::vector<float> values(size_t(table->real_count()), 0.02f);
        std::fill(values.end() - 48, values.end(), 3e38f);
        t.params().set_master(t.compute(), *table, values);
      });
      try {
        t.step();
      } catch (const RunError& e) {
        messages[size_t(world.rank())] = "run: " + e.message();
      } catch (const CommError& e) {
        messages[size_t(world.rank())] = "comm: " + e.message();
      }
    });
    CAPTURE(c.name, messages[0], messages[1], messages[2], messages[3]);
    CHECK(messages[0].find("run: step 1") == 0);
    for (const size_t rank : {1, 2, 3}) CHECK(messages[rank].find("comm: step 1") == 0);
  }
}

// Queries that see no key of a block have a log-sum of -inf, and ranks without a real column of the
// vocabulary a maximum of -inf. The error must name the overflow after these.
TEST_CASE("infinities with a meaning are not reported as overflows") {
  struct Case {
    int ranks;
    Changes layout;
    std::vector<std::string> places;
  };
  const std::vector<std::string> qkv{"matmul_qkv_fwd", "layers.1.attention"};
  const std::vector<Case> cases{
      {2, with(kPacked, cp_of(2, "p2p")), qkv},
      {2, with(kPacked, cp_of(2, "all_gather")), qkv},
      {4, with(with(kPacked, cp_of(4, "a2a+p2p")), kLevels), qkv},
      {4, {"distributed.tp_size=4", "model.num_query_groups=4"}, {"", ""}}};
  for (const Case& c : cases) {
    const bool of_loss = c.places[0].empty();
    const Recipe r = tiny(with(c.layout, {"distributed.strategy=megatron_ddp"}), c.ranks);
    std::vector<std::string> messages(size_t(c.ranks));
    comm::run_thread_ranks(c.ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      std::shared_ptr<CountingData> data = std::make_shared<PackedCountingData>();
      if (of_loss) data = std::make_shared<CountingData>();
      train::Trainer t = make_trainer(*device, r, data, world);
      t.change_weights([&] {
        // Finite, but their products are not. In the case of the loss this holds only for its
        // gradient.
        model::Parameter* p =
            t.params().find(of_loss ? "final_norm.weight" : "layers.1.attention.qkv.weight");
        std::vector<float> values(size_t(p->full_shape().count()), of_loss ? 1e38f : 3e38f);
        t.params().set_master(t.compute(), *p, values);
      });
      try {
        t.step();
      } catch (const Error& e) {
        messages[size_t(world.rank())] = e.message();
      }
    });
    for (const std::string& message : messages) {
      CAPTURE(c.layout, message);
      CHECK(message.find("attention_block") == std::string::npos);
      CHECK(message.find("cross_entropy_sums") == std::string::npos);
    }
    for (const std::string& place : c.places)
      CHECK(std::ranges::any_of(messages, [&](const auto& m) { return m.find(place) != m.npos; }));
  }
}

}  // namespace parity_context_test
