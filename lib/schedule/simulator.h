// Simulates a schedule's lists with a cost for each action. Each rank runs its list in order, and a
// receive waits for its message. Play the lists that the executor runs (schedule/lower.h,
// executed()).
#pragma once
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "schedule/action.h"
#include "schedule/expert_parts.h"

namespace mtrain::schedule {

// What communicates beside a rank's computations, each in an order of its own.
enum class Lane { tp, cp, ep, dp, pp_send, pp_receive };
inline constexpr size_t kLanes = 6;

// Communication inside of a computation. `exposed` is the part of `busy` that the computation waits
// for; its own time includes that.
struct InsideCost {
  double busy = 0, exposed = 0;
};

struct StageCost {
  double F = 1, I = 1, W = 1;  // seconds, or any unit; B takes I + W
  // On the dp lane: of an unshard, and of the reduction of the gradients, which begins after the
  // stage's last backward.
  double gather = 0, reduce = 0;
  struct Inside {
    InsideCost F = {}, I = {}, W = {};
  };
  // dp: gathers for each use, as without unshard actions. ep: the exchanges, unless `parts` has
  // them.
  Inside tp = {}, cp = {}, ep = {}, dp = {};
};

// What a message from one rank to another takes, as the p2p figures of ScheduleCosts. The messages
// of a rank over one link follow each other.
struct MessageCost {
  double latency = 0, transfer = 0;
  int64_t link = 0;
};

// Actions that run together: the forward's stage, the backward's, and the kind of the backward.
using PairKey = std::tuple<int64_t, int64_t, ActionKind>;

struct ScheduleCosts {
  std::vector<StageCost> stages{StageCost{}};  // by stage; one entry stands for all of them
  // A message keeps the link from one rank to the other busy for `p2p_transfer` (bytes /
  // bandwidth), and arrives `p2p_latency` after that. The next message of the same sender to the
  // same receiver begins when it has arrived: both are in the order of one stream.
  double p2p_latency = 0, p2p_transfer = 0;
  // A rank has one link for the messages to all others, as comm.link emulates it.
  bool one_link = false;
  // By sender and receiver: messages that do not take the figures above.
  std::map<std::pair<int64_t, int64_t>, MessageCost> messages;
  // [rank][action]: by how much the message of a send arrives later than by these figures. Empty:
  // no message does. Messages to other ranks do not begin later: each has a stream of its own.
  std::vector<std::vector<double>> message_delays;
  // The share of W that a B computes after its input gradient has been sent. Without overlap
  // nothing is sent before the B ends.
  double delayed_wgrad = 0;
  // A forward and a backward that run together take this share of their times, and end together.
  // But with PairedGradient::at_once the gradient is sent while the last `forward_tail` of the
  // forward still runs.
  double together = 1, forward_tail = 0;
  std::map<PairKey, double> pairs;  // shares that differ from `together`
  PairedGradient paired_gradient = PairedGradient::at_end;
  // Without overlap a sender computes nothing until its message has arrived, as in the lists of
  // with_batched_messages(). A message begins when its sender reaches it; in the simulation it does
  // not wait for its receiver.
  bool overlap_p2p = true;
  // An unshard begins once all but this many of the computations before it have ended: the host
  // runs at most so far ahead (pipeline/executor.cpp).
  size_t run_ahead = 8;
  // The parts of each stage's F, B and I, if experts exchange tokens; one entry stands for all
  // stages. Their times replace F, I and `together`; only W still takes StageCost::W. A forward and
  // a backward that run together are ordered by pair_order(), or take turns. Other actions are
  // simulated by simulate_pass() in `exchange_chunks`. Without parts there are no exchanges.
  std::vector<StageParts> parts;
  // The same parts with the costs by which passes are ordered, since a run orders them by the
  // plan's estimates. Empty: those of `parts`.
  std::vector<StageParts> estimates;
  PairOptions pair;
  bool pairs_take_turns = false;  // as without overlap_moe_expert_parallel_comm
  int64_t exchange_chunks = 1;
};

struct ActionTime {
  double begin = 0, end = 0;
};

// An exchange of experts' tokens in an action, concurrent with the rank's computations.
struct ExchangeTime {
  size_t action = 0;
  double begin = 0, end = 0;
};

// How long exchanges of all ranks last, and how long ranks are idle because of them.
struct Exposure {
  double exchanges = 0, exposed = 0;
  double share() const { return exchanges > 0 ? exposed / exchanges : 0; }
};

// Communication of a rank that belongs to an action, concurrent with its computations. A
// computation waits for `exposed` of the communication inside of it; when is unknown.
struct LaneTime {
  Lane lane;
  size_t action;
  double begin = 0, end = 0;
  double exposed = 0;
};

// For each lane of a rank, how long it is busy, and how long the rank computes nothing because of
// it. Time in which a rank waits for another rank's computations belongs to no lane.
struct LaneSums {
  std::array<double, kLanes> busy{}, exposed{};
};

struct Timeline {
  // [rank][action]. Two actions that run together are listed one after the other: the first has its
  // compute time, and the second ends with the pair.
  std::vector<std::vector<ActionTime>> times;
  std::vector<double> busy;                          // [rank], computing
  std::vector<std::vector<ExchangeTime>> exchanges;  // [rank], in the order of their stream
  Exposure paired, unpaired;                         // in actions that run together, and in others
  std::vector<std::vector<LaneTime>> lanes;          // [rank]; without `exchanges`
  std::vector<LaneSums> sums;                        // [rank]
  double step = 0;  // from the first action's begin to the end of the last one and of all lanes

  double bubble() const;  // idle time / total time, over all ranks
};

// A rank that waits forever, and the position in its list where it does.
struct StuckRank {
  int64_t rank;
  size_t action;
};

// Simulates lists with sends and receives, whose numbers must be in range. `stuck` gets the ranks
// that do not reach the end of their lists; the times of the others are right.
Timeline play(const Schedule& schedule, const ScheduleCosts& costs, std::vector<StuckRank>& stuck);

// Simulates a schedule that the validator has proved; a rank that waits forever is a BugError.
Timeline simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace mtrain::schedule
