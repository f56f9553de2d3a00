// Collectives of ranks that see the same memory: threads of a process, or processes of a host.
#pragma once
#include <memory>

#include "comm/board.h"
#include "comm/communicator.h"

namespace mtrain {

// `keep` owns the board's memory. Sums are formed in the order of the ranks, so that every rank has
// the same bits, whatever arrives first.
std::unique_ptr<Communicator> board_communicator(Board board, std::shared_ptr<void> keep);

}  // namespace mtrain
