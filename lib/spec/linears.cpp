#include "spec/linears.h"

namespace mtrain::spec {

bool is_whole_linear(const TensorSpec& t) {
  for (const char* linear :
       {".attention.q_down.weight", ".attention.kv_down.weight", ".mtp.proj.weight"})
    if (t.name.ends_with(linear)) return true;
  return false;
}

bool is_quantized(const TensorSpec& t) {
  if (t.role != TensorRole::matrix || t.adapter) return false;
  return t.split.dim != TensorSplit::Dim::none || is_whole_linear(t);
}

}  // namespace mtrain::spec
