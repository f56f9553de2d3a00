#include <algorithm>

#include "base/rng.h"
#include "model/graph_inputs.h"
#include "model/step.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"

namespace mtrain::model {

uint64_t dropout_key(uint64_t seed, const SegmentId& segment, int64_t step, int64_t micro_batch,
                     int64_t depth) {
  std::string name = fmt::format("dropout/{}/{}/{}", segment_name(segment), step, micro_batch);
  if (depth > 1) name += fmt::format("/depth {}", depth);
  return rng_key(seed, name);
}

namespace {
// Drops elements of x_TH, which begins at row `first_row` of this context-parallel rank's rows. An
// element's random number depends on its index in the full sequences, and therefore not on the
// layout.
void drop_rows(const Step& step, const Tensor& x_TH, uint64_t key, const Tensor& key_1, float p,
               int64_t first_row) {
  const SequenceInfo& seq = step.seq;
  const int64_t H = x_TH.dim(1), end_row = first_row + x_TH.dim(0);
  if (seq.runs.empty()) return ops::dropout(step.compute, x_TH, key, first_row * H, p, key_1);
  int64_t row = 0;
  for (const SequenceInfo::Run& run : seq.runs) {
    const int64_t begin = std::max(row, first_row),
                  end = std::min(row + run.count * seq.B, end_row);
    if (begin < end)
      ops::dropout(step.compute, x_TH.rows(begin - first_row, end - first_row), key,
                   (run.first * seq.B + begin - row) * H, p, key_1);
    row += run.count * seq.B;
  }
  MT_CHECK(row >= end_row, "{} rows, but runs of {} positions", end_row, row);
}
void drop_rows(const Step& step, const Tensor& x_TH, const SegmentId& segment, float p,
               int64_t first_row) {
  const Tensor key_1 = step.graph_inputs ? step.graph_inputs->dropout_key(segment) : Tensor();
  drop_rows(step, x_TH, dropout_key(step.seed, segment, step.step, step.micro_batch, step.depth),
            key_1, p, first_row);
}
}  // namespace

// A rank that has some of the columns drops from full rows, a few at a time.
void drop_adapter_input(const Step& step, const Tensor& x_TI, const std::string& adapter, float p,
                        int64_t first_row, const ColumnRange& columns) {
  constexpr int64_t kElements = 1 << 22;
  const uint64_t key =
      rng_key(step.seed, fmt::format("dropout/{}/{}/{}", adapter, step.step, step.micro_batch));
  const int64_t own = x_TI.dim(1);
  if (own == columns.all) return drop_rows(step, x_TI, key, {}, p, first_row);
  const int64_t at_once = std::clamp<int64_t>(kElements / columns.all, 1, x_TI.dim(0));
  const Tensor full = Tensor::empty(step.compute, {at_once, columns.all}, x_TI.dtype());
  ops::fill(step.compute, full, 0);
  for (int64_t row = 0; row < x_TI.dim(0); row += at_once) {
    const int64_t rows = std::min(at_once, x_TI.dim(0) - row);
    const Tensor some = x_TI.rows(row, row + rows), wide = full.rows(0, rows);
    const ops::CopyBlock in{.from_row = 0,
                            .from_column = 0,
                            .to_row = 0,
                            .to_column = columns.first,
                            .rows = rows,
                            .columns = own},
        out{.from_row = 0,
            .from_column = columns.first,
            .to_row = 0,
            .to_column = 0,
            .rows = rows,
            .columns = own};
    ops::copy_blocks(step.compute, some, wide, {in});
    drop_rows(step, wide, key, {}, p, first_row + row);
    ops::copy_blocks(step.compute, wide, some, {out});
  }
}

void drop(Step& step, const Tensor& x_TH, const SegmentId& segment, float p, int64_t first_row) {
  if (step.training && p > 0) drop_rows(step, x_TH, segment, p, first_row);
}

Tensor drop_backward(Step& step, const Tensor& d_TH, const SegmentId& segment, float p,
                     int64_t first_row) {
  if (!step.training || p == 0) return d_TH;
  Tensor d = Tensor::empty(step.compute, d_TH.shape(), d_TH.dtype());
  ops::cast(step.compute, d_TH, d);
  drop_rows(step, d, segment, p, first_row);
  return d;
}

}  // namespace mtrain::model
