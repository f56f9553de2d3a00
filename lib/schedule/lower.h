// Lowering adds to lists of computations what they need to run: messages, and the gathers and
// reductions of sharded weights.
#pragma once
#include "schedule/action.h"

namespace mtrain::schedule {

// Puts a send after each computation whose result another rank needs, and a receive before each
// that needs another rank's. Between two ranks messages are received in the order in which they are
// sent, and no earlier than needed. So a receive only ever waits for what the computation behind it
// waits for anyway: with sends that do not block, the lists can deadlock no more than the
// computations' own order can. Every stage must do every micro-batch. After a forward and a
// backward that run together, the forward's result is sent first, or the gradient
// (`gradients_first`).
Schedule with_messages(const Schedule& schedule, bool gradients_first = false);

// Does the same for ranks that do not overlap. Messages move only between computations, all those
// of one place together, and a rank computes nothing until its messages, sent ones too, have been
// taken (runs_blocking() holds). Receives may stand where with_messages() puts them,
// unless ranks would then wait for each other for ever. In that case a receive stands where its
// message is sent, and a forward and the whole backward (B) behind it exchange their messages as
// one batch: a rank then waits only for what comes earlier in a play of the lists.
Schedule with_batched_messages(const Schedule& schedule);

// Does the same for ranks whose messages go one after the other, each blocking both of its ranks.
// All ranks take messages in one common order: by the time of their sends in a play of the lists,
// then forward ones first, then those from even ranks. So where one rank sends, its neighbour
// receives, as in Megatron, and no circle of ranks waits for itself.
Schedule with_single_messages(const Schedule& schedule);

// Adds the actions of weights that are sharded over data-parallel ranks. A stage's weights are
// gathered before they are used; a rank has at most `most_gathered` (2 or more) stages gathered at
// once, those that it uses soonest. A stage's gradients are complete after its last backward, if it
// has one, and are then reduced. This comes before with_messages(), so that weights travel while a
// rank waits for activations.
Schedule with_sharding(const Schedule& schedule, int64_t most_gathered = 3);

// Returns the schedule of an evaluation: the forwards of `micro_batches` micro-batches, with the
// stages on the same ranks as in `placed`, and without sends and receives.
Schedule forward_only(const Schedule& placed, int64_t micro_batches);

// What a rank waits for besides the messages that its computations need.
enum class Blocking {
  // It computes nothing before all messages that stand before the computation have been taken.
  // Messages between two computations begin together.
  all_messages,
  one_by_one,        // it does nothing else from a message's begin until the message has been taken
  paired_gradients,  // PairedGradient::in_order: it computes nothing until the gradient is taken
};
// Whether lists with messages reach their ends.
bool runs_blocking(const Schedule& schedule, Blocking blocking);

}  // namespace mtrain::schedule
