// Embedding of tokens and of learned positions.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

// The rows that a table holds of a vocabulary that is distributed over ranks; by default all of
// them.
struct VocabularyShard {
  int64_t first_row = 0;
  int64_t vocabulary = 0;  // rows of all ranks, including padding; 0: as many as the table has
};
// Returns scale table[id] + position_table[position]. Ids and positions are int32; the position
// table is optional. Ids of other shards give 0. A shard takes no position table, since every rank
// would add its rows.
Tensor embedding(Stream& stream, const Tensor& id_T, const Tensor& table_VH,
                 const Tensor& position_T, const Tensor& position_table_PH,
                 VocabularyShard shard = {}, float scale = 1);
// Adds `scale` times each token's gradient to its row of dtable_VH (fp32).
void embedding_backward(Stream& stream, const Tensor& id_T, const Tensor& dout_TH,
                        const Tensor& dtable_VH, VocabularyShard shard = {}, float scale = 1);

}  // namespace mtrain::ops
