#include "kernels/embedding.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per chunk: enough work to justify waking a thread

}  // namespace

void run(const EmbeddingForward& a) {
  with_float(a.table_VH.dtype, [&]<class W>() {
    with_float(a.out_TH.dtype, [&]<class T>() {
      if constexpr (mixes_halves<W, T>) throw_not_float(a.out_TH.dtype);
      parallel(a.T, max_of(1, kGrain / max_of(a.H, 1)), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t id = data_of<int32_t>(a.id_T)[t] - a.first_row;
          T* out = data_of<T>(a.out_TH) + t * a.H;
          if (id < 0 || id >= a.V) {
            __builtin_memset(static_cast<void*>(out), 0, size_t(a.H) * sizeof(T));
            continue;
          }
          const float scale = a.scale;
          const W* row = data_of<W>(a.table_VH) + id * a.H;
          if (a.position_table_PH.data) {
            const W* at = data_of<W>(a.position_table_PH) + data_of<int32_t>(a.position_T)[t] * a.H;
            for_lanes(a.H, [=](int64_t i, auto m) {
              store(out + i, load(row + i, m) * scale + load(at + i, m), m);
            });
          } else {
            for_lanes(a.H, [=](int64_t i, auto m) { store(out + i, load(row + i, m) * scale, m); });
          }
        }
      });
    });
  });
}

// Every task owns a range of columns and visits all tokens in order. No two tasks write the same
// element.
void run(const EmbeddingBackward& a) {
  constexpr int64_t kColumns = 128;  // enough consecutive bytes for the prefetcher
  const int64_t columns = a.T * a.H <= kGrain ? max_of(a.H, 1) : kColumns;
  with_float(a.dout_TH.dtype, [&]<class T>() {
    parallel(a.H, columns, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < a.T; ++t) {
        const int64_t id = data_of<int32_t>(a.id_T)[t] - a.first_row;
        if (id < 0 || id >= a.V) continue;
        const T* from = data_of<T>(a.dout_TH) + t * a.H + begin;
        float* to = data_of<float>(a.dtable_VH) + id * a.H + begin;
        for_lanes(end - begin, [=, scale = a.scale](int64_t i, auto m) {
          store(to + i, load(to + i, m) + load(from + i, m) * scale, m);
        });
      }
    });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
