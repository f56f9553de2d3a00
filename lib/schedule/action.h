// A pipeline schedule: for each rank the list of actions that it does, in order. Generators write
// it, the validator proves it, the simulator times it, and the executor runs it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mtrain::schedule {

enum class ActionKind {
  F,  // forward
  B,  // backward: I and W in one
  I,  // input gradient
  W,  // weight gradient
  send_f,
  recv_f,  // activations; the stage is the sender's in a send, the receiver's in a receive
  send_b,
  recv_b,   // gradients of activations
  unshard,  // gather the stage's weights from the data-parallel ranks
  reshard,  // free the gathered weights
  reduce    // reduce the stage's gradients over the data-parallel ranks
};

struct Action {
  ActionKind kind;
  int64_t stage = 0, micro_batch = 0;  // unshard, reshard and reduce have no micro-batch
  int64_t peer = -1;                   // for sends and receives: the rank at the other end
  bool overlaps_next = false;          // for F: runs together with the backward that follows it
  bool operator==(const Action&) const = default;
};

bool is_compute(ActionKind kind);  // F, B, I, W
inline bool is_send(ActionKind k) { return k == ActionKind::send_f || k == ActionKind::send_b; }
inline bool is_receive(ActionKind k) { return k == ActionKind::recv_f || k == ActionKind::recv_b; }
// Whether it is a B or an I, after which the stage before can go on.
inline bool gives_gradient(ActionKind k) { return k == ActionKind::B || k == ActionKind::I; }

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

// The most chunks (a stage's layers for one micro-batch) whose activations a list holds at once,
// counted from their forward to their input gradient, and to their weight gradient.
struct InFlight {
  int64_t to_input_gradient = 0, to_weight_gradient = 0;
};
InFlight peak_in_flight(const ActionList& list);

}  // namespace mtrain::schedule
