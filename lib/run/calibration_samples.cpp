#include "run/calibration_samples.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/median.h"

namespace mtrain::run {

namespace {

using device::StreamKind;

constexpr double kShortest = 1e-9;
// The slow-down follows from launches of which so much is beside communication, if there are
// enough. What others lose has mostly other causes.
constexpr double kMostlyBeside = 0.5;
constexpr size_t kFewestBeside = 20;
constexpr double kMostLost = 0.9;
// Times of communication in a step become a line over the bytes if the largest message has so many
// times the bytes of the smallest one.
constexpr double kWideRange = 8;

std::string name_of(StreamKind kind) { return std::string(device::stream_kind_name(kind)); }

// The mean without the largest and the smallest tenth: sums count, single interruptions do not.
double trimmed_mean(std::vector<double> x) {
  std::ranges::sort(x);
  const size_t out = x.size() / 10;
  SumOfTimes sum;
  for (size_t i = out; i < x.size() - out; ++i) sum.add(x[i]);
  return sum.mean();
}

// How many times as long as alone the step's computations take without communication beside.
double longer(const StepTogether& step, const plan::Calibration& c) {
  const auto found = c.together.find(step.parallelism);
  return 1 + (found == c.together.end() ? 0 : found->second);
}

// While a communication runs for the time o, a computation does the work of o / (1 + s). A
// communication may take the core of some launches and leave others alone, so sums over all steps
// count.
// `medians` are those of ranks alone; ranks together are slower also without communication.
void add_slowdowns(const MeasuredSteps& samples, const std::map<LaunchKey, double>& medians,
                   plan::Calibration& out) {
  struct Beside {
    double lost = 0, common = 0;
    size_t launches = 0;
  };
  std::map<StreamKind, Beside> sums;
  for (const StepTogether& step : samples.together)
    for (const auto& [kind, launches] : step.disturbed)
      for (const Disturbed& d : launches) {
        const auto median = medians.find(d.key);
        if (median == medians.end() || d.overlap_s < kMostlyBeside * d.seconds) continue;
        Beside& sum = sums[kind];
        sum.lost += d.seconds - longer(step, out) * median->second;
        sum.common += d.overlap_s;
        ++sum.launches;
      }
  for (const auto& [kind, sum] : sums) {
    if (sum.launches < kFewestBeside) continue;
    const double share = std::clamp(sum.lost / sum.common, 0.0, kMostLost);
    if (share > 0) out.slowdowns[name_of(kind)] = share / (1 - share);
  }
}

// The times of communications of one size, some with little computing beside them and some with
// much.
struct LinkPoint {
  double bytes = 0, seconds = 0;
  double beside = 0;  // the share of the time that is beside computations
  double weight = 0;  // how long all of them took
};

std::map<StepLinkKey, std::vector<LinkPoint>> link_points(const MeasuredSteps& samples) {
  struct Times {
    std::vector<double> seconds;
    double beside = 0, all = 0;
  };
  std::map<StepLinkKey, std::map<std::pair<double, bool>, Times>> times;
  for (const StepTogether& step : samples.together)
    for (const auto& [key, sizes] : step.links)
      for (const auto& [bytes, link] : sizes) {
        Times& t = times[key][{bytes, link.beside > 0.5 * link.seconds}];
        t.seconds.push_back(link.seconds / double(link.count));
        t.beside += link.beside, t.all += link.seconds;
      }
  std::map<StepLinkKey, std::vector<LinkPoint>> points;
  for (const auto& [key, sizes] : times)
    for (const auto& [size, t] : sizes)
      points[key].push_back({.bytes = size.first,
                             .seconds = std::max(kShortest, trimmed_mean(t.seconds)),
                             .beside = t.all > 0 ? t.beside / t.all : 0,
                             .weight = std::max(kShortest, t.all)});
  return points;
}

bool wide(const std::vector<LinkPoint>& points) {  // in the order of their bytes
  return points.back().bytes >= kWideRange * points.front().bytes;
}

// The time without computing beside, as a share of the measured one. What was beside has taken
// 1 + `more` times as long as alone, as predictions assume it (LaunchCosts::beside_compute()).
double share_alone(const LinkPoint& p, double more) { return 1 - p.beside * more / (1 + more); }

// Returns the times without computing beside, which makes them 1 + `more` times as long. Sizes that
// are alike say only how many times longer than alone they take: the line of `measured` counts,
// and without one nothing is returned.
std::optional<plan::LinkTimes> link_without(const StepLinkKey& key,
                                            const std::vector<LinkPoint>& points, double more,
                                            const plan::Calibration& measured) {
  plan::LinkTimes link;
  if (wide(points)) {
    std::vector<plan::LinkSample> samples;
    for (const LinkPoint& p : points)
      samples.push_back({p.bytes, p.seconds * share_alone(p, more), p.weight});
    link = plan::fit_link(key.kind, key.dtype, key.ranks, samples);
  } else {
    const plan::LinkTimes* alone = measured.find_link(key.kind, key.dtype, key.ranks);
    if (!alone || alone->ranks != key.ranks) return {};
    double in_step = 0, by_itself = 0;
    for (const LinkPoint& p : points)
      in_step += p.seconds * share_alone(p, more), by_itself += alone->seconds(p.bytes);
    link = *alone;
    link.dtype = key.dtype;
    link.alpha_s *= in_step / by_itself;
    link.bytes_per_s *= by_itself / in_step;
    link.spread = 0;
    for (const LinkPoint& p : points)
      link.spread = std::max(
          link.spread, std::abs(link.seconds(p.bytes) / (p.seconds * share_alone(p, more)) - 1));
  }
  link.stream = name_of(key.stream);
  return link;
}

double squared_errors(const plan::LinkTimes& link, const std::vector<LinkPoint>& points,
                      double more) {
  double sum = 0;
  for (const LinkPoint& p : points) {
    const double e = link.seconds(p.bytes) / (p.seconds * share_alone(p, more)) - 1;
    sum += p.weight * e * e;
  }
  return sum;
}

// Whether the times show what computations beside them cost: some have many, and others few. Sizes
// that are alike show it only if each has both, since nothing else determines their line.
bool shows_beside(const std::vector<LinkPoint>& points) {
  const auto beside = [](const LinkPoint& p) { return p.beside > 0.5; };
  const auto has_both = [&](const LinkPoint& p) {
    return std::ranges::any_of(points, [&](const LinkPoint& other) {
      return other.bytes == p.bytes && beside(other) != beside(p);
    });
  };
  if (points.size() < 3 || (!wide(points) && !std::ranges::all_of(points, has_both))) return false;
  return std::ranges::any_of(points, beside) && !std::ranges::all_of(points, beside);
}

// By how much longer the communication of each kind of stream takes beside computations.
std::map<StreamKind, double> longer_beside(const std::map<StepLinkKey, std::vector<LinkPoint>>& all,
                                           const plan::Calibration& measured) {
  constexpr double kStep = 0.25, kMost = 8;
  constexpr double kBetter = 0.9;  // a smaller gain may be chance
  std::map<StreamKind, double> best, least;
  for (double more = 0; more <= kMost; more += kStep) {
    std::map<StreamKind, double> errors;
    for (const auto& [key, points] : all)
      if (shows_beside(points))
        if (const auto link = link_without(key, points, more, measured))
          errors[key.stream] += squared_errors(*link, points, more);
    for (const auto& [stream, error] : errors)
      if (more == 0)
        best[stream] = 0, least[stream] = kBetter * error;
      else if (error < least.at(stream))
        best[stream] = more, least[stream] = error;
  }
  return best;
}

void add_links(const MeasuredSteps& samples, plan::Calibration& out) {
  const std::map<StepLinkKey, std::vector<LinkPoint>> all = link_points(samples);
  const std::map<StreamKind, double> beside = longer_beside(all, out);
  std::vector<plan::LinkTimes> links;
  for (const auto& [key, points] : all) {
    const auto found = beside.find(key.stream);
    const double more = found == beside.end() ? 0 : found->second;
    if (auto link = link_without(key, points, more, out)) links.push_back(std::move(*link));
  }
  for (const auto& [stream, more] : beside)
    if (more > 0) out.besides[name_of(stream)] = more;
  out.links.insert(out.links.end(), links.begin(), links.end());
}

}  // namespace

Quartiles quartiles(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::ranges::sort(samples);
  const size_t n = samples.size();
  const double middle = median(samples);
  return {middle, middle > 0 ? (samples[n * 3 / 4] - samples[n / 4]) / middle : 0};
}

void summarize(const MeasuredSteps& samples, plan::Calibration& out) {
  std::map<LaunchKey, double> medians;
  std::map<std::pair<std::string, DType>, std::vector<plan::LaunchPoint>> launches;
  const auto add_point = [&](const LaunchKey& key, const Quartiles& q) {
    launches[{key.name, key.dtype}].push_back({.flops = key.flops,
                                               .read = key.read,
                                               .written = key.written,
                                               .seconds = std::max(kShortest, q.median),
                                               .spread = q.spread});
  };
  for (const auto& [key, times] : samples.alone) {
    const Quartiles q = quartiles(times);
    medians[key] = q.median;
    add_point(key, q);
  }
  out.gap_s = quartiles(samples.gaps).median;
  out.host_s = quartiles(samples.hosts).median;

  std::map<StreamKind, std::vector<double>> stretches, idle_shares;
  std::map<std::string, std::vector<double>> more, wakes;
  for (const StepTogether& step : samples.together) {
    if (step.waits > 0)
      wakes[step.parallelism].push_back(
          std::max(0.0, step.idle_s - double(step.launches) * out.gap_s) / double(step.waits));
    for (const auto& [kind, times] : step.stretch) stretches[kind].push_back(times);
    for (const auto& [kind, share] : step.idle_share) idle_shares[kind].push_back(share);
    double taken = 0, by_itself = 0;
    for (const auto& [key, sum] : step.undisturbed)
      if (const auto alone = medians.find(key); alone != medians.end())
        taken += sum.seconds, by_itself += double(sum.count) * alone->second;
    if (by_itself > 0) more[step.parallelism].push_back(taken / by_itself - 1);
  }
  for (const auto& [parallelism, times] : wakes)
    if (const double s = quartiles(times).median; s > 0) out.wakes[parallelism] = s;
  for (const auto& [kind, times] : stretches)
    if (const double s = quartiles(times).median; s > 0) out.stretches[name_of(kind)] = s;
  for (const auto& [kind, shares] : idle_shares)
    if (const double s = quartiles(shares).median; s > 0) out.idle_shares[name_of(kind)] = s;
  for (const auto& [parallelism, by] : more)
    if (const double s = quartiles(by).median; s > 0) out.together[parallelism] = s;

  // Some launches are only those of ranks that work together.
  std::map<LaunchKey, std::vector<double>> only_together;
  for (const StepTogether& step : samples.together)
    for (const auto& [key, sum] : step.undisturbed)
      if (!launches.contains({key.name, key.dtype}))
        only_together[key].push_back(sum.mean() / longer(step, out));
  for (const auto& [key, times] : only_together) add_point(key, quartiles(times));
  for (auto& [kind, points] : launches)
    out.launches.push_back({kind.first, kind.second, std::move(points)});
  add_slowdowns(samples, medians, out);
  add_links(samples, out);
}

}  // namespace mtrain::run
