// Which keys a query row attends to, as kernels/attention.h defines it. Both ends increase with the
// row.
#pragma once
#include "kernels/attention.h"
#include "kernels/cuda/device/platform.h"

namespace mtrain::kernels::cuda {

struct Range {
  int begin, end;
};

struct VisibleKeys {
  int Sq, Skv, q_start, window, documents;
  bool causal;
  const int32_t *q_begin, *q_end, *kv_begin, *kv_end;

  explicit VisibleKeys(const AttentionShape& s)
      : Sq(int(s.Sq)),
        Skv(int(s.Skv)),
        q_start(int(s.q_start)),
        window(int(s.window)),
        documents(s.q_documents.begin ? int(s.q_documents.begin.count) : 0),
        causal(s.causal),
        q_begin(s.q_documents.begin.as<int32_t>()),
        q_end(s.q_documents.end.as<int32_t>()),
        kv_begin(s.kv_documents.begin.as<int32_t>()),
        kv_end(s.kv_documents.end.as<int32_t>()) {}

  __device__ Range operator()(int row) const {
    Range seen{0, Skv};
    int diagonal = row + q_start;
    if (q_begin) {
      int low = 0, high = documents;  // the first document that ends beyond the row
      while (low < high) {
        const int middle = (low + high) / 2;
        if (q_end[middle] <= row)
          low = middle + 1;
        else
          high = middle;
      }
      if (low == documents || row < q_begin[low]) {  // in no document
        const int before = low > 0 ? kv_end[low - 1] : 0;
        return {before, before};
      }
      seen = {kv_begin[low], kv_end[low]};
      diagonal = row + kv_end[low] - q_end[low];
    }
    if (causal) seen.end = max(seen.begin, min(seen.end, diagonal + 1));
    if (window > 0) seen.begin = max(seen.begin, diagonal - window + 1);
    seen.begin = min(seen.begin, seen.end);
    return seen;
  }

  // The rows that may attend to one of the keys [first, last).
  __device__ Range rows_that_see(int first, int last) const {
    int low = 0, high = Sq;  // the first row whose keys end beyond `first`
    while (low < high) {
      const int middle = (low + high) / 2;
      if ((*this)(middle).end <= first)
        low = middle + 1;
      else
        high = middle;
    }
    const int begin = low;
    high = Sq;  // the first row whose keys begin at `last` or later
    while (low < high) {
      const int middle = (low + high) / 2;
      if ((*this)(middle).begin < last)
        low = middle + 1;
      else
        high = middle;
    }
    return {begin, low};
  }
};

// One head of one sequence: row s is at data + s * stride.
template <class T>
struct HeadRows {
  T* data;
  int64_t stride;
  __device__ __forceinline__ T* row(int64_t s) const { return data + s * stride; }
};
// All heads of all sequences.
template <class T>
struct Heads {
  T* data;
  int64_t token_stride;
  int B, D;
  __device__ __forceinline__ HeadRows<T> of(int b, int head) const {
    return {data + b * token_stride + int64_t(head) * D, B * token_stride};
  }
};
template <class T>
Heads<const T> heads_of(const HeadView& v, const AttentionShape& s) {
  return {v.data.as<T>(), v.token_stride, int(s.B), int(s.D)};
}
template <class T>
Heads<T> heads_of(const HeadSpan& v, const AttentionShape& s) {
  return {v.data.as<T>(), v.token_stride, int(s.B), int(s.D)};
}

constexpr float kAttentionLog2E = 1.44269504088896341f, kAttentionLn2 = 0.693147180559945309f;

// Caps scores of base 2. They are log2(e) times the scores that AttentionShape::cap refers to.
// Kernels without a cap are separate instances.
struct ScoreCap {
  float cap, inverse;
  explicit ScoreCap(float of) : cap(of * kAttentionLog2E), inverse(of > 0 ? 1 / cap : 0.0f) {}
  __device__ __forceinline__ float capped(float x) const { return cap * tanhf(x * inverse); }
  // Returns the derivative of the cap at a score whose capped value is `y`.
  __device__ __forceinline__ float slope(float y) const {
    const float t = y * inverse;
    return 1.0f - t * t;
  }
};

}  // namespace mtrain::kernels::cuda
