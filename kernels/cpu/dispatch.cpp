#include "kernels/cpu/dispatch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/cpu/parallel.h"

namespace mtrain::kernels::cpu {
namespace {

constexpr Isa kAll[] = {Isa::avx512, Isa::avx2, Isa::generic};  // widest first

// Returns whether the CPU and the build have the instruction set, regardless of MTRAIN_CPU_ISA.
bool is_here(Isa isa) {
  switch (isa) {  // the levels that kernels/CMakeLists.txt compiles for
#ifdef MTRAIN_HAS_AVX512
    case Isa::avx512: return __builtin_cpu_supports("x86-64-v4");
#endif
#ifdef MTRAIN_HAS_AVX2
    case Isa::avx2: return __builtin_cpu_supports("x86-64-v3");
#endif
    case Isa::generic: return true;
    default: return false;
  }
}

struct Widest {
  Isa isa;
  bool tiles;
};

Widest find_widest() {
  const char* asked = std::getenv("MTRAIN_CPU_ISA");
  if (asked && *asked) {
    for (Isa isa : kAll)
      if (std::string_view(asked) == isa_name(isa)) {
        if (is_here(isa)) return {isa, false};
        throw UserError(fmt::format("MTRAIN_CPU_ISA={}: this CPU or build does not have it", asked),
                        "unset it, or set it to a narrower one: avx512 > avx2 > generic");
      }
    throw UserError(fmt::format("MTRAIN_CPU_ISA={}: no such instruction set", asked),
                    "use generic, avx2 or avx512, or unset it to take the widest");
  }
  for (Isa isa : kAll)
    if (is_here(isa)) return {isa, true};
  return {Isa::generic, false};
}

// The environment is read once per process.
const Widest& widest() {
  static const Widest found = find_widest();
  return found;
}

constexpr int kUnset = -1;
std::atomic<int> current{kUnset};  // set at the first call of isa()

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    default: return "generic";
  }
}

bool build_lacks_wider_isa() {
#if defined(__x86_64__)
  return (__builtin_cpu_supports("x86-64-v4") && !is_here(Isa::avx512)) ||
         (__builtin_cpu_supports("x86-64-v3") && !is_here(Isa::avx2));
#else
  return false;
#endif
}

bool isa_supported(Isa isa) { return is_here(isa) && isa <= widest().isa; }
bool tiles_allowed() { return widest().tiles; }

Isa isa() {
  const int known = current.load(std::memory_order_relaxed);
  if (known != kUnset) [[likely]]
    return Isa(known);
  const Isa chosen = widest().isa;
  current.store(int(chosen), std::memory_order_relaxed);
  return chosen;
}

void set_isa(Isa isa) {
  if (!isa_supported(isa))
    throw UserError(fmt::format("this CPU or build does not have {}", isa_name(isa)),
                    "use a narrower instruction set: avx512 > avx2 > generic");
  current.store(int(isa), std::memory_order_relaxed);
}

void parallel_chunks(int64_t n, int64_t grain, const void* context, ChunkFunction fn) {
  if (n <= grain) {
    if (n > 0) fn(context, 0, n);
    return;
  }
  parallel_for(n, grain, [&](int64_t begin, int64_t end) { fn(context, begin, end); });
}

void* allocate_scratch(int64_t bytes) {
  return ::operator new(size_t(std::max<int64_t>(bytes, 1)), std::align_val_t(64));
}
void free_scratch(void* p) { ::operator delete(p, std::align_val_t(64)); }

}  // namespace mtrain::kernels::cpu
