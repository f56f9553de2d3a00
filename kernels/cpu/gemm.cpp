#include "kernels/cpu/gemm.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
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
namespace avx512bf16 {
extern const GemmKernels kGemm;
}
namespace avx512amx {
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

// Sizes of a unit of packing. If B is transposed, a unit is some panels for all k of a block, since
// its storage runs along k. Otherwise it is all panels for some k, a multiple of every
// word_multiple.
constexpr int64_t kPackPanels = 4, kPackK = 64;
constexpr int64_t kMaxUnitPanels = 16;

// Units of one kind of work, handed out in order. A waiting thread spins, then yields, since there
// may be more ranks than cores.
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

// The split of k, and with it the bits of the result, depends only on K. Blocks begin with a word.
int64_t k_block(int64_t K, const GemmKernels& kernels) {
  const int64_t max_k = kernels.max_words * kernels.depth;
  return round_up(ceil_div(K, ceil_div(K, max_k)),
                  std::max(8, kernels.depth * kernels.word_multiple));
}

// The GEMM in the form that is computed: the caller's form, or C^T = op(B)^T op(A)^T, whose
// elements are the same sums.
struct ComputedGemm {
  ConstSpan a, b;
  int64_t M, N, K, lda, ldb;
  bool trans_a, trans_b;
  bool transposed;  // element (row, column) of C is at column * ldc + row
  int64_t ldc;
};

ComputedGemm computed_gemm(const Matmul& m, const GemmKernels& kernels) {
  const int64_t lda = m.trans_a ? m.M : m.K, ldb = m.trans_b ? m.K : m.N;
  // A row-major B^T must be transposed while it is packed, and only the M rows of C share this
  // cost. With few rows, the smaller operand is the better B.
  if (m.trans_b && !m.trans_a && m.M <= kernels.few_rows && 2 * m.M <= m.N)
    return {m.b, m.a, m.N, m.M, m.K, ldb, lda, false, true, true, m.N};
  return {m.a, m.b, m.M, m.N, m.K, lda, ldb, m.trans_a, m.trans_b, false, m.N};
}

// Panels [begin, end) of A.
struct PanelRange {
  int64_t begin, end;
};

// One block of columns and of k: all threads pack B, then multiply. The inner loop is over the
// blocks of k.
struct Phase {
  int64_t column0, columns, b_panels;
  int64_t k0, k1;
  int b_buffer;                 // 0 or 1
  int64_t pack_panels, pack_k;  // the size of one unit of packing
  int64_t groups;  // groups of columns: several if A has too few panels for all threads
  Counter packing, computing;
};

class Gemm {
 public:
  Gemm(const Matmul& m, const GemmKernels& kernels, int threads);
  // To be called before work(), with memory() floats that no other GEMM uses until this one has
  // ended.
  size_t memory() const { return memory_; }
  void set_memory(float* memory);
  // Every thread of the pool calls it. It returns when no unit is left to begin; other threads may
  // still compute.
  void work();
  void wait() const { phases_.back()->computing.wait(); }  // until all is computed

 private:
  struct Own {  // memory of one thread
    float *a, *sums;
  };
  void plan_units();
  void plan_phases();
  void pack_b(const Phase& p, int64_t unit) const;
  void compute(const Phase& p, int64_t unit, const Own& own) const;
  const void* next_of_a(const Phase& p, int64_t unit, int64_t k1) const;
  GemmKernels::PackA panels_of_a(const PanelRange& range, int64_t k0, int64_t k1,
                                 int64_t* row) const;
  int64_t words(int64_t k) const {
    return round_up(ceil_div(k, int64_t(kernels_.depth)), kernels_.word_multiple);
  }
  int64_t offset(int64_t row, int64_t column, int64_t ld) const {
    return p_.transposed ? column * ld + row : row * ld + column;
  }

  const Matmul& m_;
  const ComputedGemm p_;
  const GemmKernels& kernels_;
  const int threads_;
  const int64_t panels_;
  int64_t k_block_ = 0, column_block_ = 0, unit_panels_ = 0;
  int64_t b_floats_ = 0, phase_sums_floats_ = 0;
  std::vector<PanelRange> units_;
  std::vector<std::unique_ptr<Phase>> phases_;
  size_t memory_ = 0;
  float* b_[2] = {};
  // fp32 partial sums, used if C has 16 bits and k is split: of a unit, or of a block of columns if
  // phases also split k.
  bool unit_sums_ = false;
  float* phase_sums_ = nullptr;
};

Gemm::Gemm(const Matmul& m, const GemmKernels& kernels, int threads)
    : m_(m),
      p_(computed_gemm(m, kernels)),
      kernels_(kernels),
      threads_(threads),
      panels_(ceil_div(p_.M, kernels.rows)) {
  k_block_ = k_block(m.K, kernels);
  column_block_ =
      std::min(round_up(p_.N, kernels.columns),
               std::clamp(kernels.max_packed_b / words(p_.K) / kernels.columns * kernels.columns,
                          kernels.min_columns, kernels.max_columns));
  plan_units();
  plan_phases();
  const bool sums = k_block_ < m.K && is_half(m.c_MN.dtype);
  const bool phases_cut_k = phases_[0]->k1 < m.K;
  unit_sums_ = sums && !phases_cut_k;
  phase_sums_floats_ = sums && phases_cut_k ? p_.M * column_block_ : 0;
  b_floats_ = column_block_ * words(phases_[0]->k1 - phases_[0]->k0);
  memory_ = size_t(b_floats_ * (phases_.size() > 1 ? 2 : 1) + phase_sums_floats_);
}

void Gemm::set_memory(float* memory) {
  b_[0] = memory;
  b_[1] = memory + (phases_.size() > 1 ? b_floats_ : 0);
  if (phase_sums_floats_ > 0) phase_sums_ = b_[1] + b_floats_;
}

// Large units come first and small ones last: the threads then end at about the same time.
void Gemm::plan_units() {
  unit_panels_ = std::clamp(kernels_.unit_words / (kernels_.rows * words(k_block_)),
                            kernels_.min_unit_panels, kernels_.max_unit_panels);
  MT_CHECK(unit_panels_ <= kMaxUnitPanels, "{} panels", unit_panels_);
  for (int64_t begin = 0; begin < panels_;) {
    const int64_t fair = threads_ == 1 ? panels_ : ceil_div(panels_ - begin, 2 * threads_);
    const int64_t end = begin + std::min({fair, unit_panels_, panels_ - begin});
    units_.push_back({begin, end});
    begin = end;
  }
}

void Gemm::plan_phases() {
  const int64_t k_blocks =
      std::max<int64_t>(1, kernels_.max_packed_b / (column_block_ * words(k_block_)));
  for (int64_t column = 0; column < p_.N; column += column_block_)
    for (int64_t k = 0; k < p_.K; k += k_blocks * k_block_) {
      auto p = std::make_unique<Phase>();
      p->column0 = column;
      p->columns = std::min(p_.N - column, column_block_);
      p->b_panels = ceil_div(p->columns, kernels_.columns);
      p->k0 = k;
      p->k1 = std::min(p_.K, k + k_blocks * k_block_);
      p->b_buffer = int(phases_.size() % 2);
      p->groups = 1;
      if (threads_ > 1 && panels_ < 4 * threads_)
        p->groups =
            std::clamp<int64_t>(ceil_div(4 * threads_, panels_), 1, ceil_div(p->b_panels, 2));
      p->pack_panels = p_.trans_b ? kPackPanels : p->b_panels;
      p->pack_k = p_.trans_b ? k_block_ : kPackK;
      p->packing.total = ceil_div(p->b_panels, p->pack_panels) * ceil_div(k_block_, p->pack_k) *
                         ceil_div(p->k1 - p->k0, k_block_);
      p->computing.total = int64_t(units_.size()) * p->groups;
      phases_.push_back(std::move(p));
    }
}

// Returns where part i begins if n items are split evenly into `parts` parts.
int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  return i * (n / parts) + std::min(i, n % parts);
}

// The layout of packed B is [blocks of k][panels of columns][k][column].
void Gemm::pack_b(const Phase& p, int64_t unit) const {
  const int64_t across = ceil_div(p.b_panels, p.pack_panels), along = ceil_div(k_block_, p.pack_k);
  const int64_t j = unit % across * p.pack_panels * kernels_.columns;
  const int64_t block0 = p.k0 + unit / across / along * k_block_;
  const int64_t block1 = std::min(p.k1, block0 + k_block_);
  const int64_t k0 = block0 + unit / across % along * p.pack_k;
  if (k0 >= block1) return;
  const int64_t panel = kernels_.columns * words(block1 - block0);
  kernels_.pack_b({.b = at(p_.b, element_offset(p_.trans_b, p_.ldb, 0, p.column0 + j)),
                   .dtype = p_.b.dtype,
                   .ld = p_.ldb,
                   .trans = p_.trans_b,
                   .columns = std::min(p.pack_panels * kernels_.columns, p.columns - j),
                   .k0 = k0,
                   .k1 = std::min(block1, k0 + p.pack_k),
                   .out = b_[p.b_buffer] + words(block0 - p.k0) * p.b_panels * kernels_.columns +
                          j / kernels_.columns * panel + words(k0 - block0) * kernels_.columns,
                   .panel_stride = panel});
}

// Returns the PackA of the range's panels with their rows; `out` is not set yet.
GemmKernels::PackA Gemm::panels_of_a(const PanelRange& range, int64_t k0, int64_t k1,
                                     int64_t* row) const {
  const int64_t panels = range.end - range.begin;
  for (int64_t i = 0; i <= panels; ++i) row[i] = part_begin(p_.M, panels_, range.begin + i);
  return {.a = at(p_.a, element_offset(p_.trans_a, p_.lda, row[0], 0)),
          .dtype = p_.a.dtype,
          .ld = p_.lda,
          .trans = p_.trans_a,
          .row = row,
          .panels = panels,
          .rows_to_end = p_.M - row[0],
          .k0 = k0,
          .k1 = k1,
          .K = p_.K,
          .out = nullptr};
}

// Returns the part of A that this thread will probably read next: the next k block of this unit's
// rows. After the last one, it is the phase's first k block of the thread's next unit, assuming
// that all threads are equally fast.
const void* Gemm::next_of_a(const Phase& p, int64_t unit, int64_t k1) const {
  if (k1 == p.k1) {
    unit += threads_;
    k1 = p.k0;
  }
  const size_t i = size_t(unit / p.groups);
  if (i >= units_.size()) return nullptr;
  const int64_t row = part_begin(p_.M, panels_, units_[i].begin);
  return at(p_.a, element_offset(p_.trans_a, p_.lda, row, k1));
}

void Gemm::compute(const Phase& p, int64_t unit, const Own& own) const {
  const int64_t group = unit % p.groups;
  const PanelRange& range = units_[size_t(unit / p.groups)];
  int64_t row[kMaxUnitPanels + 1];
  for (int64_t k0 = p.k0; k0 < p.k1; k0 += k_block_) {
    const int64_t k1 = std::min(p.k1, k0 + k_block_);
    GemmKernels::Block s;
    GemmKernels::PackA a = panels_of_a(range, k0, k1, row);
    if (kernels_.a_in_place && kernels_.a_in_place(a)) {
      s.a = at(p_.a, element_offset(p_.trans_a, p_.lda, row[0], k0));
      s.a_ld = p_.lda;
    } else {
      a.out = own.a;
      kernels_.pack_a(a);
      s.a = own.a;
      s.a_ld = 0;
    }
    s.panels = a.panels;
    s.row = row;
    s.a_k_major = p_.trans_a;
    s.next_a = next_of_a(p, unit, k1);
    s.next_a_ld = p_.lda, s.next_a_size = dtype_size(p_.a.dtype);
    s.words = words(k1 - k0);
    const int64_t b_panel0 = part_begin(p.b_panels, p.groups, group);
    s.b_panels = part_begin(p.b_panels, p.groups, group + 1) - b_panel0;
    const int64_t column = b_panel0 * kernels_.columns;
    s.b = b_[p.b_buffer] + words(k0 - p.k0) * p.b_panels * kernels_.columns + column * s.words;
    s.columns = std::min(p.columns - column, s.b_panels * kernels_.columns);
    s.transposed = p_.transposed;

    const bool first = k0 == 0, last = k1 == p_.K;
    const int64_t rows = row[s.panels] - row[0];
    const int64_t sums_ld =
        unit_sums_ ? (p_.transposed ? rows : s.columns) : (p_.transposed ? p_.M : p.columns);
    float* sums = unit_sums_    ? own.sums
                  : phase_sums_ ? phase_sums_ + offset(row[0], column, sums_ld)
                                : nullptr;
    const int64_t c = offset(row[0], p.column0 + column, p_.ldc);
    const bool add = !first || m_.accumulate, to_sums = sums && !last;
    s.in = !add ? nullptr : sums ? sums : m_.c_MN.as<float>() + c;
    s.in_ld = sums ? sums_ld : p_.ldc;
    s.out = to_sums ? static_cast<void*>(sums) : m_.c_MN.as<char>() + c * dtype_size(m_.c_MN.dtype);
    s.out_type = to_sums ? DType::f32 : m_.c_MN.dtype;
    s.out_ld = to_sums ? sums_ld : p_.ldc;
    s.bias = last && m_.bias_N
                 ? m_.bias_N.as<float>() + (p_.transposed ? row[0] : p.column0 + column)
                 : nullptr;
    kernels_.block(s);
  }
}

void Gemm::work() {
  thread_local Scratch scratch;
  const int64_t a_floats = unit_panels_ * kernels_.rows * kernels_.row_stride;
  const int64_t sums = unit_sums_ ? unit_panels_ * kernels_.rows * column_block_ : 0;
  Own own;
  own.a = scratch.floats(size_t(a_floats + sums));
  own.sums = own.a + a_floats;
  if (kernels_.begin) kernels_.begin();
  for (size_t i = 0; i < phases_.size(); ++i) {
    Phase& p = *phases_[i];
    if (i >= 2) phases_[i - 2]->computing.wait();  // it reads the buffer that is packed next
    p.packing.work([&](int64_t unit) { pack_b(p, unit); });
    p.packing.wait();
    if (i >= 1) phases_[i - 1]->computing.wait();  // this phase adds to its sums
    p.computing.work([&](int64_t unit) { compute(p, unit, own); });
  }
  if (kernels_.end) kernels_.end();
}

[[maybe_unused]] void check_bf16(std::span<const Matmul> list) {
  for (const Matmul& m : list)
    MT_CHECK(m.a.dtype == DType::bf16 && m.b.dtype == DType::bf16, "a {} b {}",
             dtype_name(m.a.dtype), dtype_name(m.b.dtype));
}

// Several GEMMs form one list of work: a thread that finds no unit left in one begins the next.
void multiply(std::span<const Matmul> list, const GemmKernels& kernels) {
  const int threads = current_threads();
  std::vector<std::unique_ptr<Gemm>> gemms;
  size_t floats[2] = {};  // memory of the GEMMs with even and with odd indices
  for (const Matmul& m : list) {
    gemms.push_back(std::make_unique<Gemm>(m, kernels, threads));
    size_t& most = floats[(gemms.size() - 1) % 2];
    most = std::max(most, gemms.back()->memory());
  }
  thread_local Scratch scratch;
  constexpr size_t kLine = 16;  // floats of a cache line
  floats[0] = (floats[0] + kLine - 1) / kLine * kLine;
  float* const memory = scratch.floats(floats[0] + floats[1]);
  for (size_t i = 0; i < gemms.size(); ++i) gemms[i]->set_memory(memory + i % 2 * floats[0]);
  const auto work = [&](int64_t) {
    for (size_t i = 0; i < gemms.size(); ++i) {
      if (i >= 2) gemms[i - 2]->wait();  // it uses the memory that is written next
      gemms[i]->work();
    }
  };
  if (threads == 1) return work(0);
  // There is one task for each thread. If the pool is busy with other work, the tasks run here one
  // after another: the first one does all the work, and nothing is left for the others.
  ThreadPool::current()->run(threads, work);
}

}  // namespace

int64_t gemm_k_block(int64_t K, Isa isa) { return k_block(K, kernels_of(isa)); }

void gemm(std::span<const Matmul> list, Isa isa) { multiply(list, kernels_of(isa)); }

#ifdef MTRAIN_HAS_AVX512BF16
bool gemm_bf16_supported() {
  return isa_supported(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
}
void gemm_bf16(std::span<const Matmul> list) {
  check_bf16(list);
  MT_CHECK(gemm_bf16_supported(), "this CPU has no AVX512_BF16");
  multiply(list, avx512bf16::kGemm);
}
#else
bool gemm_bf16_supported() { return false; }
void gemm_bf16(std::span<const Matmul>) { MT_CHECK(false, "this build has no AVX512_BF16"); }
#endif

#ifdef MTRAIN_HAS_AVX512AMX
namespace {
// Asks Linux for permission to use tiles, once, for all threads of the process: Linux saves these 8
// KiB of registers only for processes that have asked. A system that does not support tiles, or
// forbids them, refuses.
bool may_use_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!gemm_bf16_supported() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & bit_AMX_TILE) || !(edx & bit_AMX_BF16)) return false;
  // From <asm/prctl.h>, since Linux 5.16.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
}  // namespace

bool gemm_amx_supported() {
  static const bool supported = may_use_tiles();
  return supported;
}
void gemm_amx(std::span<const Matmul> list) {
  check_bf16(list);
  MT_CHECK(gemm_amx_supported(), "this CPU has no AMX tiles, or this process may not use them");
  multiply(list, avx512amx::kGemm);
}
#else
bool gemm_amx_supported() { return false; }
void gemm_amx(std::span<const Matmul>) { MT_CHECK(false, "this build has no AMX tiles"); }
#endif

}  // namespace mtrain::kernels::cpu
