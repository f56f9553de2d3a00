// A pipeline schedule lists for each rank the actions that it does, in order. Generators write the
// lists, the validator proves them, the simulator times them, and the executor runs them
// (pipeline/executor.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mtrain::schedule {

enum class ActionKind {
  F,  // forward
  B,  // backward: I and W together
  I,  // input gradient
  W,  // weight gradient
  // Messages: activations go forward (f), their gradients backward (b). The stage of the action is
  // the sender's in a send and the receiver's in a receive.
  send_f,
  recv_f,
  send_b,
  recv_b,
  unshard,  // gather the stage's weights from the data-parallel ranks
  reshard,  // free the gathered weights
  reduce    // reduce the stage's gradients over the data-parallel ranks
};

struct Action {
  ActionKind kind = ActionKind::F;
  int64_t stage = 0, micro_batch = 0;  // unshard, reshard and reduce have no micro-batch
  int64_t peer = -1;                   // the rank at the other end of a send or a receive
  bool overlaps_next = false;          // this F runs together with the backward that follows it
  bool operator==(const Action&) const = default;
};

bool is_compute(ActionKind kind);  // F, B, I, W
inline bool is_send(ActionKind k) { return k == ActionKind::send_f || k == ActionKind::send_b; }
inline bool is_receive(ActionKind k) { return k == ActionKind::recv_f || k == ActionKind::recv_b; }
// Whether it is a B or an I; the previous stage can continue after it.
inline bool gives_gradient(ActionKind k) { return k == ActionKind::B || k == ActionKind::I; }

// When the gradient of a backward that runs together with a forward leaves its rank.
enum class PairedGradient {
  at_end,    // when both have ended
  in_order,  // when both have ended; until it is sent the rank computes only weight gradients
  at_once,   // as soon as it is computed
};

using ActionList = std::vector<Action>;

// Write actions as torch.distributed.pipelining does: 0F3, 1I2, 0SEND_F3, 2UNSHARD, and a list as
// 0F0, (0F1;3B0)OVERLAP_F_B.
std::string to_string(const Action& action);
std::string to_string(const ActionList& list);

struct Schedule {
  std::string name;
  int64_t pp = 1, stages = 1, micro_batches = 1;
  std::vector<int64_t> rank_of_stage;
  std::vector<ActionList> ranks;

  int64_t rank_of(int64_t stage) const { return rank_of_stage[size_t(stage)]; }
};

// The largest number of chunks (a stage's layers for one micro-batch) that have activations at
// once, counted from their forward to their input gradient, and to their weight gradient.
struct InFlight {
  int64_t to_input_gradient = 0, to_weight_gradient = 0;
};
InFlight peak_in_flight(const ActionList& list);

}  // namespace mtrain::schedule
