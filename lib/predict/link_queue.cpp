#include "predict/link_queue.h"

#include <algorithm>

namespace mtrain::predict {

namespace {

class Link {
 public:
  // Returns when the link begins to carry data that are ready now.
  double begin(double ready, double seconds, bool packet) {
    const double begin = std::max(ready, packet ? packets_free_ : free_);
    free_ = std::max(ready, free_) + seconds;
    if (packet) packets_free_ = begin + seconds;
    return begin;
  }

 private:
  double free_ = 0, packets_free_ = 0;
};

// What a stream has to do, in its order.
struct StreamQueue {
  std::vector<uint32_t> items;
  std::vector<double> ends{};  // of the items that have run
  double free = 0;

  bool over() const { return ends.size() == items.size(); }
  uint32_t next() const { return items[ends.size()]; }
};

class Queues {
 public:
  Queues(const LaunchSequence& sequence, const LaunchPrices& prices)
      : items_(sequence.items()), streams_(sequence.streams()), prices_(prices) {
    queues_.resize(streams_.size());
    double host = 0;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      if (items_[i].waits_for < 0) host += prices.host;
      enqueued_.push_back(host);
      queues_[items_[i].stream].items.push_back(i);
    }
  }

  std::vector<double> waits() {
    std::vector<double> waits(items_.size());
    while (StreamQueue* queue = first()) {
      const uint32_t number = queue->next(), launch = items_[number].launch;
      const double begun = begin(*queue, number);
      double end = begun + prices_.seconds[launch];
      if (prices_.link[launch] > 0) {
        waits[number] =
            link_.begin(begun, prices_.link[launch], prices_.packet[launch] != 0) - begun;
        const double carried = begun + waits[number] + prices_.carried[launch];
        end = prices_.works_after[launch] ? carried + prices_.work[launch]
                                          : std::max(carried, begun + prices_.work[launch]);
      }
      queue->free = end;
      queue->ends.push_back(end);
    }
    return waits;
  }

 private:
  double begin(const StreamQueue& queue, uint32_t number) const {
    return std::max(queue.free + prices_.gap, enqueued_[number]);
  }

  // When a launch takes its place on the link, or begins if it does not use it.
  double place(const StreamQueue& queue) const {
    const uint32_t number = queue.next(), launch = items_[number].launch;
    const bool collective = prices_.link[launch] > 0 && !prices_.works_after[launch];
    return begin(queue, number) + (collective ? prices_.work[launch] : 0);
  }

  bool at_wait(const StreamQueue& queue) const {
    return !queue.over() && items_[queue.next()].waits_for >= 0;
  }

  // Ends the wait at the head of a stream if what it waits for has run.
  bool pass_wait(StreamQueue& queue) {
    const LaunchSequence::Item& item = items_[queue.next()];
    const StreamQueue& other = queues_[size_t(item.waits_for)];
    if (other.ends.size() < item.waits_item) return false;
    const double end = item.waits_item > 0 ? other.ends[item.waits_item - 1] : 0;
    if (end > queue.free) {
      const bool wakes = streams_[item.stream].kind == device::StreamKind::compute &&
                         communicates(streams_[size_t(item.waits_for)].kind);
      queue.free = end + (wakes ? prices_.wake : 0);
    }
    queue.ends.push_back(queue.free);
    return true;
  }

  // Returns the stream whose next launch is the first in time; null if all have run.
  StreamQueue* first() {
    for (bool passed = true; passed;) {
      passed = false;
      for (StreamQueue& q : queues_)
        while (at_wait(q) && pass_wait(q)) passed = true;
    }
    StreamQueue* first = nullptr;
    for (StreamQueue& q : queues_)
      if (!q.over() && !at_wait(q) && (!first || place(q) < place(*first))) first = &q;
    return first;
  }

  const std::vector<LaunchSequence::Item>& items_;
  const std::vector<device::StreamId>& streams_;
  const LaunchPrices& prices_;
  std::vector<StreamQueue> queues_;
  std::vector<double> enqueued_;  // when the host has enqueued each item
  Link link_;
};

}  // namespace

std::vector<double> link_waits(const LaunchSequence& sequence, const LaunchPrices& prices) {
  const bool used = std::ranges::any_of(sequence.items(), [&](const LaunchSequence::Item& item) {
    return item.waits_for < 0 && prices.link[item.launch] > 0;
  });
  if (!used) return {};
  return Queues(sequence, prices).waits();
}

}  // namespace mtrain::predict
