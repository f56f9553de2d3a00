#include "predict/replay.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/error.h"
#include "predict/contention.h"
#include "predict/link_queue.h"
#include "predict/longer_work.h"

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

LaunchPrices LaunchList::price(const LaunchCosts& costs, const TogetherCosts& together) const {
  LaunchPrices prices{
      .gap = costs.gap_seconds(), .host = costs.host_seconds(), .wake = together.wake_s};
  prices.seconds.reserve(size());
  for (uint32_t i = 0; i < size(); ++i) {
    const LaunchCost cost =
        costs.cost(work(i), launches_[i].has_link ? &launches_[i].link : nullptr);
    const device::StreamKind kind = launches_[i].work.stream.kind;
    const bool message = launches_[i].has_link && kind == device::StreamKind::pp_send;
    prices.seconds.push_back(launches_[i].has_link ? cost.seconds + (message ? together.wake_s : 0)
                                                   : cost.seconds * (1 + together.longer));
    prices.known.push_back(cost.known ? 1 : 0);
    prices.link.push_back(cost.link_s);
    prices.packet.push_back(cost.packet ? 1 : 0);
    prices.work.push_back(cost.work_s);
    prices.carried.push_back(cost.carried_s);
    prices.works_after.push_back(cost.works_after ? 1 : 0);
  }
  for (size_t kind = 0; kind < kStreamKinds; ++kind)
    if (communicates(device::StreamKind(kind))) {
      prices.slowdown[kind] = costs.slowdown(device::StreamKind(kind));
      prices.idle_share[kind] = costs.idle_share(device::StreamKind(kind));
      prices.beside_compute[kind] = costs.beside_compute(device::StreamKind(kind));
    }
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
  idle += times * more.idle;
  unknown += times * more.unknown;
  for (size_t i = 0; i < compute.size(); ++i) compute[i] += times * more.compute[i];
  for (size_t i = 0; i < exposed.size(); ++i) {
    exposed[i] += times * more.exposed[i];
    busy[i] += times * more.busy[i];
  }
  return *this;
}

void ReplayTimes::slow_down(double by) {
  const double computed = std::accumulate(compute.begin(), compute.end(), 0.0);
  if (computed <= 0) return;
  for (double& part : compute) part *= 1 + by / computed;
  busy[size_t(device::StreamKind::compute)] += by;
  seconds += by;
}

void ReplayTimes::make_positive() {
  double positive = 0;
  const auto for_parts = [&](const auto& f) {
    for (double& part : compute) f(part);
    for (double& part : exposed) f(part);
    f(gaps);
    f(idle);
  };
  for_parts([&](double& part) { positive += part = std::max(0.0, part); });
  seconds = std::max(0.0, seconds);
  for_parts([&](double& part) { part *= positive > 0 ? seconds / positive : 0; });
  for (size_t i = 0; i < busy.size(); ++i) busy[i] = std::max(busy[i], exposed[i]);
  unknown = std::max(0.0, unknown);
}

namespace {

struct Interval {
  double begin, end;
};

// By how much other ranks are later. They lose time while they compute, and are even again once
// compute has waited for their communication.
class LateRanks {
 public:
  // Returns how long a communication waits that needs the computations so far.
  double seconds(double computed, double share) const {
    return share * std::max(0.0, computed - even_);
  }
  void even_at(double computed) { even_ = std::max(even_, computed); }

 private:
  double even_ = 0;
};

// Removes the times of `runs` from `left`, and returns how long they are. Both are in the order of
// time.
double remove(const std::vector<Interval>& runs, std::vector<Interval>& left) {
  double removed = 0;
  std::vector<Interval> rest;
  for (const Interval& piece : left) {
    double at = piece.begin;
    auto run =
        std::ranges::partition_point(runs, [&](const Interval& r) { return r.end <= piece.begin; });
    for (; run != runs.end() && run->begin < piece.end; ++run) {
      const double begin = std::max(at, run->begin), end = std::min(piece.end, run->end);
      if (begin > at) rest.push_back({at, begin});
      removed += end - begin;
      at = end;
    }
    if (at < piece.end) rest.push_back({at, piece.end});
  }
  left = std::move(rest);
  return removed;
}

struct ReplayedItem {
  double end = 0;
  double computed = 0, ready = 0;  // the computing before it: how much, and until when
};

struct ReplayedStream {
  device::StreamKind kind;
  double free = 0, computed = 0, ready = 0;
  std::vector<ReplayedItem> items{};
  std::vector<Interval> runs{};   // of its launches, if it communicates
  std::vector<Interval> lates{};  // in which they wait for other ranks
};

// Compute is idle from `begin` on, until an item of a stream has ended. Only the times in which
// communication runs are exposed: first that of the stream itself, then what it may have waited
// for.
void add_wait(double begin, const ReplayedItem& item, const ReplayedStream& waited,
              const std::vector<ReplayedStream>& streams, ReplayTimes& times) {
  std::vector<Interval> left{{begin, item.end}};
  const auto expose = [&](const ReplayedStream& s) {
    if (!s.runs.empty()) times.exposed[size_t(s.kind)] += remove(s.runs, left);
  };
  expose(waited);
  for (const ReplayedStream& s : streams) expose(s);
  for (const ReplayedStream& s : streams) times.idle += remove(s.lates, left);
  for (const Interval& i : left) times.gaps += i.end - i.begin;
}

// A communication without its link: all that it takes, or what it works before or after the link
// has carried its data.
double own_seconds(const LaunchPrices& prices, uint32_t launch) {
  if (prices.carried[launch] == 0) return prices.seconds[launch];
  return prices.works_after[launch] ? prices.seconds[launch] - prices.carried[launch]
                                    : prices.work[launch];
}

// Returns when a communication ends that begins at `begin`, whose data wait for others on the link,
// and that works `longer` than its price.
double communicated(const LaunchPrices& prices, uint32_t launch, double begin, double waits,
                    double longer) {
  const double own = own_seconds(prices, launch) + longer;
  if (prices.carried[launch] == 0) return begin + own;
  const double carried = begin + waits + prices.carried[launch];
  return prices.works_after[launch] ? carried + own : std::max(carried, begin + own);
}

// Replays with communications that wait for the link and work longer, by item. Empty: none does.
ReplayTimes replay_with(const std::vector<double>& waits, const std::vector<double>& longer,
                        const LaunchSequence& sequence, const LaunchList& list,
                        const LaunchPrices& prices, ReplayEnd until,
                        std::vector<ReplaySpan>* spans) {
  std::vector<ReplayedStream> streams;
  for (const device::StreamId id : sequence.streams()) streams.push_back({id.kind});
  ReplayTimes times;
  Contention contention(prices.slowdown);
  LateRanks late_ranks;
  const auto of_item = [](const std::vector<double>& seconds, size_t number) {
    return seconds.empty() ? 0 : seconds[number];
  };
  double host = 0;
  for (size_t number = 0; number < sequence.items().size(); ++number) {
    const LaunchSequence::Item& item = sequence.items()[number];
    ReplayedStream& s = streams[item.stream];
    const bool computes = s.kind == device::StreamKind::compute;
    double began = s.free;
    if (item.waits_for >= 0) {
      const ReplayedStream& other = streams[size_t(item.waits_for)];
      const ReplayedItem over =
          item.waits_item > 0 ? other.items[item.waits_item - 1] : ReplayedItem{};
      if (computes && over.end > s.free) {
        add_wait(s.free, over, other, streams, times);
        if (prices.idle_share[size_t(other.kind)] > 0) late_ranks.even_at(over.computed);
        if (communicates(other.kind)) {
          times.gaps += prices.wake;
          s.free = over.end + prices.wake;
        }
      }
      s.free = std::max(s.free, over.end);
      s.computed = std::max(s.computed, over.computed);
      s.ready = std::max(s.ready, over.ready);
    } else {
      host += prices.host;
      began = std::max(s.free + prices.gap, host);
      const double share = prices.idle_share[size_t(s.kind)];
      if (const double others = s.ready + late_ranks.seconds(s.computed, share);
          share > 0 && others > began) {
        s.lates.push_back({began, others});
        began = others;
      }
      double end = 0;
      if (computes) {
        end = contention.end_of(began, prices.seconds[item.launch]);
        times.gaps += began - s.free;
        times.compute[size_t(list.class_of(item.launch))] += end - began;
        s.computed += end - began;
      } else {
        end = communicated(prices, item.launch, began, of_item(waits, number),
                           of_item(longer, number));
        contention.runs(s.kind, began, end);
        if (communicates(s.kind) && end > began) s.runs.push_back({began, end});
      }
      times.busy[size_t(s.kind)] += end - began;
      if (!prices.known[item.launch]) times.unknown += end - began;
      s.free = end;
      if (computes) s.ready = end;
    }
    s.items.push_back({.end = s.free, .computed = s.computed, .ready = s.ready});
    if (spans) spans->push_back({began, s.free});
  }
  const ReplayedStream* last = nullptr;
  for (const ReplayedStream& s : streams) {
    if (s.kind == device::StreamKind::compute) times.seconds = std::max(times.seconds, s.free);
    if (!last || s.free > last->free) last = &s;
  }
  if (until == ReplayEnd::all_streams && last && last->free > times.seconds) {
    add_wait(times.seconds, last->items.back(), *last, streams, times);
    times.seconds = last->free;
  }
  return times;
}

// Returns when the work of a communication with this span begins. A message first waits for its
// link.
double works_from(const LaunchPrices& prices, uint32_t launch, const ReplaySpan& span) {
  if (prices.carried[launch] > 0 && !prices.works_after[launch]) return span.begin;
  return span.end - own_seconds(prices, launch);
}

// Counts the items of each stream that are over when an item ends, because their stream or a wait
// orders them before it.
class ItemsBefore {
 public:
  explicit ItemsBefore(const LaunchSequence& sequence) : streams_(sequence.streams().size()) {
    std::vector<std::vector<size_t>> items(streams_);  // of each stream: their numbers
    for (size_t i = 0; i < sequence.items().size(); ++i) {
      const LaunchSequence::Item& item = sequence.items()[i];
      std::vector<size_t>& own = items[item.stream];
      over_.resize((i + 1) * streams_);
      if (!own.empty()) add(i, own.back());
      if (item.waits_for >= 0 && item.waits_item > 0)
        add(i, items[size_t(item.waits_for)][item.waits_item - 1]);
      own.push_back(i);
      over_[i * streams_ + item.stream] = uint32_t(own.size());
    }
  }

  // Returns how many items of the stream are over.
  uint32_t of_stream(size_t stream, size_t item) const { return over_[item * streams_ + stream]; }

 private:
  void add(size_t item, size_t before) {
    for (size_t s = 0; s < streams_; ++s) {
      uint32_t& over = over_[item * streams_ + s];
      over = std::max(over, over_[before * streams_ + s]);
    }
  }

  size_t streams_;
  std::vector<uint32_t> over_;  // [item][stream]
};

// Returns for each item by how much its work takes longer, because computations are beside it by
// `spans`.
std::vector<double> longer_by_item(const LaunchSequence& sequence, const LaunchPrices& prices,
                                   const std::vector<ReplaySpan>& spans) {
  const auto kind_of = [&](const LaunchSequence::Item& item) {
    return sequence.streams()[item.stream].kind;
  };
  const ItemsBefore before(sequence);
  std::vector<ComputingTime> computing;
  std::vector<size_t> computations;  // their items
  for (size_t i = 0; i < spans.size(); ++i)
    if (const LaunchSequence::Item& item = sequence.items()[i];
        item.waits_for < 0 && kind_of(item) == device::StreamKind::compute) {
      computing.push_back({spans[i].begin, spans[i].end});
      computations.push_back(i);
    }
  std::vector<double> longer(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    const LaunchSequence::Item& item = sequence.items()[i];
    if (item.waits_for >= 0) continue;
    const double work = prices.work[item.launch],
                 more = prices.beside_compute[size_t(kind_of(item))];
    if (work <= 0 || more <= 0) continue;
    // Computations that wait for it are not beside it, however long it takes.
    const auto waiting = std::ranges::partition_point(computations, [&](size_t c) {
      return before.of_stream(item.stream, c) < before.of_stream(item.stream, i);
    });
    const auto others = std::span(computing).first(size_t(waiting - computations.begin()));
    longer[i] = longer_beside(works_from(prices, item.launch, spans[i]), work, others, more);
  }
  return longer;
}

}  // namespace

ReplayTimes replay(const LaunchSequence& sequence, const LaunchList& list,
                   const LaunchPrices& prices, ReplayEnd until, std::vector<ReplaySpan>* spans) {
  const std::vector<double> waits = link_waits(sequence, prices);
  if (std::ranges::all_of(prices.beside_compute, [](double more) { return more == 0; }))
    return replay_with(waits, {}, sequence, list, prices, until, spans);
  std::vector<ReplaySpan> first;
  replay_with(waits, {}, sequence, list, prices, until, &first);
  return replay_with(waits, longer_by_item(sequence, prices, first), sequence, list, prices, until,
                     spans);
}

}  // namespace mtrain::predict
