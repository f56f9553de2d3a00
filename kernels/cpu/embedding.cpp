#include "kernels/embedding.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

// Checks that ids are in the full vocabulary; the table holds V of its rows.
template <class Args>
void check_ids(const char* op, const Args& a) {
  const int64_t vocabulary = a.vocabulary ? a.vocabulary : a.V;
  MT_CHECK(a.first_row >= 0 && a.first_row + a.V <= vocabulary, "{}: {} rows from {} on, of {}", op,
           a.V, a.first_row, vocabulary);
  check_indices(op, "id", a.id_T, a.T, vocabulary);
}

void check_forward(const EmbeddingForward& a) {
  check_holds("embedding", "table", a.table_VH, a.V * a.H);
  check_holds("embedding", "out", a.out_TH, a.T * a.H);
  check_ids("embedding", a);
  if (!a.position_table_PH) return;
  MT_CHECK(a.vocabulary == 0 || a.vocabulary == a.V,
           "embedding: positions would be added by every rank that has a shard of the table");
  check_dtype("embedding", "position_table", a.position_table_PH, a.table_VH.dtype);
  check_indices("embedding", "position", a.position_T, a.T,
                a.H > 0 ? a.position_table_PH.count / a.H : 0);
}
void check_backward(const EmbeddingBackward& a) {
  check_holds("embedding backward", "dout", a.dout_TH, a.T * a.H);
  check("embedding backward", "dtable", a.dtable_VH, a.V * a.H, DType::f32);
  check_ids("embedding backward", a);
}

}  // namespace

MT_DISPATCH(EmbeddingForward, check_forward)
MT_DISPATCH(EmbeddingBackward, check_backward)

}  // namespace mtrain::kernels::cpu
