#include "kernels/cuda/cudnn/attention_key.h"

#include <algorithm>
#include <bit>

#include <fmt/core.h>

namespace mtrain::kernels::cuda {
namespace {

constexpr int64_t kVector = 16;  // bytes that the engines read at once

std::string why_not_view(const char* name, const ConstSpan& data, int64_t token_stride,
                         DType type) {
  if (data.dtype != type) return fmt::format("{} is {}", name, dtype_name(data.dtype));
  if (reinterpret_cast<uintptr_t>(data.data) % kVector != 0 ||
      token_stride * dtype_size(data.dtype) % kVector != 0)
    return fmt::format("{} is not on {}-byte borders", name, kVector);
  return "";
}

std::string why_not_target(const CudnnTarget& t) {
  // Since 9.11 cuDNN masks with infinity, and has no known errors in the backward.
  if (t.version < 91100)
    return fmt::format("cuDNN {}.{} is older than 9.11", t.version / 10000, t.version / 100 % 100);
  if (t.architecture < 80) return fmt::format("sm_{} is older than sm_80", t.architecture);
  return "";
}

// For each document that fits into the tables, engines start as many blocks as the longest possible
// document needs. With short documents most blocks would be idle.
constexpr int64_t kMinRows = 128;  // the smallest mean number of rows of a document

std::string why_not_documents(const AttentionShape& s, const CudnnTarget& t) {
  const int64_t documents = s.q_documents.begin.count;
  // cuDNN's engines for packed documents have known errors on these.
  if (t.architecture / 10 == 8 || t.architecture / 10 == 12)
    return fmt::format("packed documents on sm_{}", t.architecture);
  if (documents < 1) return "a pack without documents";
  if (s.document_gaps || s.q_documents.begin.data != s.kv_documents.begin.data)
    return "documents that are divided among ranks";
  if (documents * kMinRows > s.Sq)
    return fmt::format("packed documents with fewer than {} rows on average", kMinRows);
  if (s.D % 16 != 0) return fmt::format("documents with heads of {} elements", s.D);
  return "";
}
// Returns why the documents' offsets do not fit into 32 bits, or "".
std::string why_not_offsets(const AttentionShape& s, std::initializer_list<int64_t> strides) {
  if (s.q_documents.begin && std::max(strides) * s.Sq > INT32_MAX)
    return fmt::format("documents in {} rows of {} elements", s.Sq, std::max(strides));
  return "";
}

// Returns why the mask is not one of cuDNN's, or "".
std::string why_not_mask(const AttentionShape& s) {
  if (s.causal && s.q_start != 0 && s.q_start != s.Skv - s.Sq)
    return "queries that start at a position of their own";
  if (s.causal && s.q_start < 0) return "more queries than keys, and the last see the last";
  if (s.window > 0 && !s.causal) return "a window without a causal mask";
  if (s.Sq > s.Skv && s.window > 0) return "more queries than keys, with a window";
  if (s.cap > 0 && s.q_documents.begin) return "capped scores of packed documents";
  return "";
}

std::string why_not_shape(const AttentionShape& s, const CudnnTarget& t) {
  if (auto why = why_not_target(t); !why.empty()) return why;
  if (s.q_documents.begin)
    if (auto why = why_not_documents(s, t); !why.empty()) return why;
  if (auto why = why_not_mask(s); !why.empty()) return why;
  if (s.Sq < 2 || s.Skv < 2) return "sequences of one token";
  // Engines of Hopper and of data-center Blackwells have larger tiles. The latter's backward may
  // refuse them.
  const int64_t most = t.architecture == 90 || t.architecture / 10 == 10 ? 256 : 128;
  if (s.D % 8 != 0 || s.D > most)
    return fmt::format("heads of {} elements (cuDNN: multiples of 8 up to {})", s.D, most);
  // Backward engines with two sizes are those of DeepSeek-V3's heads.
  if (s.value_dim() != s.D && (s.D != 192 || s.value_dim() != 128 || most != 256))
    return fmt::format("keys of {} and values of {} elements on sm_{}", s.D, s.value_dim(),
                       t.architecture);
  return "";
}

struct NamedView {
  const char* name;
  const HeadView& view;
};
// All operands must have one 16-bit type.
std::string first_reason(const AttentionShape& s, const CudnnTarget& t, DType type,
                         std::initializer_list<NamedView> operands) {
  if (auto why = why_not_shape(s, t); !why.empty()) return why;
  if (!is_half(type)) return fmt::format("q is {}", dtype_name(type));
  for (const auto& [name, view] : operands)
    if (auto why = why_not_view(name, view.data, view.token_stride, type); !why.empty()) return why;
  return "";
}

struct NamedResult {
  const char* name;
  const HeadSpan& result;
};
// A result has the operands' type, or fp32.
std::string first_reason(DType type, std::initializer_list<NamedResult> results) {
  for (const auto& [name, result] : results) {
    const DType wanted = result.data.dtype == DType::f32 ? DType::f32 : type;
    if (auto why = why_not_view(name, ConstSpan(result.data), result.token_stride, wanted);
        !why.empty())
      return why;
  }
  return "";
}

// Returns the key without direction, types and strides, which stay 0.
CudnnAttentionKey key_of(const AttentionShape& s) {
  CudnnAttentionKey key{};
  key.causal = s.causal, key.window = s.window, key.scale = s.scale, key.cap = s.cap;
  key.bottom_right = s.causal && s.q_start != 0;
  key.B = s.B, key.Sq = s.Sq, key.Skv = s.Skv, key.A = s.A, key.G = s.G, key.D = s.D;
  key.Dv = s.value_dim();
  key.lse_heads = s.A;
  key.documents = bool(s.q_documents.begin);
  if (!key.documents) return key;
  // The number of documents and the longest one differ between packs. Both are rounded up to a
  // power of two: packs then share plans.
  const auto rounded = [](int64_t n) { return int64_t(std::bit_ceil(uint64_t(n))); };
  key.B = rounded(s.q_documents.begin.count);
  key.longest = s.longest_document > 0 ? std::min(rounded(s.longest_document), s.Sq) : s.Sq;
  return key;
}

}  // namespace

CudnnAttentionKey key_of(const AttentionForward& f) {
  CudnnAttentionKey key = key_of(f.shape);
  key.backward = false, key.deterministic = true;
  key.type = f.q.data.dtype, key.out_type = f.out.data.dtype;
  key.q = f.q.token_stride, key.k = f.k.token_stride, key.v = f.v.token_stride;
  key.out = f.out.token_stride;
  return key;
}
CudnnAttentionKey key_of(const AttentionBackward& b, const CudnnTarget& target) {
  CudnnAttentionKey key = key_of(b.shape);
  key.backward = true, key.deterministic = b.fixed_order;
  key.type = key.out_type = b.q.data.dtype;
  key.q = b.q.token_stride, key.k = b.k.token_stride, key.v = b.v.token_stride;
  key.out = b.out.token_stride, key.dout = b.dout.token_stride;
  // Gradients in fp32 have engines only if no query heads share a kv head, and fast ones only for
  // Hopper. Engines add to a dq in fp32 in any order.
  const bool wide = key.A == key.G && !key.deterministic && target.architecture == 90;
  key.dq_type = wide ? b.dq.data.dtype : key.type;
  key.dkv_type = wide ? b.dk.data.dtype : key.type;
  const auto stride = [&](const HeadSpan& gradient, bool add, DType type, int64_t width) {
    const bool own = key.documents || add || gradient.data.dtype != type;
    return own ? width : gradient.token_stride;
  };
  key.dq = stride(b.dq, b.add_dq, key.dq_type, key.A * key.D);
  key.dk = stride(b.dk, b.add_dkv, key.dkv_type, key.G * key.D);
  key.dv = stride(b.dv, b.add_dkv, key.dkv_type, key.G * key.Dv);
  return key;
}

std::string why_not_cudnn(const AttentionForward& f, const CudnnTarget& target) {
  const DType type = f.q.data.dtype;
  if (auto why = first_reason(f.shape, target, type, {{"q", f.q}, {"k", f.k}, {"v", f.v}});
      !why.empty())
    return why;
  if (auto why = first_reason(type, {{"out", f.out}}); !why.empty()) return why;
  return why_not_offsets(
      f.shape, {f.q.token_stride, f.k.token_stride, f.v.token_stride, f.out.token_stride});
}
std::string why_not_cudnn(const AttentionBackward& b, const CudnnTarget& target) {
  const AttentionShape& s = b.shape;
  // Older versions compute with keys beyond the last, unless they get each sequence's length.
  if (target.version < 91600 && s.Skv % 128 != 0 && !s.q_documents.begin)
    return fmt::format("a backward of {} keys (before 9.16: multiples of 128)", s.Skv);
  const DType type = b.q.data.dtype;
  if (auto why = first_reason(
          s, target, type, {{"q", b.q}, {"k", b.k}, {"v", b.v}, {"out", b.out}, {"dout", b.dout}});
      !why.empty())
    return why;
  if (auto why = first_reason(type, {{"dq", b.dq}, {"dk", b.dk}, {"dv", b.dv}}); !why.empty())
    return why;
  if (b.dk.data.dtype != b.dv.data.dtype) return "dk and dv of two types";
  // The frontend puts row sums in fp32 before cuDNN's own workspace.
  if (s.B * s.A * s.Sq % 4 != 0)
    return fmt::format("a backward of {} rows and heads (multiples of 4)", s.B * s.A * s.Sq);
  return why_not_offsets(s, {b.q.token_stride, b.k.token_stride, b.v.token_stride,
                             b.out.token_stride, b.dout.token_stride});
}

}  // namespace mtrain::kernels::cuda
