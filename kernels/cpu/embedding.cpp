#include "kernels/embedding.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_forward(const EmbeddingForward& a) {
  check_holds("embedding", "table", a.table_VH, a.V * a.H);
  check_holds("embedding", "out", a.out_TH, a.T * a.H);
  check_indices("embedding", "id", a.id_T, a.T, a.V);
  if (!a.position_table_PH) return;
  check_dtype("embedding", "position_table", a.position_table_PH, a.table_VH.dtype);
  check_indices("embedding", "position", a.position_T, a.T,
                a.H > 0 ? a.position_table_PH.count / a.H : 0);
}
void check_backward(const EmbeddingBackward& a) {
  check_holds("embedding backward", "dout", a.dout_TH, a.T * a.H);
  check("embedding backward", "dtable", a.dtable_VH, a.V * a.H, DType::f32);
  check_indices("embedding backward", "id", a.id_T, a.T, a.V);
}

}  // namespace

MT_DISPATCH(EmbeddingForward, check_forward)
MT_DISPATCH(EmbeddingBackward, check_backward)

}  // namespace mtrain::kernels::cpu
