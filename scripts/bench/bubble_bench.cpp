// Measures the bubble of every pipeline schedule beside the one that the simulator predicts. The
// ranks are threads that train a tiny model; before the first launch of each action their compute
// stream sleeps, one unit for F, I and W and two for B. All stages therefore cost the same, and no
// rank waits for a core.
//   bench_bubble [ms per unit, default 100] [ranks, default 4] [micro-batches, default 8]
//   [schedule, default all] [link: ms that a message travels, default 0]
// Each schedule runs with overlap of messages and, where it may, without. Half of a message's time
// on the link is latency, half is bandwidth. The last column is the measured step relative to the
// simulated one; the lists that are simulated are those that ran.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/core.h>

#include "comm/thread/thread_transport.h"
#include "data/dataset/dataset.h"
#include "interchange/model_source.h"
#include "plan/executed_schedule.h"
#include "plan/layout.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"
#include "schedule/steady_state.h"
#include "train/build_trainer.h"

using namespace mtrain;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int64_t kVocab = 64, kSeq = 16, kHidden = 16;
constexpr double kMessageBits = kSeq * kHidden * 4 * 8;

class Counting : public data::Dataset {
 public:
  int64_t seq_length() const override { return kSeq; }
  int64_t size() const override { return 1 << 20; }
  void sample(int64_t index, data::Sample& out) const override {
    out = {};
    for (int64_t s = 0; s < kSeq; ++s) {
      out.input.push_back(int32_t((index + s) % kVocab));
      out.label.push_back(int32_t((index + s + 1) % kVocab));
      out.position.push_back(int32_t(s));
    }
  }
};

// Records when the actions of a rank slept, since clear().
class Actions {
 public:
  explicit Actions(double unit) : unit_(unit) {}
  // Returns 0 for an action that is not a computation: "3F1" is one, "0SEND_F1" is not.
  double seconds(const std::string& action) const {
    const size_t kind = action.find_first_not_of("0123456789");
    if (kind == 0 || kind == std::string::npos || kind + 1 >= action.size()) return 0;
    if (action.find_first_not_of("0123456789", kind + 1) != std::string::npos) return 0;
    return action[kind] == 'B' ? 2 * unit_ : std::string("FIW").find(action[kind]) < 3 ? unit_ : 0;
  }
  void before_launch(const std::string* scope) {
    if (!scope) return;
    const std::string action = scope->substr(0, scope->find(" > "));
    const double sleep = seconds(action);
    const std::lock_guard lock(mutex_);
    if (sleep == 0 || !done_.insert(action).second) return;
    const auto begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(sleep));
    const auto end = Clock::now();
    first_ = busy_ == 0 ? begin : first_;
    last_ = end;
    busy_ += std::chrono::duration<double>(end - begin).count();
  }
  void clear() {
    done_.clear();
    busy_ = 0;
  }
  Clock::time_point first() const { return first_; }
  Clock::time_point last() const { return last_; }
  double busy() const { return busy_; }

 private:
  const double unit_;
  std::mutex mutex_;
  std::set<std::string> done_;
  Clock::time_point first_, last_;
  double busy_ = 0;
};

class SleepingStream : public device::StreamBackend {
 public:
  SleepingStream(std::unique_ptr<device::StreamBackend> real, Actions& actions)
      : real_(std::move(real)), actions_(actions) {}
  void enqueue(device::LaunchTag tag, device::Work work) override {
    auto sleeping = [this, scope = tag.scope,
                     work = std::move(work)](const device::LaunchContext& context) {
      actions_.before_launch(scope.get());
      work(context);
    };
    real_->enqueue(std::move(tag), std::move(sleeping));
  }
  std::shared_ptr<device::EventBackend> record() override { return real_->record(); }
  void wait(device::LaunchTag tag, std::shared_ptr<device::EventBackend> event) override {
    real_->wait(std::move(tag), std::move(event));
  }
  void upload(device::LaunchTag tag, void* device, std::shared_ptr<const void> keep,
              const void* host, int64_t bytes) override {
    real_->upload(std::move(tag), device, std::move(keep), host, bytes);
  }
  void download(device::LaunchTag tag, void* host, const void* device, int64_t bytes) override {
    real_->download(std::move(tag), host, device, bytes);
  }
  void synchronize() override { real_->synchronize(); }
  uint64_t completed() const override { return real_->completed(); }

 private:
  std::unique_ptr<device::StreamBackend> real_;
  Actions& actions_;
};

class SleepingBackend : public device::DeviceBackend {
 public:
  explicit SleepingBackend(Actions& actions) : actions_(actions) {}
  std::string description() const override { return "a CPU whose computations sleep"; }
  bool is_cuda() const override { return false; }
  int threads() const override { return 1; }
  std::unique_ptr<device::StreamBackend> make_stream(device::StreamId id) override {
    auto stream = real_->make_stream(id);
    if (id.kind != device::StreamKind::compute) return stream;
    return std::make_unique<SleepingStream>(std::move(stream), actions_);
  }
  void* allocate(int64_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory, int64_t bytes) override { real_->release(memory, bytes); }

 private:
  std::unique_ptr<device::DeviceBackend> real_ = device::make_cpu_backend(1);
  Actions& actions_;
};

struct Measured {
  double step = 0, bubble = 0;
};

// The median of some steps.
Measured measure(const Recipe& r, int ranks, double unit, double link) {
  comm::Link emulated{.streams = {"pp_send", "pp_recv"}};  // of messages between stages alone
  if (link > 0)
    emulated.latency_us = link / 2 * 1e6, emulated.gbps = kMessageBits / (link / 2) / 1e9;
  constexpr int kSteps = 3;
  std::vector<std::unique_ptr<Actions>> actions;
  for (int rank = 0; rank < ranks; ++rank) actions.push_back(std::make_unique<Actions>(unit));
  std::vector<Measured> steps;
  comm::run_thread_ranks(
      ranks,
      [&](comm::World& world) {
        Actions& own = *actions[size_t(world.rank())];
        const auto device = Device::on(std::make_unique<SleepingBackend>(own));
        train::Trainer trainer = train::build_trainer(
            *device, plan::make_plan(r, world.size(), kVocab), std::make_shared<Counting>(), world);
        for (int i = 0; i <= kSteps; ++i) {  // the first one makes connections and memory
          own.clear();
          trainer.control().any(false);
          trainer.step();
          device->synchronize();
          trainer.control().any(false);  // waits until all ranks have ended the step
          if (world.rank() == 0 && i > 0) {
            auto first = Clock::time_point::max(), last = Clock::time_point::min();
            double busy = 0;
            for (const auto& a : actions) {
              first = std::min(first, a->first());
              last = std::max(last, a->last());
              busy += a->busy();
            }
            const double step = std::chrono::duration<double>(last - first).count();
            steps.push_back({step, 1 - busy / (ranks * step)});
          }
          trainer.control().any(false);  // waits until rank 0 has read the actions
        }
      },
      {.link = emulated});
  std::ranges::sort(steps, {}, &Measured::step);
  return steps[steps.size() / 2];
}

Recipe recipe_of(const std::string& schedule, int stages, int ranks, int micro_batches,
                 bool overlap) {
  Diagnostics diagnostics;
  std::vector<std::string> overrides{fmt::format("model.num_layers={}", ranks * stages),
                                     fmt::format("model.hidden_size={}", kHidden),
                                     "model.num_attention_heads=2",
                                     "model.num_query_groups=2",
                                     "model.ffn_hidden_size=32",
                                     fmt::format("dataset.seq_length={}", kSeq),
                                     "dataset.train=unused",
                                     "train.run_dir=unused",
                                     "train.micro_batch_size=1",
                                     fmt::format("train.global_batch_size={}", micro_batches),
                                     "mixed_precision.name=fp32",
                                     "distributed.strategy=megatron_ddp",
                                     fmt::format("distributed.pp_size={}", ranks),
                                     fmt::format("distributed.vpp_size={}", stages),
                                     "distributed.pipeline.pp_schedule=" + schedule};
  if (stages > 1) overrides.push_back(fmt::format("comm_overlap.overlap_p2p_comm={}", overlap));
  Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "bench", overrides,
                                    diagnostics, ranks);
  diagnostics.throw_if_errors();
  return r;
}

}  // namespace

int main(int argc, char** argv) {
  const double unit = (argc > 1 ? std::atof(argv[1]) : 100) * 1e-3;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 4;
  const int micro_batches = argc > 3 ? std::atoi(argv[3]) : 8;
  const std::string only = argc > 4 ? argv[4] : "all";
  const double link = argc > 5 ? std::atof(argv[5]) * 1e-3 : 0;
  fmt::print(
      "{} ranks, {} micro-batches, {:g} ms for each of F, I and W, {:g} ms for a message\n"
      "{:<32}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
      ranks, micro_batches, unit * 1e3, link * 1e3, "", "step, units", "simulated", "bubble, %",
      "simulated", "step off by");
  struct Kind {
    const char* name;
    int stages;
  };
  for (const Kind& kind : {Kind{"gpipe", 1},
                           {"1f1b", 1},
                           {"zero_bubble", 1},
                           {"zero_bubble", 2},
                           {"looped_bfs", 2},
                           {"interleaved_1f1b", 2},
                           {"dfs", 2},
                           {"v_schedule", 2},
                           {"dualpipev", 2}})
    for (const bool overlap : {true, false}) {
      if (only != "all" && only != kind.name) continue;
      if (overlap && kind.stages == 1) continue;               // one stage per rank has no overlap
      if (!overlap && kind.stages > 1 && link == 0) continue;  // the same without a link
      const Recipe r = recipe_of(kind.name, kind.stages, ranks, micro_batches, overlap);
      const RunPlan plan = plan::make_plan(r, ranks, 0);
      schedule::ScheduleCosts costs = plan::costs_in_order(plan.pipeline);
      costs.p2p_latency = costs.p2p_transfer = link / 2 / unit;
      costs.one_link = true;
      const schedule::Timeline simulated = simulate(plan::executed_schedule(plan), costs);
      const Measured m = measure(r, ranks, unit, link);
      fmt::print("{:<32}{:>12.2f}{:>12.2f}{:>12.2f}{:>12.2f}{:>10.2f} %\n",
                 fmt::format("{} x {}{}", kind.name, kind.stages,
                             plan.pipeline.overlap ? ", overlap" : ""),
                 m.step / unit, simulated.step, 100 * m.bubble, 100 * simulated.bubble(),
                 100 * (m.step / unit / simulated.step - 1));
    }
}
