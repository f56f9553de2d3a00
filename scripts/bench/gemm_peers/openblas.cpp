#include "openblas.h"

#include <atomic>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/math.h"
#include "base/shared_library.h"
#include "openmp.h"

namespace mtrain::bench::openblas {
namespace {

using SgemmFunction = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                           const float* a, int lda, const float* b, int ldb, float beta, float* c,
                           int ldc);

struct Library {
  SgemmFunction* sgemm = nullptr;
  std::string core;
};

#ifdef MTRAIN_BENCH_OPENBLAS
// Sets an environment variable as long as the object lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    if (value)
      setenv(name, value, 1);
    else
      unsetenv(name);
  }
  ~ScopedVariable() {
    if (old_)
      setenv(name_, old_->c_str(), 1);
    else
      unsetenv(name_);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// Null: let the library choose (CPUs without AVX2, where its choice is right).
const char* core_for_this_cpu() {
  if (const char* asked = std::getenv("MTRAIN_OPENBLAS_CORETYPE"); asked && *asked) return asked;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
    return __builtin_cpu_supports("avx512bf16") ? "Cooperlake" : "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
#endif
  return nullptr;
}

// It reads these variables while it is loaded.
SharedLibrary load_file() {
  const ScopedVariable coretype("OPENBLAS_CORETYPE", core_for_this_cpu()),
      threads("OPENBLAS_NUM_THREADS", "1"), l2("OPENBLAS_L2_SIZE", nullptr);
  return SharedLibrary(MTRAIN_BENCH_OPENBLAS);
}

Library open() {
  SharedLibrary file = load_file();
  void (*set_threads)(int);
  char* (*core_name)();
  Library lib;
  file.find(set_threads, "openblas_set_num_threads");
  file.find(core_name, "openblas_get_corename");
  file.find(lib.sgemm, "cblas_sgemm");
  if (!file.problem().empty()) return {};
  set_threads(1);
  lib.core = core_name();
  return lib;
}
#else
Library open() { return {}; }
#endif

std::atomic<const Library*> g_library{nullptr};  // a fact of the process, found by load()

}  // namespace

void load() {
  static const Library lib = open();
  g_library = &lib;
}

bool available() {
  const Library* lib = g_library;
  return lib && lib->sgemm;
}
std::string core_name() { return available() ? g_library.load()->core : ""; }

void run(const Sgemm& g) {
  MT_CHECK(available());
  use_one_openmp_thread();
  constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
  g_library.load()->sgemm(kRowMajor, g.trans_a ? kTrans : kNoTrans, g.trans_b ? kTrans : kNoTrans,
                          narrow<int>(g.M), narrow<int>(g.N), narrow<int>(g.K), 1.0f, g.a,
                          narrow<int>(g.lda), g.b, narrow<int>(g.ldb), g.beta, g.c,
                          narrow<int>(g.ldc));
}

}  // namespace mtrain::bench::openblas
