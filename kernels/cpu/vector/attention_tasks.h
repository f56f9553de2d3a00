// How the backward of attention is split into tasks, for all kernels that compute them. A task owns
// the keys and the queries of all heads that share a kv head: nothing is shared with another task.
// If such tasks would leave threads idle, a task owns a block of queries or a block of keys
// instead. The probabilities are then computed twice, with the same bits.
#pragma once
#include "kernels/attention.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/cpu/vector/attention_tile.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {

// The results of a task: dq of some rows, dk and dv of some keys. The ranges consist of full
// blocks.
struct Share {
  int64_t row0, row1, key0, key1;
  bool dq, dkv;
};

// Returns whether any row of a share may attend to a key of [key0, key1). `seen` has the keys that
// each row attends to, which are never those of another document.
MT_INLINE bool any_sees(const Seen* seen, int64_t rows, int64_t key0, int64_t key1) {
  return seen[0].begin < key1 && seen[rows - 1].end > key0;
}

// Returns the rows of a share that may attend to its keys, in full blocks: rows count from 0.
struct RowRange {
  int64_t begin, end;
};
MT_INLINE RowRange rows_that_see(const Share& share, const Seen* seen, int64_t block_rows) {
  const int64_t rows = share.row1 - share.row0;
  int64_t begin = 0, end = rows;
  while (begin < end && seen[begin].end <= share.key0) ++begin;
  while (end > begin && seen[end - 1].begin >= share.key1) --end;
  return {begin / block_rows * block_rows, min_of(rows, div_up(end, block_rows) * block_rows)};
}

// Splitting heads costs seven GEMMs instead of five. It pays if tasks of full heads would leave
// threads without work.
MT_INLINE bool worth_splitting(int64_t heads, int64_t threads) {
  return 5 * div_up(heads, threads) * threads > 7 * heads;
}

// Calls fn(head, share) for each task, in parallel. Head number b * G + g is kv head g of sequence
// b. Blocks have `block_rows` queries or `block_keys` keys.
template <class F>
MT_INLINE void for_backward_tasks(const AttentionShape& s, int64_t block_rows, int64_t block_keys,
                                  const F& fn) {
  const int64_t heads = s.B * s.G;
  if (!worth_splitting(heads, current_threads())) {
    parallel(heads, 1, [&](int64_t head, int64_t) {
      fn(head, Share{0, s.Sq, 0, s.Skv, true, true});
    });
    return;
  }
  const int64_t row_blocks = div_up(s.Sq, block_rows),
                blocks = row_blocks + div_up(s.Skv, block_keys);
  parallel(heads * blocks, 1, [&](int64_t task, int64_t) {
    const int64_t head = task % heads, i = task / heads;
    // Under a causal mask the last rows and the first keys have the most work: they are first.
    if (i < row_blocks) {
      const int64_t row = (row_blocks - 1 - i) * block_rows;
      fn(head, Share{row, min_of(s.Sq, row + block_rows), 0, s.Skv, true, false});
    } else {
      const int64_t key = (i - row_blocks) * block_keys;
      fn(head, Share{0, s.Sq, key, min_of(s.Skv, key + block_keys), false, true});
    }
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
