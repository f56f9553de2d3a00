// What a list of computations needs around it to run.
#pragma once
#include "schedule/action.h"

namespace mtrain {

// Puts a send after each computation whose result another rank needs, and a receive before each
// that needs another rank's. Between two ranks messages are received in the order in which they are
// sent, and no earlier than needed. So a receive only ever waits for what the computation behind it
// waits for anyway: with sends that do not block, the lists can deadlock no more than the
// computations' own order can. Every stage must do every micro-batch. Of a forward and a backward
// that run together, the forward's result is sent first, or the gradient (`gradients_first`).
Schedule with_messages(const Schedule& schedule, bool gradients_first = false);

// Without overlap: messages move between computations alone, all that stand there together, and the
// rank computes nothing until they have been taken, also what it sends
// (runs_with_blocking_sends() holds). Where receives that stand as above would make ranks wait for
// each other for ever, they stand where the message is sent, and a forward and the whole backward
// (B) behind it exchange theirs as one batch: a rank then waits only for what comes earlier in a
// play of the lists.
Schedule with_batched_messages(const Schedule& schedule);

// For weights that are sharded over data-parallel ranks: a stage's weights are gathered before they
// are used, at most `most_gathered` (2 or more) stages' per rank at once, which are those used
// soonest; its gradients are whole after its last backward (if it has one), and reduced. To be done
// before with_messages(), so that weights travel while a rank waits for activations.
Schedule with_sharding(const Schedule& schedule, int64_t most_gathered = 3);

// For evaluation: every stage's forward of so many micro-batches on the same ranks, a few at a
// time, without sends and receives.
Schedule forward_only(const Schedule& placed, int64_t micro_batches);

// Whether lists with messages reach their ends where a rank computes nothing before all messages
// that stand before its computation have been taken: sends block, too, but messages between two
// computations are begun together.
bool runs_with_blocking_sends(const Schedule& schedule);

}  // namespace mtrain
