// Lowering adds to lists of computations what they need to run: messages, and the gathers and
// reductions of sharded weights.
#pragma once
#include "schedule/action.h"

namespace mtrain::schedule {

// Puts a send after each computation whose result another rank needs, and a receive before each
// computation that needs another rank's result. Between two ranks, messages are received in the
// order in which they are sent, and no earlier than needed. A receive therefore waits only for what
// the computation after it needs anyway. With sends that do not block, the messages add no deadlock
// to the order of the computations. Every stage must run every micro-batch. After a forward and a
// backward that run together, the forward's result is sent first, or the gradient
// (`gradients_first`).
Schedule with_messages(const Schedule& schedule, bool gradients_first = false);

// Does the same for ranks that do not overlap. Messages move only between computations, all those
// of one place together. A rank computes nothing until its messages, also those that it sends, have
// been received (runs_blocking() holds). Receives may stand where with_messages() puts them, unless
// ranks would then wait for each other forever. In that case a receive stands where its message is
// sent, and a forward and the full backward (B) after it exchange their messages as one batch. A
// rank then waits only for what comes earlier in a simulation of the lists.
Schedule with_batched_messages(const Schedule& schedule);

// Does the same for ranks whose messages run one after another, each blocking both of its ranks.
// All ranks process messages in one common order: by the time of their sends in a simulation of the
// lists, then forward messages first, then those from even ranks. When one rank sends, its
// neighbour therefore receives, as in Megatron, and ranks cannot deadlock.
Schedule with_single_messages(const Schedule& schedule);

// Adds the actions of weights that are sharded over data-parallel ranks. A stage's weights are
// gathered before they are used. A rank has at most `max_gathered` (2 or more) stages gathered at
// once: those that it uses soonest. A stage's gradients are reduced after its last backward, if it
// has one. Call this before with_messages(): weights then travel while a rank waits for
// activations.
Schedule with_sharding(const Schedule& schedule, int64_t max_gathered = 3);

// How a rank carries out a schedule, as far as it decides the lists.
struct Lowering {
  bool overlap = true;           // with_messages(); otherwise the next two
  bool one_by_one = false;       // with_single_messages(), else with_batched_messages()
  bool gradients_first = false;  // as in with_messages()
  int64_t max_gathered = 0;      // as in with_sharding(); 0: without
};
// Returns the lists that the executor runs, from those of the computations. Everything that
// simulates a run plays these.
Schedule executed(const Schedule& computations, const Lowering& how);

// Returns the schedule of an evaluation: the forwards of `micro_batches` micro-batches, with the
// stages on the same ranks as in `placed`, and without sends and receives.
Schedule forward_only(const Schedule& placed, int64_t micro_batches);

// What a rank waits for in addition to the messages that its computations need.
enum class Blocking {
  // It computes nothing before all messages ahead of the computation have been received. Messages
  // between two computations begin together.
  all_messages,
  one_by_one,        // it does nothing else from a message's begin until it has been received
  paired_gradients,  // PairedGradient::in_order: it computes nothing until the gradient is received
};
// Whether lists with messages reach their ends.
bool runs_blocking(const Schedule& schedule, Blocking blocking);

}  // namespace mtrain::schedule
