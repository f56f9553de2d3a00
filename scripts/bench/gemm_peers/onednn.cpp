#include "onednn.h"

#include <dnnl.hpp>

#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "kernels/cpu/scratch.h"
#include "openmp.h"

namespace mtrain::bench::onednn {
namespace {

using dnnl::memory;

struct Key {
  int64_t M, N, K, lda, ldb, ldc;
  bool trans_a, trans_b, accumulate, bias;
  DType a_b, c_type;
  auto tie() const {
    return std::tie(M, N, K, lda, ldb, ldc, trans_a, trans_b, accumulate, bias, a_b, c_type);
  }
  bool operator<(const Key& o) const { return tie() < o.tie(); }
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type data_type(DType dtype) {
  MT_CHECK(dtype == DType::f32 || dtype == DType::bf16, "dtype {}", dtype_name(dtype));
  return dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// A matrix of rows x columns, stored with `ld` between rows, or transposed with `ld` between
// columns.
memory::desc matrix(int64_t rows, int64_t columns, int64_t ld, bool transposed, DType dtype) {
  const memory::dims strides = transposed ? memory::dims{1, ld} : memory::dims{ld, 1};
  return memory::desc({rows, columns}, data_type(dtype), strides);
}

// One prepared matmul with its argument table, so that a call costs four pointer assignments.
struct Prepared {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  memory a, b, bias, c, scratch;
  std::unordered_map<int, memory> arguments;
  size_t scratch_bytes = 0;
};

std::unique_ptr<Prepared> prepare(const Key& k) {
  const auto a = matrix(k.M, k.K, k.lda, k.trans_a, k.a_b);
  const auto b = matrix(k.K, k.N, k.ldb, k.trans_b, k.a_b);
  const auto c = matrix(k.M, k.N, k.ldc, false, k.c_type);
  const auto bias = matrix(1, k.N, k.N, false, DType::f32);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (k.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  auto p = std::make_unique<Prepared>();
  const auto operation = k.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  p->description = dnnl::matmul::primitive_desc(operation, attributes, cpu_engine());
  p->primitive = dnnl::matmul(p->description);
  p->a = memory(a, cpu_engine(), nullptr);
  p->b = memory(b, cpu_engine(), nullptr);
  p->c = memory(c, cpu_engine(), nullptr);
  p->scratch = memory(p->description.scratchpad_desc(), cpu_engine(), nullptr);
  p->scratch_bytes = p->description.scratchpad_desc().get_size();
  p->arguments = {{DNNL_ARG_SRC, p->a},
                  {DNNL_ARG_WEIGHTS, p->b},
                  {DNNL_ARG_DST, p->c},
                  {DNNL_ARG_SCRATCHPAD, p->scratch}};
  if (k.bias) {
    p->bias = memory(bias, cpu_engine(), nullptr);
    p->arguments.emplace(DNNL_ARG_BIAS, p->bias);
  }
  return p;
}

Prepared& prepared(const MatmulArgs& m) {
  // A primitive is built for the current number of threads, so this comes before it is made.
  use_one_openmp_thread();
  // A training run has few shapes. If shapes keep changing (packed sequences, experts), the table
  // is cleared when it is full.
  constexpr size_t kMaxShapes = 256;
  thread_local std::map<Key, std::unique_ptr<Prepared>> cache;
  const Key key{m.M,   m.N,       m.K,       m.lda,        m.ldb,
                m.ldc, m.trans_a, m.trans_b, m.accumulate, m.bias != nullptr,
                m.a_b, m.c_type};
  auto found = cache.find(key);
  if (found == cache.end()) {
    if (cache.size() >= kMaxShapes) cache.clear();
    found = cache.emplace(key, prepare(key)).first;
  }
  return *found->second;
}

}  // namespace

void run(const MatmulArgs& m) {
  thread_local kernels::cpu::Scratch scratch;
  thread_local dnnl::stream stream(cpu_engine());
  Prepared& p = prepared(m);
  p.a.set_data_handle(const_cast<void*>(m.a));
  p.b.set_data_handle(const_cast<void*>(m.b));
  p.c.set_data_handle(m.c);
  p.scratch.set_data_handle(scratch.bytes(p.scratch_bytes));
  if (m.bias) p.bias.set_data_handle(const_cast<float*>(m.bias));
  p.primitive.execute(stream, p.arguments);
  stream.wait();
}

bool has_bf16() {
  // An instruction set's bits hold those of every set below it.
  constexpr auto kNeeded = unsigned(dnnl::cpu_isa::avx512_core_bf16);
  static const bool has = (unsigned(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  return has;
}

}  // namespace mtrain::bench::onednn
