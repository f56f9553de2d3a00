// OpenBLAS's sgemm, loaded at run time. The library reads its kernel choice from the environment
// while it loads and misjudges new CPUs (an AVX-512 machine may get kernels of 2004). It is
// therefore loaded with environment variables of our choice. It is optional: where it is missing or
// was not loaded, available() is false.
#pragma once
#include <cstdint>
#include <string>

namespace mtrain::bench::openblas {

// Loads the library, once. It changes environment variables for a moment, which is not safe against
// threads that read them: call it before there are any.
void load();

bool available();
std::string core_name();  // the kernels it took ("SkylakeX", ...); empty where not available

// C (M, N; rows ldc apart) = op(A) op(B) + beta C on the calling thread alone; lda, ldb: row
// strides as stored.
struct Sgemm {
  const float* a;
  const float* b;
  float* c;
  int64_t M, N, K;
  int64_t lda, ldb, ldc;
  bool trans_a, trans_b;
  float beta;
};
void run(const Sgemm&);

}  // namespace mtrain::bench::openblas
