// Orders the parts of a forward and of another micro-batch's backward that run together, so that
// the exchanges of experts' tokens in one pass travel while the other pass computes.
//
// There are two streams: the parts of both passes that compute go to one, the exchanges of both to
// the other. A part waits for the part before it in its pass, wherever that has run. The order is
// the one in which the host enqueues. It follows from the lists alone, so that all ranks that share
// the exchanges derive the same one: both passes exchange in one group, one call after the other,
// and so they do with the numbers that the host reads, in another group.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mtrain::schedule {

enum class PairPartKind { compute, exchange };

// A part of a forward or of a backward.
struct PairPart {
  PairPartKind kind = PairPartKind::compute;
  double cost = 0;  // on its stream: seconds, or any unit
  // The cost of the weight gradients that this part of a backward leaves behind. Nothing waits for
  // them. A part that leaves some must have a cost above 0 here: only then they have a step.
  double weight_cost = 0;
  // The share of them that, unless they are delayed, is computed before the next part can begin on
  // another stream.
  double weights_first = 1;
  // The host must read numbers that the part before has made before it can enqueue this part.
  bool host_waits = false;
  // How much of an exchange's cost each of its chunks takes again.
  double latency = 0;
  // How much of the cost of a part behind an exchange is computed before the part waits for it.
  double ahead = 0;
  // The layer of the stage that the part belongs to, by which the memory of both passes is bounded;
  // -1: none.
  int64_t layer = -1;
};

// The order lets the forward begin at most so many layers more than the backward has ended, and
// weight gradients of at most so many layers wait: this bounds what a pair holds beyond one
// micro-batch. A layer counts by its share of its pass, and parts without a layer are not bounded.
inline constexpr int64_t kLayersAhead = 2;

// What is enqueued next: the next part of a pass, or the weight gradients of a part of the
// backward: of the first part with weight_cost > 0 that still has some.
enum class PairStep : uint8_t { forward, backward, weight_gradients };

struct PairOptions {
  // Weight gradients are enqueued after all exchanges that can be, and fill gaps. Without it they
  // stand right behind their part, and the exchange that follows waits for the first of them, too.
  bool delay_wgrad = false;
};

// Returns the order of all parts of both passes and of the weight gradients. An exchange is
// enqueued as soon as the part before it is; a part that waits for an exchange is enqueued when
// there is no other work for the compute stream. Before the host waits for numbers it enqueues what
// the other pass can compute meanwhile. Each list may be empty: then the other pass runs alone.
// In the simulation the order takes no longer than plain_pair_order() and alternating_pair_order()
// where these keep the bounds of memory, and delayed weight gradients do not make it longer.
std::vector<PairStep> pair_order(std::span<const PairPart> forward,
                                 std::span<const PairPart> backward, const PairOptions& options);

// Returns the orders to compare with: one pass after the other, and both in turns, in which each
// enqueues a part that computes and the exchanges behind it.
enum class FirstPass { forward, backward };
std::vector<PairStep> plain_pair_order(std::span<const PairPart> forward,
                                       std::span<const PairPart> backward,
                                       const PairOptions& options,
                                       FirstPass first = FirstPass::forward);
std::vector<PairStep> alternating_pair_order(std::span<const PairPart> forward,
                                             std::span<const PairPart> backward,
                                             const PairOptions& options);

// What a pass keeps of a layer from its forward to its backward, in bytes or any unit, and how much
// of that its weight gradients need.
struct LayerMemory {
  double kept = 0, waiting = 0;
};
// Returns the most that an order holds at once beyond all layers of the backward: what the forward
// has filled, less what the backward has freed. All parts must name their layers, which index
// `forward_layers` and `backward_layers`.
double pair_memory(std::span<const PairStep> order, std::span<const PairPart> forward,
                   std::span<const PairPart> backward, std::span<const LayerMemory> forward_layers,
                   std::span<const LayerMemory> backward_layers);

struct PairStepTime {
  double begin = 0, end = 0;
  bool exchange = false;  // which of the two streams it keeps busy
};

struct PairTimeline {
  std::vector<PairStepTime> steps;    // of each step of the order
  double length = 0;                  // from the first begin to the last end
  double compute = 0, exchanges = 0;  // how long each stream is busy
  // How long the compute stream stands still: it does so for exchanges alone.
  double exposed() const { return length - compute; }
};

// Plays the order: each stream takes its steps in the order in which they were enqueued, and
// enqueuing takes no time. The numbers that the host reads are taken to travel in no time, beside
// the exchanges. An exchange begins when the part before it has ended, and with it the share
// weights_first of its weight gradients if they were enqueued between the two. BugError for an
// order whose steps are not those of the lists.
PairTimeline simulate_pair(std::span<const PairStep> order, std::span<const PairPart> forward,
                           std::span<const PairPart> backward);

// Returns what is wrong with an order, nothing if it can be run and is a good one:
//  - All parts are enqueued once, and all weight gradients, behind their parts.
//  - Without delay_wgrad they stand right behind their part.
//  - No part that computes stands between an exchange and the part before it; the host may only
//    enqueue parts of the other pass before it waits for numbers.
//  - The bounds of memory are kept.
//  - While the compute stream waits for an exchange, nothing stands behind that it could compute
//    meanwhile. What takes longer than the wait may be better kept for another.
// An order of pair_order() has none of these but in rare lists, in which a part that could be
// computed meanwhile would send its exchange in front of one that matters more.
std::vector<std::string> pair_faults(std::span<const PairStep> order,
                                     std::span<const PairPart> forward,
                                     std::span<const PairPart> backward,
                                     const PairOptions& options);

}  // namespace mtrain::schedule
