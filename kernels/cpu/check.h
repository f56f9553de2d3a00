// Checks of the kernels' arguments. They throw BugError. Only the files kernels/cpu/*.cpp may
// include this, not the vector files (see simd.h).
#pragma once
#include "base/error.h"
#include "base/span.h"

namespace mtrain::kernels::cpu {

// Checks that `s` is present and holds at least `need` elements.
inline void check_holds(const char* op, const char* name, const ConstSpan& s, int64_t need) {
  MT_CHECK(s.count >= need && (s.data || need <= 0), "{}: {} holds {} elements, needs {}", op, name,
           s.count, need);
}

inline void check_dtype(const char* op, const char* name, const ConstSpan& s, DType want) {
  MT_CHECK(s.dtype == want, "{}: {} is {}, must be {}", op, name, dtype_name(s.dtype),
           dtype_name(want));
}

inline void check(const char* op, const char* name, const ConstSpan& s, int64_t need, DType want) {
  check_holds(op, name, s, need);
  check_dtype(op, name, s, want);
}

// Checks that `s` holds `count` int32 indices, all in [least, below).
inline void check_indices(const char* op, const char* name, const ConstSpan& s, int64_t count,
                          int64_t below, int64_t least = 0) {
  check(op, name, s, count, DType::i32);
  const int32_t* p = s.as<int32_t>();
  for (int64_t i = 0; i < count; ++i)
    MT_CHECK(p[i] >= least && p[i] < below, "{}: {}[{}] = {} is not in [{}, {})", op, name, i, p[i],
             least, below);
}

}  // namespace mtrain::kernels::cpu
