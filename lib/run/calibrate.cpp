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
// The slow-down follows from launches of which so much is beside communication, if there are
// enough. What others lose has mostly other causes.
constexpr double kMostlyBeside = 0.5;
constexpr size_t kFewestBeside = 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Quartiles {
  double median = 0, spread = 0;
};
Quartiles quartiles(std::vector<double> x) {
  if (x.empty()) return {};
  std::ranges::sort(x);
  const size_t n = x.size();
  const double middle = median(x);
  return {middle, middle > 0 ? (x[n * 3 / 4] - x[n / 4]) / middle : 0};
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

// The size of a launch, and what it does.
struct LaunchKey {
  std::string name;
  DType dtype;
  double flops, read, written;
  auto operator<=>(const LaunchKey&) const = default;  // NOLINT(modernize-use-nullptr): false alarm
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

// A launch that ran while its rank communicated.
struct Disturbed {
  LaunchKey key;
  double seconds, overlap_s;
};

// What the rounds have measured.
struct MeasuredSteps {
  std::map<LaunchKey, std::vector<double>> launches;  // seconds: means over a step
  std::map<StreamKind, std::vector<std::vector<Disturbed>>> disturbed;  // by step
  std::vector<double> gaps, hosts;  // seconds of each launch, of a step
  // A step with communication has waits and launches. In so many seconds compute was idle and
  // waited for nothing.
  struct Idle {
    double waits, launches, seconds;
  };
  std::vector<Idle> idle;
  // For each step, the times of communication over those of the same alone, and what ranks that
  // share layers have waited for later ones over their computing.
  std::map<StreamKind, std::vector<double>> stretches;
  std::vector<double> idle_shares;
};

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
           .communicates = r.group >= 0,
           .alone_s = r.group >= 0 ? seconds_alone(r, records.groups()) : 0});
    }
  }

  // Trains for the time of a visit; all ranks make the same number of steps.
  void visit(MeasuredSteps& samples, const comm::HostCollectives& all) {
    use_arithmetic();
    all.any(false);  // the ranks begin together
    const auto begin = Clock::now();
    int64_t steps = 1;
    for (int64_t i = 0; i < steps; ++i) {
      step(samples);
      if (i > 0) continue;
      const auto fit = int64_t(kVisit / std::max(1e-6, seconds_since(begin)));
      steps = all.least(std::clamp<int64_t>(fit, 1, kStepsOfVisit));
    }
    all.any(false);
  }

 private:
  struct Launch {
    LaunchKey key;
    bool communicates;
    double alone_s;  // of communication; 0: not measured
  };

  double seconds_alone(const LaunchRecord& r,
                       const std::vector<device::GroupRecord>& groups) const {
    const auto ranks = int64_t(groups[size_t(r.group)].ranks.size());
    const plan::LinkTimes* link = links_.find_link(r.name, r.dtype, ranks);
    return link && link->ranks == ranks ? link->seconds(double(r.wire_bytes)) : 0;
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

  void step(MeasuredSteps& samples) {
    StepTimings sink;
    device_.set_timing_sink(&sink);
    const auto begin = Clock::now();
    trainer_.step();
    device_.synchronize();
    const double seconds = seconds_since(begin);
    device_.set_timing_sink(nullptr);
    add(sink.take(), seconds, samples);
  }

  void add(const StepTimings::Times& times, double seconds, MeasuredSteps& samples) {
    std::map<StreamKind, std::vector<Interval>> communication;
    for (const auto& [stream, launches] : launches_) {
      const auto timed = times.launches.find(stream);
      MT_CHECK(timed != times.launches.end() && timed->second.size() == launches.size(),
               "a step has {} launches in {}, its record {}",
               timed == times.launches.end() ? 0 : timed->second.size(),
               device::stream_name(stream), launches.size());
      for (size_t i = 0; i < launches.size(); ++i) {
        const StepTimings::Launch& t = timed->second[i];
        MT_CHECK(launches[i].key.name == t.name, "launch {} of {} is {}, its record's {}", i,
                 device::stream_name(stream), t.name, launches[i].key.name);
        if (launches[i].communicates)
          communication[stream.kind].push_back({t.begin_ns + t.idle_ns, t.end_ns});
      }
    }
    add_communication(times, samples);
    std::map<LaunchKey, std::pair<double, int64_t>> sums;
    std::map<StreamKind, std::vector<Disturbed>> disturbed;
    double busy = 0;
    int64_t computed = 0;
    for (const auto& [stream, launches] : launches_) {
      const std::vector<StepTimings::Launch>& timed = times.launches.at(stream);
      for (size_t i = 0; i < launches.size(); ++i) {
        if (launches[i].communicates) continue;
        const int64_t length = timed[i].end_ns - timed[i].begin_ns;
        const double t = double(length) * 1e-9;
        if (stream.kind == StreamKind::compute) busy += t, ++computed;
        int64_t most = 0;
        StreamKind with = StreamKind::compute;
        for (const auto& [kind, intervals] : communication) {
          const int64_t o = overlap(intervals, timed[i].begin_ns, timed[i].end_ns);
          if (o > most) most = o, with = kind;
        }
        if (double(most) > kOverlapped * double(length)) {
          if (stream.kind == StreamKind::compute)
            disturbed[with].push_back({launches[i].key, t, double(most) * 1e-9});
          continue;
        }
        auto& [sum, count] = sums[launches[i].key];
        sum += t;
        ++count;
      }
    }
    for (auto& [kind, launches] : disturbed) samples.disturbed[kind].push_back(std::move(launches));
    for (const auto& [key, sum] : sums)
      samples.launches[key].push_back(sum.first / double(sum.second));
    const double idle = std::max(0.0, seconds - busy - double(times.waited_ns) * 1e-9);
    if (alone_ && computed > 0) samples.gaps.push_back(idle / double(computed));
    if (!alone_ && times.waits > 0)
      samples.idle.push_back({double(times.waits), double(computed), idle});
  }

  void add_communication(const StepTimings::Times& times, MeasuredSteps& samples) const {
    double computing = 0, idle = 0;
    bool shares_layers = false;
    for (const auto& [stream, launches] : launches_) {
      const std::vector<StepTimings::Launch>& timed = times.launches.at(stream);
      double taken = 0, alone = 0;
      for (size_t i = 0; i < launches.size(); ++i) {
        const double seconds = double(timed[i].end_ns - timed[i].begin_ns) * 1e-9,
                     waited = double(timed[i].idle_ns) * 1e-9;
        if (stream.kind == StreamKind::compute) computing += seconds;
        if (!launches[i].communicates) continue;
        if (predict::inside_layers(stream.kind)) shares_layers = true, idle += waited;
        if (launches[i].alone_s == 0) continue;
        taken += seconds - waited;
        alone += launches[i].alone_s;
      }
      if (alone > 0) samples.stretches[stream.kind].push_back(taken / alone);
    }
    if (shares_layers && computing > 0) samples.idle_shares.push_back(idle / computing);
  }

  Device& device_;
  const plan::Calibration& links_;
  const bool alone_;
  train::Trainer trainer_;
  std::optional<Bf16Arithmetic> bf16_;
  std::map<StreamId, std::vector<Launch>> launches_;
};

// Median by launch, and slow-downs relative to these medians.
void summarize(const MeasuredSteps& samples, plan::Calibration& out) {
  std::map<LaunchKey, double> medians;
  std::map<std::pair<std::string, DType>, std::vector<plan::LaunchPoint>> launches;
  constexpr double kShortest = 1e-9;
  for (const auto& [key, times] : samples.launches) {
    const Quartiles q = quartiles(times);
    medians[key] = q.median;
    launches[{key.name, key.dtype}].push_back({.flops = key.flops,
                                               .read = key.read,
                                               .written = key.written,
                                               .seconds = std::max(kShortest, q.median),
                                               .spread = q.spread});
  }
  for (auto& [kind, points] : launches)
    out.launches.push_back({kind.first, kind.second, std::move(points)});
  out.gap_s = quartiles(samples.gaps).median;
  out.host_s = quartiles(samples.hosts).median;
  std::vector<double> wakes;
  for (const MeasuredSteps::Idle& i : samples.idle)
    wakes.push_back(std::max(0.0, i.seconds - i.launches * out.gap_s) / i.waits);
  out.wake_s = quartiles(wakes).median;
  const auto name = [](StreamKind kind) { return std::string(device::stream_kind_name(kind)); };
  // While a communication runs for the time o, a computation does the work of o / (1 + s). A
  // communication may take the core of some launches and leave others alone, so a step's sum
  // counts.
  constexpr double kMostLost = 0.9;
  for (const auto& [kind, steps] : samples.disturbed) {
    std::vector<double> shares;  // of the common time, by step
    size_t counted = 0;
    for (const std::vector<Disturbed>& step : steps) {
      double lost = 0, common = 0;
      for (const Disturbed& d : step) {
        const auto median = medians.find(d.key);
        if (median == medians.end() || d.overlap_s < kMostlyBeside * d.seconds) continue;
        lost += d.seconds - median->second;
        common += d.overlap_s;
        ++counted;
      }
      if (common > 0) shares.push_back(lost / common);
    }
    if (counted < kFewestBeside) continue;
    const double share = std::clamp(quartiles(shares).median, 0.0, kMostLost);
    if (share > 0) out.slowdowns[name(kind)] = share / (1 - share);
  }
  for (const auto& [kind, shares] : samples.stretches)
    if (const double median = quartiles(shares).median; median > 0)
      out.stretches[name(kind)] = median;
  out.idle_share = quartiles(samples.idle_shares).median;
}

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
  const std::vector<RunPlan> alone = calibration_models(job.machine);
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
