// What a group of ranks mostly carries.
#pragma once
#include <cstdint>

namespace mtrain {

// On a GPU it bounds the multiprocessors that a group's calls may take from computations that run
// beside them.
enum class GroupTraffic : uint8_t {
  bulk,      // gradients, parameters, activations: as many as the library wants
  messages,  // from one rank to another; a receive that is enqueued early waits on the GPU
  scalars,   // a few numbers
  // Gathers into memory that the library has registered. Copy engines of the GPU move them where
  // they can, and no multiprocessors.
  copies,
};

// Returns how many blocks, each on a multiprocessor of its own, a call of NCCL may take; 0: NCCL
// decides. A receive that is enqueued before its message spins on the GPU until the message
// arrives. Four blocks still carry a message at a good part of a link's rate.
constexpr int most_blocks(GroupTraffic traffic) {
  switch (traffic) {
    case GroupTraffic::bulk:
    case GroupTraffic::copies: return 0;
    case GroupTraffic::messages: return 4;
    case GroupTraffic::scalars: return 1;
  }
  return 0;
}

}  // namespace mtrain
