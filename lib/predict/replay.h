// Replays what one rank has enqueued, with a time for each launch: each stream runs its items in
// order, and a wait ends after the item of the other stream that it names. The host enqueues one
// launch after the other.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/recording/records.h"
#include "plan/cluster.h"
#include "predict/launch_class.h"
#include "predict/launch_costs.h"

namespace mtrain::predict {

inline constexpr size_t kStreamKinds = size_t(device::StreamKind::tp) + 1;
using ByStreamKind = std::array<double, kStreamKinds>;

// The costs of all launches of a LaunchList.
struct LaunchPrices {
  std::vector<double> seconds;                              // by number
  std::vector<char> known;                                  // as LaunchCost
  std::vector<double> link, work, carried;                  // seconds, as LaunchCost
  std::vector<char> works_after, packet;                    // as LaunchCost
  double gap = 0, host = 0;                                 // seconds
  double wake = 0;                                          // seconds
  ByStreamKind slowdown{}, idle_share{}, beside_compute{};  // as LaunchCosts
};

// Launches, each kind of them once, with the links that they use. Sequences name them by number.
class LaunchList {
 public:
  // Returns the number of a launch like this one. `link` is null without a communication.
  uint32_t number_of(const device::LaunchRecord& launch, const plan::GroupLink* link);

  LaunchPrices price(const LaunchCosts& costs, const TogetherCosts& together = {}) const;
  size_t size() const { return launches_.size(); }
  LaunchWork work(uint32_t number) const;
  LaunchClass class_of(uint32_t number) const { return launches_[number].launch_class; }

 private:
  struct Launch {
    std::string name;
    LaunchWork work;  // without the name
    plan::GroupLink link;
    bool has_link;
    LaunchClass launch_class;
  };
  struct Key {
    const char* name;
    device::StreamId stream;
    DType dtype;
    int64_t flops, read, written, wire_bytes, ranks, domains, per_domain;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): false alarm
  };
  std::vector<Launch> launches_;
  std::map<Key, uint32_t> numbers_;
};

// Items of a record, in the order in which the host enqueues them.
class LaunchSequence {
 public:
  // `launch` is the item's number in a list; waits have none.
  void add(const device::LaunchRecord& item, uint32_t launch);
  bool empty() const { return items_.empty(); }

  struct Item {
    uint32_t launch = 0;
    uint16_t stream = 0;      // in streams()
    int16_t waits_for = -1;   // in streams(); -1: a launch
    uint32_t waits_item = 0;  // place among the items of that stream, from 1; 0: already over
    bool operator==(const Item&) const = default;
  };
  const std::vector<Item>& items() const { return items_; }
  const std::vector<device::StreamId>& streams() const { return streams_; }

 private:
  uint16_t stream(device::StreamId id);

  std::vector<Item> items_;
  std::vector<device::StreamId> streams_;
  std::vector<std::vector<uint64_t>> numbers_;  // [stream]: of its items in the record
};

// How long a rank takes, and why. `seconds` is the sum of `compute`, `gaps`, `idle` and `exposed`.
struct ReplayTimes {
  double seconds = 0;
  ByClass compute{};  // the compute stream is busy, by class
  double gaps = 0;    // it is idle, and no communication that it waits for runs
  double idle = 0;    // it waits for communication that itself waits for a later rank
  // It is idle, and waits for communication that runs (observe/exposure.h); never above `busy`.
  ByStreamKind exposed{};
  ByStreamKind busy{};  // times of the launches on each kind of stream
  double unknown = 0;   // the part of `compute` and `busy` whose cost is extrapolated

  // Adds another time, or a multiple of it.
  ReplayTimes& add(const ReplayTimes& more, double times = 1);
  // Makes the computations longer by so many seconds.
  void slow_down(double by);
  // Makes the parts of an extrapolated time positive, without a change of their sum.
  void make_positive();
};

enum class ReplayEnd {
  compute,     // ends with the compute stream; communication may still run
  all_streams  // ends with the last stream; until then compute waits for it
};

// When an item of a sequence ran, in seconds from the begin of the replay. A wait begins when its
// stream has nothing else to do.
struct ReplaySpan {
  double begin = 0, end = 0;
};

// The sequence begins with idle streams. If communication takes longer beside computations, a first
// replay shows which it is beside. Waits for items that are not in it are over. `spans`, if
// not null, gets the times of all items.
ReplayTimes replay(const LaunchSequence& sequence, const LaunchList& list,
                   const LaunchPrices& prices, ReplayEnd end,
                   std::vector<ReplaySpan>* spans = nullptr);

}  // namespace mtrain::predict
