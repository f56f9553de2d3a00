// Orders the parts of a forward and of another micro-batch's backward that run together: the
// exchanges of experts' tokens in one pass travel while the other pass computes.
//
// There are two streams: one for the compute parts of both passes, one for their exchanges. A part
// waits for the part before it in its pass, on whichever stream that part has run. The order is the
// one in which the host enqueues. It depends only on the lists, because all ranks that share the
// exchanges must derive the same order: both passes exchange in one group, one call after another.
// The same holds for the numbers that the host reads, which have a group of their own.
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
  // The cost of the weight gradients of this part of a backward. Nothing waits for them. A part
  // with weight gradients must have a cost above 0 here: only then do they have a step.
  double weight_cost = 0;
  // The share of weight_cost that is computed before the next part can begin on another stream,
  // unless weight gradients are delayed.
  double weights_first = 1;
  // The host must read numbers from the part before it can enqueue this part.
  bool host_waits = false;
  // The part of an exchange's cost that each of its chunks takes in full.
  double latency = 0;
  // The part of the cost that runs before this part waits for the exchange before it.
  double ahead = 0;
  // The layer of the stage that the part belongs to; -1: none. The bound of memory counts layers.
  int64_t layer = -1;
};

// The forward begins at most this many layers more than the backward has ended, and the weight
// gradients of at most this many layers wait. This bounds the memory of a pair beyond that of one
// micro-batch. A layer counts as its share of its pass; parts without a layer are not bounded.
inline constexpr int64_t kLayersAhead = 2;

// What is enqueued next: the next part of a pass, or the weight gradients of a part of the
// backward. These are of the first part whose weight_cost is above 0 and which still has them.
enum class PairStep : uint8_t { forward, backward, weight_gradients };

struct PairOptions {
  // Weight gradients are enqueued after all exchanges that can be, and fill gaps. Otherwise they
  // directly follow their part, and the exchange that follows also waits for the first of them.
  bool delay_wgrad = false;
};

// Returns the order of all parts of both passes and of the weight gradients. An exchange is
// enqueued as soon as the part before it is; a part that waits for an exchange is enqueued when
// there is no other work for the compute stream. Before the host waits for numbers, it enqueues
// what the other pass can compute in the meantime. Each list may be empty: the other pass then runs
// alone. In the simulation the order takes no longer than plain_pair_order() and
// alternating_pair_order() if these stay within the bounds of memory. Delayed weight gradients do
// not make it longer.
std::vector<PairStep> pair_order(std::span<const PairPart> forward,
                                 std::span<const PairPart> backward, const PairOptions& options);

// Return reference orders: one pass after the other; and both in turns, where each turn enqueues a
// compute part and the exchanges after it.
enum class FirstPass { forward, backward };
std::vector<PairStep> plain_pair_order(std::span<const PairPart> forward,
                                       std::span<const PairPart> backward,
                                       const PairOptions& options,
                                       FirstPass first = FirstPass::forward);
std::vector<PairStep> alternating_pair_order(std::span<const PairPart> forward,
                                             std::span<const PairPart> backward,
                                             const PairOptions& options);

// What a pass keeps of a layer from its forward to its backward (`kept`), in bytes or any unit, and
// how much of that its weight gradients need (`waiting`).
struct LayerMemory {
  double kept = 0, waiting = 0;
};
// Returns the peak memory of an order beyond all layers of the backward: what the forward has
// filled, minus what the backward has freed. All parts must name their layers, which index
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
  // How long the compute stream is idle; it waits only for exchanges.
  double exposed() const { return length - compute; }
};

// Simulates the order: each stream runs its steps in the order in which they were enqueued, and
// enqueuing takes no time. The numbers that the host reads travel in no time, independently of the
// exchanges. An exchange begins when the part before it has ended, together with the share
// weights_first of that part's weight gradients if these were enqueued between the two. Throws
// BugError for an order whose steps are not those of the lists.
PairTimeline simulate_pair(std::span<const PairStep> order, std::span<const PairPart> forward,
                           std::span<const PairPart> backward);

// Returns what is wrong with an order; nothing if it can be run and is a good one:
//  - All parts are enqueued once, and all weight gradients, after their parts.
//  - Without delay_wgrad, weight gradients directly follow their part.
//  - No compute part is between an exchange and the part before it. The host may only enqueue parts
//    of the other pass before it waits for numbers.
//  - The bounds of memory hold.
//  - While the compute stream waits for an exchange, it has no later step that would fit into the
//    wait. A step that takes longer than the wait may be better kept for another wait.
// An order of pair_order() violates these only for rare lists: there, a part that fits into a wait
// would send its exchange ahead of a more important one.
std::vector<std::string> pair_faults(std::span<const PairStep> order,
                                     std::span<const PairPart> forward,
                                     std::span<const PairPart> backward,
                                     const PairOptions& options);

}  // namespace mtrain::schedule
