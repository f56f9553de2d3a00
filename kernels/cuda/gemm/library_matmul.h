// Matmul through a library of GEMMs: conversions around it, the choice among its algorithms, and
// what mtrain does where it refuses. This header includes nothing of CUDA.
//
// A kind of GEMM is run with the algorithm that the library names first, or with the one that was
// measured to be the fastest, where that is known: time() measures, use() makes it known. Where an
// algorithm refuses a call, the next one is asked, and behind the last mtrain's own kernels compute
// the epilogue or the bias.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_api.h"
#include "kernels/cuda/gemm/gemm_choice.h"
#include "kernels/cuda/plan_cache.h"

namespace mtrain::kernels::cuda {

class LibraryMatmul {
 public:
  // The owner keeps both alive.
  LibraryMatmul(const GemmApi& api, const GemmDevice& device) : api_(api), device_(device) {}

  // Throws RunError where the library has no algorithm, or fails; and in the capture of a graph
  // also where such a GEMM did not run before it. Thread safe.
  void run(const Matmul& m, CUstream_st* stream);

  // --- choices by measuring; callers decide when, and agree with other ranks ---
  static constexpr size_t kMostTimed = 48;
  // Returns the keys that have run without a choice, those that cost most first, and at most
  // kMostTimed of them.
  std::vector<MatmulKey> unchosen() const;
  // Measures keys, which need not have run here, and returns the choices for them and for the plain
  // GEMMs of their epilogues. A key for which there is no memory is left out, and told; and those
  // that have not begun when `seconds` have passed, so that the keys that cost most come first.
  std::vector<GemmChoice> time(const std::vector<MatmulKey>& keys, double seconds,
                               CUstream_st* stream);
  // From the next call on. A choice that the library does not offer (any more) is forgotten when
  // the key runs, and told.
  void use(const std::vector<GemmChoice>& choices);
  std::vector<GemmChoice> choices() const;

 private:
  struct Plan {
    std::shared_ptr<const GemmProblem> problem;
    std::vector<GemmAlgorithm> algorithms;  // the first is used; none: the library has refused
    bool apart;                             // the epilogue is computed by mtrain's own kernels
    std::string refusal;                    // why the library has no more algorithms
    mutable std::atomic<int64_t> runs{0};
  };
  using PlanRef = std::shared_ptr<const Plan>;
  struct Timed;

  PlanRef make(const MatmulKey& key);
  PlanRef plan_of(const MatmulKey& key) {
    return plans_.get(key, [&] { return make(key); });
  }
  PlanRef without_first(const MatmulKey& key, const PlanRef& plan, const std::string& refusal);
  // Return whether the library computes it, with its bias or epilogue.
  bool multiply(const Matmul& m, CUstream_st* stream);
  bool run_whole(const Matmul& m, CUstream_st* stream);
  GemmAnswer run_one(const Plan& plan, const GemmAlgorithm& algorithm, const Matmul& m,
                     CUstream_st* stream) const;
  void run_plain(const Matmul& m, CUstream_st* stream);
  void run_empty_sum(const Matmul& m, CUstream_st* stream);
  void run_apart(const Matmul& m, CUstream_st* stream);
  void time_one(const MatmulKey& key, std::vector<GemmChoice>& found, CUstream_st* stream);
  bool is_chosen(const MatmulKey& key) const;

  const GemmApi& api_;
  const GemmDevice& device_;
  PlanCache<MatmulKey, PlanRef> plans_;
  mutable std::mutex choosing_;  // guards the member below; taken inside of plans_'s functions too
  std::map<MatmulKey, GemmChoice> choices_;
};

}  // namespace mtrain::kernels::cuda
