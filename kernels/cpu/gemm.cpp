#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/math.h"
#include "base/thread_pool.h"
#include "kernels/cpu/scratch.h"

namespace mtrain::kernels::cpu {

namespace generic {
extern const GemmKernels kGemm;
}
namespace avx2 {
extern const GemmKernels kGemm;
}
namespace avx512 {
extern const GemmKernels kGemm;
}

namespace {

const GemmKernels& kernels_of(Isa isa) {
  switch (isa) {
#ifdef MTRAIN_HAS_AVX512
    case Isa::avx512: return avx512::kGemm;
#endif
#ifdef MTRAIN_HAS_AVX2
    case Isa::avx2: return avx2::kGemm;
#endif
    default: return generic::kGemm;
  }
}

// Columns of B that are packed at once: 4 MiB, twice, which a shared cache holds.
constexpr int64_t kMaxColumns = 2048;
// Panels of A in a unit of work, which packs them for itself: 230 KiB in a core's second-level
// cache.
constexpr int64_t kMaxUnitPanels = 8;
constexpr int64_t kPackPanels = 4;  // panels of B packed as one unit of work

// Units of one kind of work, handed out in order. Spins while it waits, then yields: there may be
// more ranks than cores.
struct Counter {
  std::atomic<int64_t> next{0}, done{0};
  int64_t total = 0;

  template <class F>
  void work(const F& unit) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < total;) {
      unit(i);
      done.fetch_add(1, std::memory_order_release);
    }
  }
  void wait() const {
    for (int spin = 0; done.load(std::memory_order_acquire) < total; ++spin)
      if (spin > 4000) std::this_thread::yield();
  }
};

int64_t element_offset(bool trans, int64_t ld, int64_t row, int64_t column) {
  return trans ? column * ld + row : row * ld + column;
}
const char* at(ConstSpan s, int64_t element) {
  return s.as<char>() + element * dtype_size(s.dtype);
}

// Panels [begin, end) of A.
struct PanelRange {
  int64_t begin, end;
};

// A block of columns and of k: pack B together, then multiply. Blocks of k follow each other
// innermost.
struct Phase {
  int64_t column0, columns, b_panels;
  int64_t k0, k1;
  bool first, last;  // of the blocks of k
  int b_buffer;      // which of the two
  int64_t groups;  // of columns: more than one where there are too few panels of A for all threads
  Counter packing, computing;
};

class Gemm {
 public:
  Gemm(const Matmul& m, const GemmKernels& kernels, int threads);
  void work();  // every thread of the pool calls it; returns when all phases are done
 private:
  void plan_units(int threads);
  void plan_phases(int threads);
  void pack_b(const Phase& p, int64_t unit) const;
  void compute(const Phase& p, int64_t unit, float* packed_a) const;

  const Matmul& m_;
  const GemmKernels& kernels_;
  const int64_t lda_, ldb_, panels_;
  int64_t k_block_ = 0;
  std::vector<PanelRange> units_;
  std::vector<std::unique_ptr<Phase>> phases_;
  float* b_[2] = {};
  float* sums_ = nullptr;  // (M, N) fp32 partial sums where C is bf16 and k is cut
};

Gemm::Gemm(const Matmul& m, const GemmKernels& kernels, int threads)
    : m_(m),
      kernels_(kernels),
      lda_(m.trans_a ? m.M : m.K),
      ldb_(m.trans_b ? m.K : m.N),
      panels_(ceil_div(m.M, kernels.rows)) {
  plan_units(threads);
  plan_phases(threads);
  const int64_t columns = std::min(m.N, kMaxColumns);
  const int64_t b_floats = ceil_div(columns, kernels.columns) * kernels.columns * k_block_;
  const bool needs_sums = k_block_ < m.K && m.c_MN.dtype == DType::bf16;
  thread_local Scratch scratch;
  const bool two = phases_.size() > 1;
  b_[0] = scratch.floats(size_t(b_floats * (1 + two) + (needs_sums ? m.M * columns : 0)));
  b_[1] = b_[0] + b_floats * two;
  sums_ = needs_sums ? b_[1] + b_floats : nullptr;
}

// Large units first, small ones last, so that the threads end at about the same time.
void Gemm::plan_units(int threads) {
  for (int64_t begin = 0; begin < panels_;) {
    const int64_t fair = threads == 1 ? kMaxUnitPanels : ceil_div(panels_ - begin, 2 * threads);
    const int64_t end = begin + std::min({fair, kMaxUnitPanels, panels_ - begin});
    units_.push_back({begin, end});
    begin = end;
  }
}

void Gemm::plan_phases(int threads) {
  const int64_t k_blocks = ceil_div(m_.K, kernels_.max_k);
  k_block_ = round_up(ceil_div(m_.K, k_blocks), 8);
  for (int64_t column = 0; column < m_.N; column += kMaxColumns)
    for (int64_t k = 0; k < m_.K; k += k_block_) {
      auto p = std::make_unique<Phase>();
      p->column0 = column;
      p->columns = std::min(m_.N - column, kMaxColumns);
      p->b_panels = ceil_div(p->columns, kernels_.columns);
      p->k0 = k;
      p->k1 = std::min(m_.K, k + k_block_);
      p->first = k == 0;
      p->last = p->k1 == m_.K;
      p->b_buffer = int(phases_.size() % 2);
      p->groups = 1;
      if (threads > 1 && panels_ < 4 * threads)
        p->groups =
            std::clamp<int64_t>(ceil_div(4 * threads, panels_), 1, ceil_div(p->b_panels, 2));
      p->packing.total = ceil_div(p->b_panels, kPackPanels);
      p->computing.total = int64_t(units_.size()) * p->groups;
      phases_.push_back(std::move(p));
    }
}

// First of n things in part i where they are spread evenly over `parts`.
int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  return i * (n / parts) + std::min(i, n % parts);
}

void Gemm::pack_b(const Phase& p, int64_t unit) const {
  const int64_t j = unit * kPackPanels * kernels_.columns;
  kernels_.pack_b({.b = at(m_.b, element_offset(m_.trans_b, ldb_, 0, p.column0 + j)),
                   .dtype = m_.b.dtype,
                   .ld = ldb_,
                   .trans = m_.trans_b,
                   .columns = std::min(kPackPanels * kernels_.columns, p.columns - j),
                   .k0 = p.k0,
                   .k1 = p.k1,
                   .out = b_[p.b_buffer] + j * (p.k1 - p.k0)});
}

void Gemm::compute(const Phase& p, int64_t unit, float* packed_a) const {
  const PanelRange range = units_[size_t(unit / p.groups)];
  const int64_t group = unit % p.groups;
  GemmKernels::Block s;
  s.panels = range.end - range.begin;
  int64_t row[kMaxUnitPanels + 1];
  for (int64_t i = 0; i <= s.panels; ++i) row[i] = part_begin(m_.M, panels_, range.begin + i);
  kernels_.pack_a({.a = at(m_.a, element_offset(m_.trans_a, lda_, row[0], 0)),
                   .dtype = m_.a.dtype,
                   .ld = lda_,
                   .trans = m_.trans_a,
                   .row = row,
                   .panels = s.panels,
                   .rows_to_end = m_.M - row[0],
                   .k0 = p.k0,
                   .k1 = p.k1,
                   .K = m_.K,
                   .out = packed_a});
  s.row = row;
  s.a = packed_a;
  s.a_k_major = m_.trans_a;
  s.k = p.k1 - p.k0;
  const int64_t b_panel0 = part_begin(p.b_panels, p.groups, group);
  s.b_panels = part_begin(p.b_panels, p.groups, group + 1) - b_panel0;
  const int64_t column = b_panel0 * kernels_.columns;
  s.b = b_[p.b_buffer] + column * s.k;
  s.columns = std::min(p.columns - column, s.b_panels * kernels_.columns);

  const int64_t c_offset = row[0] * m_.N + p.column0 + column;
  float* sums = sums_ ? sums_ + row[0] * p.columns + column : nullptr;
  const bool add = !p.first || m_.accumulate;
  s.in = !add ? nullptr : sums ? sums : m_.c_MN.as<float>() + c_offset;
  s.in_ld = sums ? p.columns : m_.N;
  const bool to_sums = sums && !p.last;
  s.out = to_sums ? static_cast<void*>(sums)
                  : m_.c_MN.as<char>() + c_offset * dtype_size(m_.c_MN.dtype);
  s.out_type = to_sums ? DType::f32 : m_.c_MN.dtype;
  s.out_ld = to_sums ? p.columns : m_.N;
  s.bias = p.last && m_.bias_N ? m_.bias_N.as<float>() + p.column0 + column : nullptr;
  kernels_.block(s);
}

void Gemm::work() {
  thread_local Scratch scratch;
  float* packed_a = scratch.floats(size_t(kMaxUnitPanels * kernels_.rows * kernels_.row_stride));
  for (size_t i = 0; i < phases_.size(); ++i) {
    Phase& p = *phases_[i];
    if (i >= 2) phases_[i - 2]->computing.wait();  // it read the buffer that is packed now
    p.packing.work([&](int64_t unit) { pack_b(p, unit); });
    p.packing.wait();
    if (i >= 1) phases_[i - 1]->computing.wait();  // its sums are added to
    p.computing.work([&](int64_t unit) { compute(p, unit, packed_a); });
  }
}

}  // namespace

void gemm(const Matmul& m, Isa isa) {
  const int threads = current_threads();
  Gemm gemm(m, kernels_of(isa), threads);
  if (threads == 1) return gemm.work();
  // One task per thread. Where the pool is busy elsewhere the tasks run here one after another: the
  // first does all the work and the others find none left.
  ThreadPool::current()->run(threads, [&](int64_t) { gemm.work(); });
}

}  // namespace mtrain::kernels::cpu
