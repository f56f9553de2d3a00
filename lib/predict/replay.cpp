#include "predict/replay.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace mtrain::predict {

namespace {

double sum(const device::BytesByCategory& bytes) {
  return double(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
}

}  // namespace

uint32_t LaunchList::number_of(const device::LaunchRecord& r, const plan::GroupLink* link) {
  const double read = sum(r.read), written = sum(r.written);
  const Key key{r.name,
                r.stream,
                r.dtype,
                r.flops,
                int64_t(read),
                int64_t(written),
                r.wire_bytes,
                link ? link->ranks : 0,
                link ? link->domains : 0,
                link ? link->per_domain : 0};
  const auto [known, added] = numbers_.emplace(key, uint32_t(launches_.size()));
  if (!added) return known->second;
  LaunchWork work{.stream = r.stream,
                  .dtype = r.dtype,
                  .flops = double(r.flops),
                  .read = read,
                  .written = written,
                  .wire_bytes = double(r.wire_bytes),
                  .ranks = link ? link->ranks : 0};
  work.name = r.name;
  const LaunchClass launch_class = predict::class_of(work);
  work.name = {};
  launches_.push_back(
      {r.name, work, link ? *link : plan::GroupLink{}, link != nullptr, launch_class});
  return known->second;
}

LaunchWork LaunchList::work(uint32_t number) const {
  LaunchWork work = launches_[number].work;
  work.name = launches_[number].name;
  return work;
}

LaunchPrices LaunchList::price(const LaunchCosts& costs) const {
  LaunchPrices prices{.gap = costs.gap_seconds(), .host = costs.host_seconds()};
  prices.seconds.reserve(size());
  for (uint32_t i = 0; i < size(); ++i) {
    const LaunchCost cost =
        costs.cost(work(i), launches_[i].has_link ? &launches_[i].link : nullptr);
    prices.seconds.push_back(cost.seconds);
    prices.known.push_back(cost.known ? 1 : 0);
  }
  for (size_t kind = 0; kind < kStreamKinds; ++kind)
    if (communicates(device::StreamKind(kind)))
      prices.slowdown[kind] = costs.slowdown(device::StreamKind(kind));
  return prices;
}

uint16_t LaunchSequence::stream(device::StreamId id) {
  const auto known = std::ranges::find(streams_, id);
  if (known != streams_.end()) return uint16_t(known - streams_.begin());
  streams_.push_back(id);
  numbers_.emplace_back();
  return uint16_t(streams_.size() - 1);
}

void LaunchSequence::add(const device::LaunchRecord& r, uint32_t launch) {
  Item item{.launch = launch, .stream = stream(r.stream)};
  if (r.waits_for) {
    item.waits_for = int16_t(stream(*r.waits_for));
    const std::vector<uint64_t>& numbers = numbers_[size_t(item.waits_for)];
    item.waits_item = uint32_t(std::ranges::upper_bound(numbers, r.waits_number) - numbers.begin());
  }
  numbers_[item.stream].push_back(r.number);
  items_.push_back(item);
}

ReplayTimes& ReplayTimes::add(const ReplayTimes& more, double times) {
  seconds += times * more.seconds;
  gaps += times * more.gaps;
  unknown += times * more.unknown;
  for (size_t i = 0; i < compute.size(); ++i) compute[i] += times * more.compute[i];
  for (size_t i = 0; i < exposed.size(); ++i) {
    exposed[i] += times * more.exposed[i];
    busy[i] += times * more.busy[i];
  }
  return *this;
}

namespace {

// Times in which communication runs, for computations that it slows down. Both come in the order of
// time: those of a stream, and the computations.
class Contention {
 public:
  explicit Contention(const ByStreamKind& slowdown)
      : slowdown_(slowdown), any_(std::ranges::any_of(slowdown, [](double s) { return s > 0; })) {}

  void runs(device::StreamKind kind, double begin, double end) {
    if (any_ && slowdown_[size_t(kind)] > 0 && end > begin)
      intervals_.push_back({begin, end, slowdown_[size_t(kind)]});
  }

  // Returns when a computation ends that begins now and takes so long alone.
  double end_of(double begin, double seconds) {
    if (!any_) return begin + seconds;
    std::erase_if(intervals_, [&](const Interval& i) { return i.end <= begin; });
    double now = begin, left = seconds;
    while (true) {
      // Several communications slow a computation down like the one that does it most.
      double slowdown = 0, next = std::numeric_limits<double>::infinity();
      for (const Interval& i : intervals_) {
        if (i.end <= now) continue;
        if (i.begin <= now) slowdown = std::max(slowdown, i.slowdown);
        next = std::min(next, i.begin <= now ? i.end : i.begin);
      }
      const double end = now + left * (1 + slowdown);
      if (end <= next) return end;
      left -= (next - now) / (1 + slowdown);
      now = next;
    }
  }

 private:
  struct Interval {
    double begin, end, slowdown;
  };
  const ByStreamKind slowdown_;
  const bool any_;
  std::vector<Interval> intervals_;
};

}  // namespace

ReplayTimes replay(const LaunchSequence& sequence, const LaunchList& list,
                   const LaunchPrices& prices, ReplayEnd until, std::vector<ReplaySpan>* spans) {
  struct Stream {
    device::StreamKind kind;
    double free = 0;
    std::vector<double> ends{};  // of its items
  };
  std::vector<Stream> streams;
  for (const device::StreamId id : sequence.streams()) streams.push_back({id.kind});
  ReplayTimes times;
  Contention contention(prices.slowdown);
  double host = 0;
  const auto waited = [&](device::StreamKind for_kind, double seconds) {
    (communicates(for_kind) ? times.exposed[size_t(for_kind)] : times.gaps) += seconds;
  };
  for (const LaunchSequence::Item& item : sequence.items()) {
    Stream& s = streams[item.stream];
    const bool computes = s.kind == device::StreamKind::compute;
    double began = s.free;
    if (item.waits_for >= 0) {
      const Stream& other = streams[size_t(item.waits_for)];
      const double over = item.waits_item > 0 ? other.ends[item.waits_item - 1] : 0;
      if (computes && over > s.free) waited(other.kind, over - s.free);
      s.free = std::max(s.free, over);
    } else {
      host += prices.host;
      const double seconds = prices.seconds[item.launch],
                   begin = std::max(s.free + prices.gap, host);
      double end = begin + seconds;
      began = begin;
      if (computes) {
        end = contention.end_of(begin, seconds);
        times.gaps += begin - s.free;
        times.compute[size_t(list.class_of(item.launch))] += end - begin;
      } else {
        contention.runs(s.kind, begin, end);
      }
      times.busy[size_t(s.kind)] += end - begin;
      if (!prices.known[item.launch]) times.unknown += end - begin;
      s.free = end;
    }
    s.ends.push_back(s.free);
    if (spans) spans->push_back({began, s.free});
  }
  const Stream* last = nullptr;
  for (const Stream& s : streams) {
    if (s.kind == device::StreamKind::compute) times.seconds = std::max(times.seconds, s.free);
    if (!last || s.free > last->free) last = &s;
  }
  if (until == ReplayEnd::all_streams && last && last->free > times.seconds) {
    waited(last->kind, last->free - times.seconds);
    times.seconds = last->free;
  }
  return times;
}

}  // namespace mtrain::predict
