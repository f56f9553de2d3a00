// Tests steps whose successor's micro-batches are enqueued before their loss is read: they have the
// same results, and the host then does not let the device wait.
#include <cmath>

#include <catch2/catch.hpp>

#include "ops/elementwise.h"
#include "run/run_checkpoint.h"
#include "test/support/graph_testing.h"
#include "test/support/temporary_folder.h"
#include "train_experts_testing.h"
#include "train_fp8_testing.h"

namespace parity_run_ahead_test {

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kTrained = 8;

struct Run {
  Result result;
  std::vector<std::vector<double>> experts;  // the statistics of each step
  std::vector<double> scales;                // of fp16's loss
  int64_t replays = 0;
};

void add(Run& run, const train::StepStats& s) {
  run.result.losses.push_back(s.loss);
  run.result.norms.push_back(s.grad_norm);
  run.scales.push_back(s.loss_scale);
  if (s.experts)
    run.experts.push_back({s.experts->balance_loss, s.experts->z_loss, s.experts->load_max,
                           s.experts->load_variation, s.experts->dropped});
}

// The third and the last step are evaluated, as validation.every_steps would: no step runs ahead of
// an evaluation. After the fifth step an evaluation comes that the step did not know of.
Run train_steps(train::Trainer& trainer, const std::shared_ptr<const data::Dataset>& data,
                bool ahead, int64_t steps = kTrained) {
  const data::ValidationLoader validation(data, 5,
                                          {.micro_batch = 1,
                                           .dp_rank = trainer.data_parallel().rank(),
                                           .dp_size = trainer.data_parallel().size()});
  Run run;
  for (int64_t i = 1; i <= steps; ++i) {
    add(run, trainer.step(ahead && i != 3 && i != steps));
    if (i == 3 || i == 5) run.result.losses.push_back(trainer.evaluate(validation));
  }
  run.result.weights = full_weights(trainer);
  if (trainer.graphs()) run.replays = trainer.graphs()->replays();
  return run;
}

void check_same(const Run& a, const Run& b) {
  CHECK((a.result.losses == b.result.losses));
  CHECK((a.result.norms == b.result.norms));
  CHECK((a.result.weights == b.result.weights));
  CHECK((a.experts == b.experts));
  CHECK(a.scales == b.scales);
}

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
  bool graphs = false;
};

const Changes kBatch{"train.global_batch_size=8", "train.micro_batch_size=2"},
    kDdp{"distributed.strategy=ddp", "ddp.bucket_size=3000"},
    kZero1{"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000",
           "ddp.overlap_param_gather=true"};

std::vector<Layout> layouts() {
  return {{"one rank", 1, {"model.hidden_dropout=0.1"}},
          {"graphs", 1, {"model.hidden_dropout=0.1"}, true},
          {"experts", 1, kShared},
          {"experts whose routers have state", 1, kBalanced},
          {"fp16", 1, {"mixed_precision.name=fp16_mixed", "mixed_precision.loss_scale_window=2"}},
          {"8 bits, scales of earlier steps", 1, kDelayed},
          {"ddp", 2, kDdp},
          {"ddp and graphs", 2, kDdp, true},
          {"ddp after all micro-batches", 2, with(kDdp, {"ddp.overlap_grad_reduce=false"})},
          {"a sharded optimizer", 2, kZero1},
          {"sharded gradients",
           2,
           {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
          {"sharded parameters", 2, kFsdp2},
          {"sharded parameters, reduced at once", 2, kAtOnce},
          {"tp", 2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
          {"cp", 2, {"distributed.cp_size=2"}},
          {"pp", 2, {"distributed.pp_size=2", "distributed.pipeline={}"}},
          {"experts over ranks", 2, with(kPlain, with(kZero1, {"distributed.ep_size=2"}))},
          {"muon", 2, with(kZero1, {"optimizer.name=muon"})}};
}

std::vector<Run> train_ranks_ahead(const Layout& l, bool ahead) {
  Recipe r = tiny(with(l.changes, kBatch), l.ranks);
  if (l.graphs) r.train.device = recipe::DeviceChoice::cuda;
  const auto data = std::make_shared<CountingData>();
  std::vector<Run> runs(size_t(l.ranks));
  const auto one = [&](Device& device, comm::World world) {
    const int rank = world.rank();
    train::Trainer trainer = make_trainer(device, r, data, std::move(world));
    runs[size_t(rank)] = train_steps(trainer, data, ahead);
  };
  const auto device = [] {
    return Device::on(std::make_unique<RecordingBackend>(), {.stream_sanitizer = true});
  };
  if (l.ranks == 1)
    one(*device(), comm::World::alone());
  else
    run_ranks(l.ranks, "thread", [&](TestRank& rank) { one(rank.device, rank.world); },
              {.device = device});
  return runs;
}

}  // namespace

TEST_CASE("steps that begin before the result of the step before them have the same results") {
  for (const Layout& l : layouts()) {
    CAPTURE(l.name);
    const auto off = train_ranks_ahead(l, false), on = train_ranks_ahead(l, true);
    for (size_t rank = 0; rank < off.size(); ++rank) check_same(off[rank], on[rank]);
    CHECK((l.graphs ? on[0].replays > 0 : on[0].replays == 0));
  }
}

TEST_CASE("a checkpoint that is saved while the next step has begun continues with the same bits") {
  for (const Changes& strategy : {kDdp, kZero1, kFsdp2}) {
    CAPTURE(strategy);
    const Recipe r = tiny(with(strategy, kBatch), 2);
    const auto data = std::make_shared<CountingData>();
    const auto train = [&](bool ahead) {
      std::vector<Run> runs(2);
      const TemporaryFolder folder;
      run_ranks(2, "thread", [&](TestRank& rank) {
        std::string saved;
        {
          train::Trainer t = make_trainer(rank.device, r, data, rank.world);
          for (int i = 0; i < 3; ++i) t.step(ahead);
          saved = t.control().texts(run::save_run(t, folder.path).string())[0];
        }
        train::Trainer t = make_trainer(rank.device, r, data, rank.world);
        run::resume_run(t, saved);
        CHECK(t.steps_done() == 3);
        for (int i = 0; i < 3; ++i) add(runs[size_t(rank.rank())], t.step(ahead && i < 2));
        runs[size_t(rank.rank())].result.weights = full_weights(t);
      });
      return runs;
    };
    const auto off = train(false), on = train(true);
    for (size_t rank = 0; rank < 2; ++rank) check_same(off[rank], on[rank]);
  }
}

namespace {

// Returns the losses of steps with weights that overflow in the third one, and the error.
std::pair<std::vector<double>, std::string> overflowing_steps(bool ahead, bool checks) {
  const Recipe r = tiny(with(kBatch, checks ? Changes{} : Changes{"debug.check_nan=false"}));
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer trainer = make_trainer(*device, r, std::make_shared<CountingData>());
  int calls = 0;  // for the gradient of this weight, one per micro-batch
  trainer.set_gradient_hook([&](model::Parameter& p) {
    if (p.name != "layers.1.attention.qkv.weight" || ++calls != 9) return;
    ops::fill(trainer.compute(), p.grad, 1e30f);
    ops::scale(trainer.compute(), p.grad, 1e30f);
  });
  std::vector<double> values;
  try {
    for (int i = 0; i < 5; ++i) {
      const train::StepStats s = trainer.step(ahead);
      values.push_back(s.loss);
      values.push_back(std::isfinite(s.grad_norm) ? s.grad_norm : -1);
    }
  } catch (const RunError& e) {
    return {values, e.message()};
  }
  return {values, ""};
}

}  // namespace

TEST_CASE("a step that is not finite ends or continues as without run-ahead") {
  for (const bool checks : {true, false}) {
    CAPTURE(checks);
    const auto off = overflowing_steps(false, checks), on = overflowing_steps(true, checks);
    CHECK((off.first == on.first));
    CHECK(off.second == on.second);
    CHECK(off.second.empty() == !checks);
    if (checks) CHECK_THAT(on.second, Catch::Contains("step 3"));
    CHECK(off.first.size() == (checks ? 4 : 10));
  }
}

TEST_CASE("weights that change while a step has begun leave nothing of it in 8-bit scales") {
  const auto train = [](bool ahead) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer t =
        make_trainer(*device, tiny(with(kDelayed, kBatch)), std::make_shared<CountingData>());
    Run run;
    for (int i = 0; i < 2; ++i) add(run, t.step(ahead));
    t.change_weights([&] {
      for (const model::Parameter* p : t.params().params()) {
        auto values = p->master.to_host<float>(t.compute());
        values.resize(size_t(p->full_shape().count()));  // without the padding
        for (float& v : values) v *= 0.25f;
        t.params().set_master(t.compute(), *p, values);
      }
    });
    for (int i = 0; i < 3; ++i) add(run, t.step());
    run.result.weights = full_weights(t);
    return run;
  };
  check_same(train(false), train(true));
}

TEST_CASE("a rank that cannot begin the next step ends the others") {
  // Samples from the fourth batch on cannot be read on rank 1.
  struct Broken : CountingData {
    void sample(int64_t index, data::Sample& out) const override {
      if (index >= 3 * 8) throw RunError("the disk has failed");
      CountingData::sample(index, out);
    }
  };
  const Recipe r = tiny(with(kDdp, kBatch), 2);
  const auto train = [&](TestRank& rank) {
    std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>();
    if (rank.rank() == 1) data = std::make_shared<Broken>();
    train::Trainer t = make_trainer(rank.device, r, data, rank.world);
    for (int i = 0; i < 6; ++i) t.step(true);
  };
  CHECK_THROWS_WITH(run_ranks(2, "thread", train), Catch::Contains("the disk has failed"));
}

namespace {

// A CPU that counts how often the host waits, and how often the compute stream has no work left
// when such a wait ends.
class CountingBackend : public device::DeviceBackend {
 public:
  struct Counts {
    int64_t waits = 0, idle = 0;
    uint64_t enqueued = 0;  // on the compute stream
  };
  explicit CountingBackend(Counts& counts) : counts_(counts) {}
  std::string description() const override { return "a CPU whose host's waits are counted"; }
  bool is_cuda() const override { return false; }
  int threads() const override { return 1; }
  std::unique_ptr<device::StreamBackend> make_stream(device::StreamId id) override {
    return std::make_unique<CountingStream>(id, real_->make_stream(id), counts_);
  }
  void* allocate(int64_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory, int64_t bytes) override { real_->release(memory, bytes); }

 private:
  class CountingEvent : public device::EventBackend {
   public:
    CountingEvent(std::shared_ptr<device::EventBackend> real, Counts& counts)
        : real_(std::move(real)), counts_(counts), number_(counts.enqueued) {}
    bool ready() const override { return real_->ready(); }
    void wait() const override {
      ++counts_.waits;
      counts_.idle += counts_.enqueued == number_;
      real_->wait();
    }
    const std::shared_ptr<device::EventBackend>& real() const { return real_; }

   private:
    const std::shared_ptr<device::EventBackend> real_;
    Counts& counts_;
    const uint64_t number_;
  };

  class CountingStream : public device::StreamBackend {
   public:
    CountingStream(device::StreamId id, std::unique_ptr<device::StreamBackend> real, Counts& counts)
        : compute_(id.kind == device::StreamKind::compute),
          real_(std::move(real)),
          counts_(counts) {}
    void enqueue(device::LaunchTag tag, device::Work work) override {
      counts_.enqueued += compute_;
      real_->enqueue(std::move(tag), std::move(work));
    }
    std::shared_ptr<device::EventBackend> record() override {
      return std::make_shared<CountingEvent>(real_->record(), counts_);
    }
    void wait(device::LaunchTag tag, std::shared_ptr<device::EventBackend> event) override {
      real_->wait(std::move(tag), dynamic_cast<CountingEvent&>(*event).real());
    }
    void upload(device::LaunchTag tag, void* device, std::shared_ptr<const void> keep,
                const void* host, int64_t bytes) override {
      real_->upload(std::move(tag), device, std::move(keep), host, bytes);
    }
    void download(device::LaunchTag tag, void* host, const void* device, int64_t bytes) override {
      real_->download(std::move(tag), host, device, bytes);
    }
    void synchronize() override {
      ++counts_.waits;
      counts_.idle += compute_;
      real_->synchronize();
    }
    uint64_t completed() const override { return real_->completed(); }

   private:
    const bool compute_;
    const std::unique_ptr<device::StreamBackend> real_;
    Counts& counts_;
  };

  Counts& counts_;
  const std::unique_ptr<device::DeviceBackend> real_ = device::make_cpu_backend(1);
};

}  // namespace

TEST_CASE("while steps run ahead, the host never waits with nothing enqueued") {
  struct Case {
    Changes changes;
    int ranks;
    int64_t waits;  // of the host in a step: for the result, and over ranks for the batch's tokens
  };
  const std::vector<Case> cases{
      {{}, 1, 1}, {kShared, 1, 1}, {kDdp, 2, 2}, {kZero1, 2, 2}, {kFsdp2, 2, 2}};
  for (const Case& c : cases) {
    CAPTURE(c.changes);
    const Recipe r = tiny(with(c.changes, kBatch), c.ranks);
    const auto steps = [&](Device& device, comm::World world, const CountingBackend::Counts& now) {
      const bool first = world.rank() == 0;
      train::Trainer trainer =
          make_trainer(device, r, std::make_shared<CountingData>(), std::move(world));
      for (const bool ahead : {false, true}) {
        for (int i = 0; i < 2; ++i) trainer.step(ahead);
        const CountingBackend::Counts before = now;
        for (int i = 0; i < 4; ++i) trainer.step(ahead);
        if (!first) continue;
        CHECK(now.waits - before.waits == 4 * c.waits);
        CHECK((now.idle - before.idle > 0) == !ahead);
      }
    };
    std::vector<CountingBackend::Counts> counts(size_t(c.ranks));
    if (c.ranks == 1) {
      const auto device = Device::on(std::make_unique<CountingBackend>(counts[0]));
      steps(*device, comm::World::alone(), counts[0]);
      continue;
    }
    run_ranks(c.ranks, "thread", [&](TestRank& rank) {
      CountingBackend::Counts& own = counts[size_t(rank.rank())];
      const auto device = Device::on(std::make_unique<CountingBackend>(own));
      steps(*device, rank.world, own);
    });
  }
}

}  // namespace parity_run_ahead_test
