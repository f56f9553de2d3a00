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

// Rows and columns of C that are packed at once: 4 MiB for each operand, twice, which a shared
// cache holds.
constexpr int64_t kMaxRows = 2048, kMaxColumns = 2048;
// Panels of A in a unit of work: 230 KiB, which stay in a core's second-level cache while panels of
// B pass by.
constexpr int64_t kUnitPanels = 8;

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

// A block of C and of k: pack A and B, then multiply. Blocks of k follow each other innermost.
struct Phase {
  int64_t row0, rows, column0, columns, k0, k1;
  bool first, last;        // of the blocks of k
  bool pack_a, pack_b;     // false: the operand is packed already
  int a_buffer, b_buffer;  // which of the two
  int64_t panels, b_panels, unit_panels, unit_b_panels;
  Counter packing, computing;
};

class Gemm {
 public:
  Gemm(const Matmul& m, const GemmKernels& kernels, int threads);
  void work();  // every thread of the pool calls it; returns when all phases are done
 private:
  void plan_phases();
  void pack(const Phase& p, int64_t unit) const;
  void compute(const Phase& p, int64_t unit) const;
  int64_t a_panel_floats() const { return kernels_.rows * kernels_.row_stride; }

  const Matmul& m_;
  const GemmKernels& kernels_;
  const int threads_;
  const int64_t lda_, ldb_;
  int64_t k_block_ = 0;
  std::vector<std::unique_ptr<Phase>> phases_;
  float* a_[2] = {};
  float* b_[2] = {};
  float* sums_ = nullptr;  // fp32 partial sums of a block where C is bf16 and k is cut
};

Gemm::Gemm(const Matmul& m, const GemmKernels& kernels, int threads)
    : m_(m),
      kernels_(kernels),
      threads_(threads),
      lda_(m.trans_a ? m.M : m.K),
      ldb_(m.trans_b ? m.K : m.N) {
  plan_phases();
  const int64_t rows = std::min(m.M, kMaxRows), columns = std::min(m.N, kMaxColumns);
  const int64_t a_floats = ceil_div(rows, kernels.rows) * a_panel_floats();
  const int64_t b_floats = ceil_div(columns, kernels.columns) * kernels.columns * k_block_;
  const bool cut = k_block_ < m.K, two_a = cut || m.M > kMaxRows, two_b = cut || m.N > kMaxColumns;
  const bool needs_sums = cut && m.c_MN.dtype == DType::bf16;
  thread_local Scratch scratch;
  float* next = scratch.floats(a_floats * (1 + two_a) + b_floats * (1 + two_b) +
                               (needs_sums ? rows * columns : 0));
  a_[0] = next;
  a_[1] = next + a_floats * two_a;
  next += a_floats * (1 + two_a);
  b_[0] = next;
  b_[1] = next + b_floats * two_b;
  sums_ = needs_sums ? next + b_floats * (1 + two_b) : nullptr;
}

// Units of work for `threads` threads: large enough to be worth a hand-out, small enough to end at
// about the same time.
void size_units(Phase& p, const GemmKernels& k, int threads) {
  p.panels = ceil_div(p.rows, k.rows);
  p.b_panels = ceil_div(p.columns, k.columns);
  p.unit_panels = std::min(p.panels, kUnitPanels);
  p.unit_b_panels = std::min<int64_t>(p.b_panels, 8);
  const auto units = [&] {
    return ceil_div(p.panels, p.unit_panels) * ceil_div(p.b_panels, p.unit_b_panels);
  };
  if (threads == 1) return;
  while (units() < 16 * threads && (p.unit_b_panels > 2 || p.unit_panels > 3)) {
    if (p.unit_b_panels > 2)
      p.unit_b_panels = ceil_div(p.unit_b_panels, 2);
    else
      p.unit_panels = ceil_div(p.unit_panels, 2);
  }
}

void Gemm::plan_phases() {
  const int64_t k_blocks = ceil_div(m_.K, kernels_.max_k);
  k_block_ = round_up(ceil_div(m_.K, k_blocks), 8);
  const bool cut = k_block_ < m_.K;
  int a_count = 0, b_count = 0;
  for (int64_t column = 0; column < m_.N; column += kMaxColumns)
    for (int64_t row = 0; row < m_.M; row += kMaxRows)
      for (int64_t k = 0; k < m_.K; k += k_block_) {
        auto p = std::make_unique<Phase>();
        p->row0 = row;
        p->rows = std::min(m_.M - row, kMaxRows);
        p->column0 = column;
        p->columns = std::min(m_.N - column, kMaxColumns);
        p->k0 = k;
        p->k1 = std::min(m_.K, k + k_block_);
        p->first = k == 0;
        p->last = p->k1 == m_.K;
        p->pack_a = cut || m_.M > kMaxRows || column == 0;
        p->pack_b = cut || row == 0;
        p->a_buffer = (a_count += p->pack_a) % 2;
        p->b_buffer = (b_count += p->pack_b) % 2;
        size_units(*p, kernels_, threads_);
        p->packing.total = (p->pack_a ? ceil_div(p->panels, 4) : 0) + (p->pack_b ? p->b_panels : 0);
        p->computing.total =
            ceil_div(p->panels, p->unit_panels) * ceil_div(p->b_panels, p->unit_b_panels);
        phases_.push_back(std::move(p));
      }
}

// First row of panel i where `rows` are spread evenly over `panels`.
int64_t panel_row(int64_t rows, int64_t panels, int64_t i) {
  return i * (rows / panels) + std::min(i, rows % panels);
}

void Gemm::pack(const Phase& p, int64_t unit) const {
  const int64_t b_units = p.pack_b ? p.b_panels : 0;
  if (unit < b_units) {
    const int64_t j = unit * kernels_.columns;
    kernels_.pack_b({.b = at(m_.b, element_offset(m_.trans_b, ldb_, 0, p.column0 + j)),
                     .dtype = m_.b.dtype,
                     .ld = ldb_,
                     .trans = m_.trans_b,
                     .columns = std::min<int64_t>(kernels_.columns, p.columns - j),
                     .k0 = p.k0,
                     .k1 = p.k1,
                     .out = b_[p.b_buffer] + j * (p.k1 - p.k0)});
    return;
  }
  const int64_t begin = (unit - b_units) * 4, end = std::min(p.panels, begin + 4);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = panel_row(p.rows, p.panels, i);
    kernels_.pack_a({.a = at(m_.a, element_offset(m_.trans_a, lda_, p.row0 + row, 0)),
                     .dtype = m_.a.dtype,
                     .ld = lda_,
                     .trans = m_.trans_a,
                     .rows = panel_row(p.rows, p.panels, i + 1) - row,
                     .rows_to_end = m_.M - p.row0 - row,
                     .k0 = p.k0,
                     .k1 = p.k1,
                     .K = m_.K,
                     .out = a_[p.a_buffer] + i * a_panel_floats()});
  }
}

void Gemm::compute(const Phase& p, int64_t unit) const {
  const int64_t across = ceil_div(p.b_panels, p.unit_b_panels);
  const int64_t panel0 = unit / across * p.unit_panels, b_panel0 = unit % across * p.unit_b_panels;
  GemmKernels::Block s;
  s.panels = std::min(p.unit_panels, p.panels - panel0);
  s.b_panels = std::min(p.unit_b_panels, p.b_panels - b_panel0);
  int64_t row[kUnitPanels + 1];
  for (int64_t i = 0; i <= s.panels; ++i) row[i] = panel_row(p.rows, p.panels, panel0 + i);
  s.row = row;
  s.a = a_[p.a_buffer] + panel0 * a_panel_floats();
  s.a_k_major = m_.trans_a;
  const int64_t column = b_panel0 * kernels_.columns;
  s.k = p.k1 - p.k0;
  s.b = b_[p.b_buffer] + column * s.k;
  s.columns = std::min(p.columns - column, s.b_panels * kernels_.columns);

  const int64_t c_offset = (p.row0 + row[0]) * m_.N + p.column0 + column;
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
  for (size_t i = 0; i < phases_.size(); ++i) {
    Phase& p = *phases_[i];
    if (i >= 2) phases_[i - 2]->computing.wait();  // it read the buffers that are packed now
    p.packing.work([&](int64_t unit) { pack(p, unit); });
    p.packing.wait();
    if (i >= 1) phases_[i - 1]->computing.wait();  // its sums are added to
    p.computing.work([&](int64_t unit) { compute(p, unit); });
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
