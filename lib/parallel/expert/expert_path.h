// The path of rows over an all-to-all: the number of rows from each rank to each other, and the
// order in which they arrive. It covers all experts of each rank, or a range of them.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/blocks.h"
#include "parallel/expert/expert_comm.h"

namespace mtrain::parallel {

// Returns how many rows the tokens of rank `t` of tp and rank `from` of ep have for expert `e` of
// rank `to` of ep.
using RowsOf = std::function<int64_t(int64_t from, int64_t t, int64_t to, int64_t e)>;

struct ExpertPath {
  RowCounts travelling;
  // The blocks that copy rows from the order of arrival (rank of tp, rank of ep, expert, token)
  // into the order of the experts; none if the orders are the same. The user must set their
  // columns.
  bool in_order = false;
  std::vector<ops::CopyBlock> to_experts;
  int64_t rows = 0;            // of this rank's experts
  std::vector<int32_t> first;  // expert begin + e has the rows [first[e], first[e + 1])
};

// The path to the experts [begin, end) of each rank.
ExpertPath expert_path(const ExpertComm& comm, int64_t begin, int64_t end, const RowsOf& rows);

// Copies rows, and weights if there are some, to `to`.
void copy_rows(Stream& compute, const model::ExpertRows& rows, std::vector<ops::CopyBlock> blocks,
               const model::ExpertRows& to);
// Returns a copy of `count` rows in another order.
model::ExpertRows copied(Stream& compute, const model::ExpertRows& rows,
                         std::vector<ops::CopyBlock> blocks, int64_t count);
// Copies rows from the order of the experts to the order of their arrival.
model::ExpertRows by_arrival(Stream& compute, const ExpertComm& comm, const ExpertPath& path,
                             model::ExpertRows rows);

}  // namespace mtrain::parallel
