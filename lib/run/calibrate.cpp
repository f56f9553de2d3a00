#include "run/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/gpu_facts.h"
#include "base/ignore_sigpipe.h"
#include "base/median.h"
#include "base/rng.h"
#include "comm/host_collectives.h"
#include "device/recording/records.h"
#include "ops/elementwise.h"
#include "plan/meeting_plan.h"
#include "predict/launch_class.h"
#include "run/bf16_choice.h"
#include "run/calibration_models.h"
#include "run/calibration_samples.h"
#include "run/open_device.h"
#include "train/build_trainer.h"

namespace mtrain::run {

namespace {

using Clock = std::chrono::steady_clock;
using device::LaunchRecord;
using device::StreamId;
using device::StreamKind;

constexpr int64_t kLeastRounds = 3, kMostRounds = 25;
constexpr double kVisit = 0.15;       // seconds for which a round trains a model
constexpr int64_t kStepsOfVisit = 8;  // at most
constexpr double kForLinks = 0.15;    // of the time, if there are several ranks
constexpr double kOverlapped = 0.02;  // a launch of which more communicates meanwhile is not alone

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Random tokens: the rows of an embedding are then as far apart as those of a text.
class MixedData : public data::Dataset {
 public:
  explicit MixedData(const RunPlan& plan)
      : length_(plan.sample_length),
        vocab_(plan.model.vocab),
        packed_(plan.dataset.by_document()) {}
  int64_t seq_length() const override { return length_; }
  int64_t size() const override { return int64_t{1} << 40; }
  bool packed() const override { return packed_; }
  void sample(int64_t index, data::Sample& out) const override {
    out = {};
    for (int64_t i = 0; i < length_; ++i) {
      const auto number = uint64_t(index * length_ + i);
      out.input.push_back(int32_t(uniform_below(1, number, uint64_t(vocab_))));
      out.label.push_back(int32_t(uniform_below(2, number, uint64_t(vocab_))));
      out.position.push_back(int32_t(i));
    }
    if (packed_) out.documents = {length_};
  }

 private:
  const int64_t length_, vocab_;
  const bool packed_;
};

struct Interval {
  int64_t begin_ns, end_ns;
};

// Keeps when the launches of a step ran, by stream.
class StepTimings : public device::TimingSink {
 public:
  struct Launch {
    const char* name;
    int64_t begin_ns, end_ns, idle_ns;
  };
  struct Times {
    std::map<StreamId, std::vector<Launch>> launches;  // in the streams' order
    int64_t waited_ns = 0;                             // by the compute stream
    int64_t waits = 0;                                 // of it for communication
  };
  void record(const device::Timing& t) override {
    const std::lock_guard lock(mutex_);
    times_.launches[t.stream].push_back({t.name, t.begin_ns, t.end_ns, t.idle_ns.value_or(0)});
  }
  void waited(const device::Waiting& w) override {
    if (w.stream.kind != StreamKind::compute) return;
    const std::lock_guard lock(mutex_);
    times_.waited_ns += w.end_ns - w.begin_ns;
    if (predict::communicates(w.waits_for.kind) && w.end_ns > w.begin_ns) ++times_.waits;
  }
  Times take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(times_, {});
  }

 private:
  std::mutex mutex_;
  Times times_;
};

double sum_of(const device::BytesByCategory& bytes) {
  double sum = 0;
  for (const int64_t b : bytes) sum += double(b);
  return sum;
}

// How much of [begin, end) lies in the intervals.
int64_t overlap(const std::vector<Interval>& intervals, int64_t begin, int64_t end) {
  int64_t sum = 0;
  for (const Interval& i : intervals)
    sum += std::max<int64_t>(0, std::min(end, i.end_ns) - std::max(begin, i.begin_ns));
  return sum;
}

// A model in training.
class CalibrationModel {
 public:
  // `links` are the times of communication alone.
  CalibrationModel(Device& device, const RunPlan& plan, const comm::World& world,
                   const plan::Calibration& links)
      : device_(device),
        links_(links),
        alone_(world.size() == 1),
        trainer_(train::build_trainer(device, prepared(plan), std::make_shared<MixedData>(plan),
                                      world)) {
    choose_bf16_arithmetic(device, trainer_.control(), plan);
    bf16_ = device.bf16_arithmetic();
  }

  // Makes the first steps, and records a step. Its own host times go to `samples`.
  void begin(MeasuredSteps& samples) {
    use_arithmetic();
    trainer_.step();
    device_.synchronize();
    device::Records records;
    device_.set_records(&records);
    std::vector<Clock::time_point> enqueued;
    device_.set_launch_check(
        [&](Stream&, const device::LaunchInfo&) { enqueued.push_back(Clock::now()); });
    trainer_.step();
    device_.set_launch_check({});
    device_.set_records(nullptr);
    device_.synchronize();
    std::vector<double> host;
    for (size_t i = 1; i < enqueued.size(); ++i)
      host.push_back(std::chrono::duration<double>(enqueued[i] - enqueued[i - 1]).count());
    samples.hosts.push_back(quartiles(host).median);
    for (const LaunchRecord& r : records.items()) {
      const std::string_view name = r.name;
      // Copies between host and device are not timed.
      if (r.waits_for || name == "upload" || name == "download") continue;
      launches_[r.stream].push_back(
          {.key = {r.name, r.dtype, double(r.flops), sum_of(r.read), sum_of(r.written)},
           .ranks = r.group >= 0 ? int64_t(records.groups()[size_t(r.group)].ranks.size()) : 0,
           .wire_bytes = double(r.wire_bytes)});
    }
    pipelined_ = has(StreamKind::pp_send) || has(StreamKind::pp_recv);
    parallelism_ = parallelism_of_streams();
  }

  // Trains for the time of a visit; all ranks make the same number of steps.
  void visit(MeasuredSteps& samples, const comm::HostCollectives& all) {
    use_arithmetic();
    all.any(false);  // the ranks begin together
    const auto begin = Clock::now();
    int64_t steps = 1;
    for (int64_t i = 0; i < steps; ++i) {
      step(i > 0 ? &samples : nullptr);
      if (i > 0) continue;
      // After another model, the first step finds its data in no cache, and does not count.
      const auto fit = int64_t(kVisit / std::max(1e-6, seconds_since(begin)));
      steps = 1 + all.least(std::clamp<int64_t>(fit, 1, kStepsOfVisit));
    }
    all.any(false);
  }

 private:
  struct Launch {
    LaunchKey key;
    int64_t ranks;  // that communicate; 0: it computes
    double wire_bytes;
  };

  // Ranks that share layers communicate for data parallelism, too.
  bool has(StreamKind kind) const {
    return std::ranges::any_of(launches_, [&](const auto& of_stream) {
      return of_stream.first.kind == kind &&
             std::ranges::any_of(of_stream.second, [](const Launch& l) { return l.ranks > 0; });
    });
  }
  std::string parallelism_of_streams() const {
    if (has(StreamKind::tp)) return "tp";
    if (has(StreamKind::cp)) return "cp";
    if (has(StreamKind::ep)) return "ep";
    return pipelined_ ? "pp" : "dp";
  }

  double seconds_alone(const Launch& l) const {
    const plan::LinkTimes* link = links_.find_link(l.key.name, l.key.dtype, l.ranks);
    return link && link->ranks == l.ranks ? link->seconds(l.wire_bytes) : 0;
  }

  static RunPlan prepared(RunPlan plan) {
    plan.graphs.on = false;
    plan.train.epochs = {};
    plan.train.steps = int64_t{1} << 30;  // the learning rate does not matter
    return plan;
  }

  void use_arithmetic() {
    if (bf16_) device_.set_bf16_arithmetic(*bf16_);
  }

  void step(MeasuredSteps* samples) {
    StepTimings sink;
    device_.set_timing_sink(&sink);
    const auto begin = Clock::now();
    trainer_.step();
    device_.synchronize();
    const double seconds = seconds_since(begin);
    device_.set_timing_sink(nullptr);
    if (samples) add(sink.take(), seconds, *samples);
  }

  void add(const StepTimings::Times& times, double seconds, MeasuredSteps& samples) {
    check_launches(times);
    StepTogether step{.parallelism = parallelism_, .waits = times.waits};
    std::map<StreamKind, std::vector<Interval>> communication;
    for_launches(times, [&](StreamKind kind, const Launch& l, const StepTimings::Launch& t) {
      if (l.ranks > 0) communication[kind].push_back({t.begin_ns + t.idle_ns, t.end_ns});
    });
    double busy = 0;
    for_launches(times, [&](StreamKind kind, const Launch& l, const StepTimings::Launch& t) {
      if (l.ranks > 0) return;
      const int64_t length = t.end_ns - t.begin_ns;
      const double took = double(length) * 1e-9;
      if (kind == StreamKind::compute) busy += took, ++step.launches;
      int64_t most = 0;
      StreamKind with = StreamKind::compute;
      for (const auto& [other, intervals] : communication) {
        const int64_t o = overlap(intervals, t.begin_ns, t.end_ns);
        if (o > most) most = o, with = other;
      }
      if (double(most) <= kOverlapped * double(length))
        step.undisturbed[l.key].add(took);
      else if (kind == StreamKind::compute)
        step.disturbed[with].push_back({l.key, took, double(most) * 1e-9});
    });
    step.idle_s = std::max(0.0, seconds - busy - double(times.waited_ns) * 1e-9);
    if (alone_) {
      for (const auto& [key, sum] : step.undisturbed) samples.alone[key].push_back(sum.mean());
      if (step.launches > 0) samples.gaps.push_back(step.idle_s / double(step.launches));
      return;
    }
    add_communication(times, busy, step);
    samples.together.push_back(std::move(step));
  }

  template <class F>
  void for_launches(const StepTimings::Times& times, const F& f) const {
    for (const auto& [stream, launches] : launches_)
      for (size_t i = 0; i < launches.size(); ++i)
        f(stream.kind, launches[i], times.launches.at(stream)[i]);
  }

  void check_launches(const StepTimings::Times& times) const {
    for (const auto& [stream, launches] : launches_) {
      const auto timed = times.launches.find(stream);
      MT_CHECK(timed != times.launches.end() && timed->second.size() == launches.size(),
               "a step has {} launches in {}, its record {}",
               timed == times.launches.end() ? 0 : timed->second.size(),
               device::stream_name(stream), launches.size());
      for (size_t i = 0; i < launches.size(); ++i)
        MT_CHECK(launches[i].key.name == timed->second[i].name,
                 "launch {} of {} is {}, its record's {}", i, device::stream_name(stream),
                 timed->second[i].name, launches[i].key.name);
    }
  }

  void add_communication(const StepTimings::Times& times, double computing,
                         StepTogether& step) const {
    std::vector<Interval> computed;
    std::map<StreamKind, double> taken, alone, idle;
    for_launches(times, [&](StreamKind kind, const Launch&, const StepTimings::Launch& t) {
      if (kind == StreamKind::compute) computed.push_back({t.begin_ns, t.end_ns});
    });
    for_launches(times, [&](StreamKind kind, const Launch& l, const StepTimings::Launch& t) {
      if (l.ranks == 0) return;
      const double seconds = double(t.end_ns - t.begin_ns - t.idle_ns) * 1e-9;
      // Compute waits as well, unless it still has other work.
      const int64_t ready = t.begin_ns + t.idle_ns;
      idle[kind] += double(t.idle_ns - overlap(computed, t.begin_ns, ready)) * 1e-9;
      if (l.wire_bytes > 0) {
        StepLink& link = step.links[{kind, l.key.name, l.key.dtype, l.ranks}][l.wire_bytes];
        link.seconds += seconds;
        link.beside += double(overlap(computed, ready, t.end_ns)) * 1e-9;
        ++link.count;
      }
      const double by_itself = seconds_alone(l);
      if (by_itself == 0) return;
      taken[kind] += seconds;
      alone[kind] += by_itself;
    });
    for (const auto& [kind, by_itself] : alone) step.stretch[kind] = taken.at(kind) / by_itself;
    // In a pipeline, ranks wait for each other by the order of its passes.
    if (computing > 0 && !pipelined_)
      for (const auto& [kind, waited] : idle) step.idle_share[kind] = waited / computing;
  }

  Device& device_;
  const plan::Calibration& links_;
  const bool alone_;
  train::Trainer trainer_;
  std::optional<Bf16Arithmetic> bf16_;
  std::map<StreamId, std::vector<Launch>> launches_;
  std::string parallelism_;
  bool pipelined_ = false;
};

// A kind of communication, and the bytes that a rank sends for `bytes` of data.
struct Exchange {
  const char* kind;
  std::function<void(const comm::Group&, const Tensor&, const Tensor&, Stream&)> run;
  std::function<double(double bytes, double ranks)> sent;
  int64_t times = 1;  // how often it runs, one after the other
  int64_t ranks = 0;  // that take part; 0: all
};

const std::vector<Exchange>& exchanges() {
  const auto once = [](double bytes, double ranks) { return bytes * (ranks - 1) / ranks; };
  const auto all = [](double bytes, double) { return bytes; };
  using comm::Group;
  using Kind = comm::Transfer::Kind;
  static const std::vector<Exchange> kinds{
      {"all_reduce",
       [](const Group& g, const Tensor& x, const Tensor&, Stream& s) {
         g.all_reduce(x, comm::Reduce::sum, s);
       },
       [once](double bytes, double ranks) { return 2 * once(bytes, ranks); }},
      {"all_gather",
       [](const Group& g, const Tensor& x, const Tensor& y, Stream& s) {
         g.all_gather(x.flat(0, {x.count() / g.size()}), y, s);
       },
       once},
      {"reduce_scatter",
       [](const Group& g, const Tensor& x, const Tensor& y, Stream& s) {
         g.reduce_scatter(x, y.flat(0, {x.count() / g.size()}), comm::Reduce::sum, s);
       },
       once},
      {"all_to_all",
       [](const Group& g, const Tensor& x, const Tensor& y, Stream& s) { g.all_to_all(x, y, s); },
       once},
      {"broadcast",
       [](const Group& g, const Tensor& x, const Tensor&, Stream& s) { g.broadcast(x, 0, s); },
       all},
      // Around the ring of the ranks.
      {"exchange",
       [](const Group& g, const Tensor& x, const Tensor& y, Stream& s) {
         g.exchange({{Kind::send, x, (g.rank() + 1) % g.size()},
                     {Kind::receive, y, (g.rank() + g.size() - 1) % g.size()}},
                    s);
       },
       all},
      // Two ranks send to each other in turn.
      {"send",
       [](const Group& g, const Tensor& x, const Tensor&, Stream& s) {
         if (g.rank() > 1) return;
         for (const int sender : {0, 1})
           g.rank() == sender ? g.send(x, 1 - sender, s) : g.receive(x, sender, s);
       },
       all, 2, 2}};
  return kinds;
}

// Measures communication among all ranks. A computation on each side waits for the other stream, as
// those of a layer do that shares its tensors; the time includes these waits.
std::vector<plan::LinkTimes> measure_links(Device& device, comm::World& world, double seconds) {
  const int64_t ranks = world.size();
  std::vector<int> members;
  for (int rank = 0; rank < world.size(); ++rank) members.push_back(rank);
  const comm::Group group = world.group("calibrate", members);
  Stream &compute = device.stream(StreamKind::compute), &stream = device.stream(StreamKind::tp);
  const Tensor one = Tensor::empty(compute, {1}, DType::f32);
  struct Size {
    size_t kind;
    DType dtype;
    Tensor x, y;
    double sent;
    std::vector<double> times;
  };
  std::vector<Size> sizes;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (int64_t elements = 1 << 8; elements <= 1 << 22; elements <<= 3) {
      const int64_t count = std::max<int64_t>(1, elements / ranks) * ranks;
      const Tensor x = Tensor::empty(compute, {count}, dtype),
                   y = Tensor::empty(compute, {count}, dtype);
      ops::fill(compute, x, 0);
      ops::fill(compute, y, 0);
      for (size_t kind = 0; kind < exchanges().size(); ++kind)
        sizes.push_back(
            {kind, dtype, x, y, exchanges()[kind].sent(double(x.bytes()), double(ranks)), {}});
    }
  device.synchronize();
  const comm::HostCollectives all(world, device);
  const auto begin = Clock::now();
  for (int64_t round = -1; round < kMostRounds; ++round) {
    if (all.any(round >= kLeastRounds && seconds_since(begin) > seconds)) break;
    for (Size& s : sizes) {
      const Exchange& e = exchanges()[s.kind];
      const int64_t repeats = std::clamp<int64_t>((1 << 18) / s.x.count(), 1, 8);
      const auto pass = [&](bool communicates, int64_t times) {
        const auto started = Clock::now();
        for (int64_t i = 0; i < times; ++i) {
          ops::fill(compute, one, 0);
          if (!communicates) continue;
          stream.wait(compute.record());
          e.run(group, s.x, s.y, stream);
          compute.wait(stream.record());
        }
        device.synchronize();
        return seconds_since(started);
      };
      pass(true, 1);  // the ranks begin together
      const double with = pass(true, repeats), without = pass(false, repeats);
      constexpr double kShortest = 1e-7;
      if (round >= 0)
        s.times.push_back(
            std::max(kShortest, (with - without) / double(repeats) / double(e.times)));
    }
  }
  std::vector<plan::LinkTimes> links;
  std::map<std::pair<size_t, DType>, std::vector<plan::LinkSample>> samples;
  for (const Size& s : sizes)
    samples[{s.kind, s.dtype}].push_back({s.sent, quartiles(s.times).median});
  for (const auto& [kind, times] : samples) {
    const Exchange& e = exchanges()[kind.first];
    links.push_back(plan::fit_link(e.kind, kind.second, e.ranks > 0 ? e.ranks : ranks, times));
  }
  return links;
}

}  // namespace

plan::Calibration measure_machine(Device& device, comm::World& world, double seconds,
                                  const std::vector<RunPlan>& alone,
                                  const std::vector<RunPlan>& shared) {
  const auto begin = Clock::now();
  plan::Calibration out;
  if (world.size() > 1) out.links = measure_links(device, world, kForLinks * seconds);
  MeasuredSteps samples;
  std::vector<std::unique_ptr<CalibrationModel>> models;
  const auto add = [&](const std::vector<RunPlan>& plans, const comm::World& ranks) {
    for (const RunPlan& plan : plans) {
      models.push_back(std::make_unique<CalibrationModel>(device, plan, ranks, out));
      models.back()->begin(samples);
    }
  };
  add(alone, comm::World::alone());
  add(shared, world);
  const comm::HostCollectives all(world, device);
  for (int64_t round = 0; round < kMostRounds; ++round) {
    if (all.any(round >= kLeastRounds && seconds_since(begin) > seconds)) break;
    for (const auto& model : models) model->visit(samples, all);
  }
  device.synchronize();
  summarize(samples, out);
  out.threads = std::max(1, device.threads());
  out.ranks = world.size();
  if (world.rank() != 0) return {};
  return out;
}

plan::Calibration calibrate(const CalibrateJob& job) {
  const IgnoreSigpipe pipes;
  const std::vector<RunPlan> alone = calibration_models(job.machine, job.job.size);
  std::vector<RunPlan> shared = calibration_layouts(job.machine, job.job.size);
  shared.insert(shared.end(), job.further.begin(), job.further.end());
  plan::MeetingPlan meeting;
  meeting.device = {.kind = alone.at(0).device.kind, .threads = job.threads};
  meeting.recipe = "mtrain calibrate";
  comm::World world =
      job.job.size == 1 ? comm::World::alone()
                        : open_world(meeting, job.job,
                                     token_source(job.job, token_file_beside(job.output, job.job)));
  const auto device = open_device(meeting.device, job.job);
  plan::Calibration c;
  try {
    c = measure_machine(*device, world, job.seconds, alone, shared);
  } catch (const std::exception& e) {
    world.abort(e.what());  // peers then do not wait for their timeout
    throw;
  }
  if (world.rank() != 0) return {};
  const GpuFacts* gpu = find_gpu(device->description());
  // Only GPUs have memory of their own.
  c.device = gpu ? enum_name(gpu->gpu) : device->memory_bytes() > 0 ? "unknown" : "cpu";
  c.machine = fmt::format("{}; {} rank{}", device->description(), world.size(),
                          world.size() == 1 ? "" : "s");
  c.build = job.build;
  c.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  write_file_atomic(job.output, plan::print_calibration(c));
  return c;
}

}  // namespace mtrain::run
