#include "predict/measured_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "comm/group.h"
#include "observe/launch_letters.h"

namespace mtrain::predict {

using plan::LaunchPoint;

namespace {

constexpr double kBeyond = 1e-6;  // of a logarithm: sizes that are equal but for rounding

// A launch without FLOPs, or without bytes, has 0 there; all sizes of a launch usually have it.
void logarithms(double flops, double read, double written, double (&x)[3]) {
  x[0] = std::log(std::max(flops, 1.0));
  x[1] = std::log(std::max(read, 1.0));
  x[2] = std::log(std::max(written, 1.0));
}

// Solves the n equations a x = b for n <= 3; returns false if they have no single solution.
bool solve(double (&a)[3][3], double (&b)[3], int n) {
  for (int i = 0; i < n; ++i) {
    int pivot = i;
    for (int r = i + 1; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    if (std::abs(a[pivot][i]) < 1e-9) return false;
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (int r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (int c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (int i = 0; i < n; ++i) b[i] /= a[i][i];
  return true;
}

// Coefficients of 1, FLOPs and bytes, none negative, with the smallest sum of squared relative
// errors. At most three are above 0, so all choices of them are tried.
struct Coefficients {
  double of[3] = {0, 0, 0};
};
Coefficients fit(const std::vector<LaunchPoint>& points) {
  double scale[3] = {1, 0, 0};
  for (const LaunchPoint& p : points) {
    scale[1] = std::max(scale[1], p.flops);
    scale[2] = std::max(scale[2], p.read + p.written);
  }
  double shortest = std::numeric_limits<double>::infinity();
  for (const LaunchPoint& p : points) shortest = std::min(shortest, p.seconds);
  const auto features = [&](const LaunchPoint& p, int i) {
    const double value = i == 0 ? 1 : i == 1 ? p.flops : p.read + p.written;
    return value / scale[i] / (p.seconds / shortest);
  };
  Coefficients best;
  double least = std::numeric_limits<double>::infinity();
  for (int chosen = 1; chosen < 8; ++chosen) {
    int index[3], n = 0;
    bool usable = true;
    for (int i = 0; i < 3; ++i)
      if (chosen >> i & 1) {
        index[n++] = i;
        usable = usable && scale[i] > 0;
      }
    if (!usable) continue;
    double a[3][3] = {}, b[3] = {};
    for (const LaunchPoint& p : points)
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) a[i][j] += features(p, index[i]) * features(p, index[j]);
        b[i] += features(p, index[i]);
      }
    if (!solve(a, b, n) || *std::min_element(b, b + n) < 0) continue;
    double error = 0;
    for (const LaunchPoint& p : points) {
      double e = -1;
      for (int i = 0; i < n; ++i) e += b[i] * features(p, index[i]);
      error += e * e;
    }
    if (error >= least * (1 - 1e-9)) continue;  // fewer coefficients are enough
    least = error;
    best = {};
    for (int i = 0; i < n; ++i) best.of[index[i]] = b[i] * shortest / scale[index[i]];
  }
  MT_CHECK(std::isfinite(least), "no time fits to {} points", points.size());
  return best;
}

double number_of(const std::map<std::string, double>& numbers, std::string_view name,
                 double without) {
  const auto found = numbers.find(std::string(name));
  return found == numbers.end() ? without : found->second;
}

}  // namespace

SizeCurve::SizeCurve(const std::vector<LaunchPoint>& points) {
  MT_CHECK(!points.empty(), "a curve without points");
  const Coefficients c = fit(points);
  constant_ = c.of[0], per_flop_ = c.of[1], per_byte_ = c.of[2];
  std::ranges::fill(low_, std::numeric_limits<double>::infinity());
  std::ranges::fill(high_, -std::numeric_limits<double>::infinity());
  for (const LaunchPoint& p : points) {
    Place place{};
    logarithms(p.flops, p.read, p.written, place.x);
    place.log_ratio = std::log(p.seconds / fitted(p.flops, p.read + p.written));
    for (int i = 0; i < 3; ++i) {
      low_[i] = std::min(low_[i], place.x[i]);
      high_[i] = std::max(high_[i], place.x[i]);
    }
    places_.push_back(place);
  }
  // Ratios between the points are means of theirs.
  least_ratio_ = std::exp(std::ranges::min_element(places_, {}, &Place::log_ratio)->log_ratio);
}

double SizeCurve::at_least(double flops) const {
  return least_ratio_ * (constant_ + per_flop_ * flops);
}

double SizeCurve::fitted(double flops, double bytes) const {
  // A launch without work still takes time.
  constexpr double kShortest = 1e-9;
  return std::max(kShortest, constant_ + per_flop_ * flops + per_byte_ * bytes);
}

LaunchCost SizeCurve::at(double flops, double read, double written) const {
  LaunchCost cost{.seconds = fitted(flops, read + written)};
  double x[3];
  logarithms(flops, read, written, x);
  for (int i = 0; i < 3; ++i) {
    const double inside = std::clamp(x[i], low_[i], high_[i]);
    if (std::abs(inside - x[i]) > kBeyond) cost.known = false;
    x[i] = inside;
  }
  // Inverse distance weighting (Shepard): near points decide, and a point itself is exact.
  double sum = 0, weights = 0;
  for (const Place& p : places_) {
    double d2 = 0;
    for (int i = 0; i < 3; ++i) d2 += (p.x[i] - x[i]) * (p.x[i] - x[i]);
    if (d2 < 1e-18) {
      sum = p.log_ratio, weights = 1;
      break;
    }
    const double w = 1 / (d2 * d2);
    sum += w * p.log_ratio;
    weights += w;
  }
  cost.seconds *= std::exp(sum / weights);
  return cost;
}

EmulatedLinkCosts emulated_link(const plan::CommOptions& comm) {
  return {.latency_s = comm.link_latency_us * 1e-6,
          .seconds_per_byte = comm.link_gbps > 0 ? 8 / (comm.link_gbps * 1e9) : 0,
          .streams = comm.link_streams};
}

MeasuredCosts::MeasuredCosts(plan::Calibration calibration, const plan::Cluster& cluster,
                             const std::optional<CpuRanks>& cpu, EmulatedLinkCosts link)
    : calibration_(std::move(calibration)),
      sheet_(cluster, StackConstants{}, cpu ? cpu->threads : 1),
      link_(std::move(link)),
      same_ranks_(!cpu ||
                  (cpu->threads == calibration_.threads && cpu->of_host == calibration_.ranks)) {
  std::map<std::pair<LaunchClass, DType>, std::map<std::array<double, 3>, LaunchPoint>> pools;
  for (const plan::LaunchTimes& t : calibration_.launches) {
    const SizeCurve& curve =
        curves_.emplace(std::pair{t.name, t.dtype}, SizeCurve(t.points)).first->second;
    for (const LaunchPoint& p : t.points) {
      // A file may have names that this program does not know.
      if (p.flops > 0 &&
          std::string_view("mea").find(observe::letter_of(t.name)) == std::string::npos)
        continue;
      const LaunchClass c = class_of({.name = t.name, .dtype = t.dtype, .flops = p.flops});
      std::vector<const SizeCurve*>& named = named_[{c, t.dtype}];
      if (named.empty() || named.back() != &curve) named.push_back(&curve);
      pools[{c, t.dtype}].emplace(std::array{p.flops, p.read, p.written}, p);
    }
  }
  for (const auto& [kind, pool] : pools) {
    std::vector<LaunchPoint> points;
    for (const auto& [size, p] : pool) points.push_back(p);
    of_class_.emplace(kind, SizeCurve(points));
  }
}

LaunchCost MeasuredCosts::compute(const LaunchWork& w) const {
  const auto curve = curves_.find(std::pair{std::string(w.name), w.dtype});
  LaunchCost cost;
  if (curve != curves_.end()) {
    cost = curve->second.at(w.flops, w.read, w.written);
  } else if (const auto alike = of_class_.find({class_of(w), w.dtype}); alike != of_class_.end()) {
    cost = alike->second.at(w.flops, w.read, w.written);
    cost.known = false;
  } else {
    cost = sheet_.cost(w, nullptr);
    cost.known = false;
  }
  cost.known = cost.known && same_ranks_;
  return cost;
}

TogetherCosts MeasuredCosts::together(const plan::Layout& l) const {
  TogetherCosts costs;
  for (const auto& [parallelism, ranks] :
       {std::pair{"tp", l.tp}, {"cp", l.cp}, {"ep", l.ep}, {"pp", l.pp}, {"dp", l.dp}}) {
    if (ranks < 2) continue;
    costs.longer = std::max(costs.longer, number_of(calibration_.together, parallelism, 0));
    costs.wake_s = std::max(costs.wake_s, number_of(calibration_.wakes, parallelism, 0));
  }
  return costs;
}

double MeasuredCosts::stretch(device::StreamKind kind) const {
  return number_of(calibration_.stretches, device::stream_kind_name(kind), 1);
}

double MeasuredCosts::idle_share(device::StreamKind kind) const {
  return number_of(calibration_.idle_shares, device::stream_kind_name(kind), 0);
}

double MeasuredCosts::least_seconds(const LaunchWork& w) const {
  const std::pair kind{class_of(w), w.dtype};
  const auto alike = of_class_.find(kind);
  double least =
      alike != of_class_.end() ? alike->second.at_least(w.flops) : sheet_.least_seconds(w);
  if (const auto named = named_.find(kind); named != named_.end())
    for (const SizeCurve* curve : named->second) least = std::min(least, curve->at_least(w.flops));
  return least;
}

double MeasuredCosts::beside_compute(device::StreamKind kind) const {
  return number_of(calibration_.besides, device::stream_kind_name(kind), 0);
}

bool MeasuredCosts::uses_link(device::StreamKind kind) const {
  if (link_.latency_s == 0 && link_.seconds_per_byte == 0) return false;
  return link_.streams.empty() ||
         std::ranges::find(link_.streams, device::stream_kind_name(kind)) != link_.streams.end();
}

LaunchCost MeasuredCosts::communication(const LaunchWork& w, const plan::GroupLink& link) const {
  const plan::LinkTimes* measured =
      calibration_.find_link(device::stream_kind_name(w.stream.kind), w.name, w.dtype, link.ranks);
  double stretched = 1;
  if (!measured) {
    measured = calibration_.find_link(w.name, w.dtype, link.ranks);
    stretched = stretch(w.stream.kind);
  }
  LaunchCost cost;
  if (measured && link.in_domain())
    cost = {.seconds = stretched * measured->seconds(w.wire_bytes),
            .known = measured->ranks == link.ranks && measured->dtype == w.dtype};
  else
    cost = {.seconds = sheet_.cost(w, &link).seconds, .known = false};
  cost.work_s = cost.seconds;
  if (!uses_link(w.stream.kind)) return cost;
  if (w.name == "receive") return cost;  // its sender has used the link
  // The link carries data while the ranks sleep, so it does not take longer in a step. A collective
  // ends when the link has carried its data, unless it takes longer by itself. A message leaves its
  // sender only then.
  cost.link_s = w.wire_bytes * link_.seconds_per_byte;
  cost.carried_s = link_.latency_s + cost.link_s;
  cost.works_after = w.name == "send" || w.name == "exchange";
  const double peers = cost.works_after ? 1 : double(link.ranks - 1);
  cost.packet = w.wire_bytes <= comm::EmulatedLink::kPacketBytes * peers;
  cost.seconds =
      cost.works_after ? cost.carried_s + cost.work_s : std::max(cost.carried_s, cost.work_s);
  return cost;
}

LaunchCost MeasuredCosts::cost(const LaunchWork& w, const plan::GroupLink* link) const {
  // Streams that communicate also copy and cast.
  return communicates(w.stream.kind) && link ? communication(w, *link) : compute(w);
}

double MeasuredCosts::slowdown(device::StreamKind kind) const {
  const double alone = number_of(calibration_.slowdowns, device::stream_kind_name(kind), 0);
  if (!uses_link(kind) || link_.seconds_per_byte == 0) return alone;
  // Ranks that wait for an emulated link sleep, and use no memory and no core.
  constexpr double kLarge = 1e6;  // bytes
  double fastest = 0;
  for (const std::string_view stream : {device::stream_kind_name(kind), std::string_view()})
    if (fastest == 0)
      for (const plan::LinkTimes& l : calibration_.links)
        if (l.stream == stream) fastest = std::max(fastest, kLarge / l.seconds(kLarge));
  return fastest > 0 ? alone * std::min(1.0, 1 / (link_.seconds_per_byte * fastest)) : alone;
}

}  // namespace mtrain::predict
