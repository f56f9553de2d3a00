// Matmul through a library of GEMMs: conversions around it, the choice among its algorithms, and
// the fallback if it refuses. This header includes no CUDA header.
//
// A kind of GEMM runs with the library's first algorithm or, after a measurement, with the fastest
// one: time() measures, and use() sets the choices. If an algorithm refuses a call, the next one is
// tried. After the last one, mtrain's own kernels compute the epilogue or the bias.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_api.h"
#include "kernels/cuda/gemm/gemm_choice.h"
#include "kernels/cuda/plan_cache.h"

namespace mtrain::kernels::cuda {

class LibraryMatmul {
 public:
  // The owner must keep both alive.
  LibraryMatmul(const GemmApi& api, const GemmDevice& device) : api_(api), device_(device) {}

  // Throws RunError if the library has no algorithm, or fails. In the capture of a graph, it also
  // throws if such a GEMM did not run before the capture. Thread-safe.
  void run(const Matmul& m, CUstream_st* stream);

  // --- choices by measuring; callers decide when, and agree with the other ranks ---
  static constexpr size_t kMaxTimed = 48;
  // Returns at most kMaxTimed keys that have run without a choice, the most expensive first.
  std::vector<MatmulKey> unchosen() const;
  // Measures keys, which need not have run here, and returns the choices for them and for the plain
  // GEMMs of their epilogues. It skips and reports a key that does not fit into memory, and keys
  // that have not begun when `seconds` have passed. Therefore pass the most expensive keys first.
  std::vector<GemmChoice> time(const std::vector<MatmulKey>& keys, double seconds,
                               CUstream_st* stream);
  // Sets the choices, from the next call on. A choice that the library does not offer is dropped
  // and reported when the key runs.
  void use(const std::vector<GemmChoice>& choices);
  std::vector<GemmChoice> choices() const;

 private:
  struct Plan {
    std::shared_ptr<const GemmProblem> problem;
    std::vector<GemmAlgorithm> algorithms;  // the first is used; empty: the library has refused
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
  // Return whether the library has computed the matmul, with its bias or epilogue.
  bool multiply(const Matmul& m, CUstream_st* stream);
  bool run_fused(const Matmul& m, CUstream_st* stream);
  GemmAnswer run_one(const Plan& plan, const GemmAlgorithm& algorithm, const Matmul& m,
                     CUstream_st* stream) const;
  void run_plain(const Matmul& m, CUstream_st* stream);
  void run_empty_sum(const Matmul& m, CUstream_st* stream);
  void run_apart(const Matmul& m, CUstream_st* stream);
  struct Fastest {
    GemmAlgorithm::Bits bits;
    double seconds;
  };
  std::optional<Fastest> fastest_of(const MatmulKey& key, CUstream_st* stream);
  double seconds_apart(const MatmulKey& key, CUstream_st* stream);
  void time_one(const MatmulKey& key, std::vector<GemmChoice>& found, CUstream_st* stream);
  bool is_chosen(const MatmulKey& key) const;

  const GemmApi& api_;
  const GemmDevice& device_;
  PlanCache<MatmulKey, PlanRef> plans_;
  mutable std::mutex choosing_;  // guards the member below; also locked inside plans_'s functions
  std::map<MatmulKey, GemmChoice> choices_;
};

}  // namespace mtrain::kernels::cuda
