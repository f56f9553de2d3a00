// A stand-in for cuBLASLt and a GPU's clock. It computes GEMMs as the CPU kernels do. A test sets
// the algorithms that it offers, the calls that it refuses, and the time that it takes.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/matmul_workspace.h"
#include "kernels/cuda/gemm/library_matmul.h"
#include "kernels/matmul_unfused.h"

namespace mtrain::test {

struct GemmStandIn final : kernels::cuda::GemmApi, kernels::cuda::GemmDevice {
  using Answer = kernels::cuda::GemmAnswer;
  using Epilogue = kernels::cuda::Epilogue;
  using Key = kernels::cuda::MatmulKey;
  using Matmul = kernels::Matmul;

  // --- members that a test sets; algorithms have numbers ---
  std::map<Epilogue, std::vector<uint64_t>> offers;  // the others: 1, 2, 3
  // The status of an algorithm, by its number, or of all algorithms of an epilogue.
  std::map<uint64_t, Answer::Status> answers;
  std::map<Epilogue, Answer::Status> epilogue_answers;
  std::map<uint64_t, uint32_t> split_sums;                // by number; the others: K is not split
  std::map<std::pair<Epilogue, uint64_t>, double> times;  // seconds; the others: 1
  double column_sum_time = 0.5;
  bool captures = false, has_failed = false;
  int64_t free_bytes = int64_t(1) << 40;  // for other memory than the workspace
  int64_t cache = 0;
  // --- members that a test reads ---
  mutable std::vector<std::pair<Epilogue, uint64_t>> ran;
  mutable std::vector<const void*> results;  // where each call that ran wrote C
  mutable int64_t taken = 0;
  mutable int healthy_asked = 0, column_sums = 0;

  class Problem final : public kernels::cuda::GemmProblem {
   public:
    Problem(const GemmStandIn& library, const Key& key) : library_(library), key_(key) {}
    Offer offer(int most) const override {
      Offer offer{.algorithms = {}, .why_none = "the stand-in's why"};
      for (const uint64_t number : numbers())
        if (int(offer.algorithms.size()) < most) offer.algorithms.push_back(algorithm({number}));
      return offer;
    }
    std::optional<kernels::cuda::GemmAlgorithm> find(
        const kernels::cuda::GemmAlgorithm::Bits& bits) const override {
      for (const uint64_t number : numbers())
        if (bits[0] == number) return algorithm(bits);
      return std::nullopt;
    }
    Answer run(const Matmul& m, const void* bias, const kernels::cuda::GemmAlgorithm& algorithm,
               void* workspace, CUstream_st*) const override {
      MT_CHECK(workspace, "no workspace");
      library_.ran.push_back({key_.epilogue, algorithm.bits[0]});
      library_.results.push_back(m.c_MN.data);
      for (const auto status : {library_.answer(key_.epilogue, library_.epilogue_answers),
                                library_.answer(algorithm.bits[0], library_.answers)})
        if (status != Answer::Status::done) return {status, "the stand-in refuses"};
      library_.clock_ += library_.time(key_.epilogue, algorithm.bits[0]);
      Matmul same = m;
      if (m.a_sums_M) {  // the library overwrites the sums
        same.a_sums_M.data = const_cast<void*>(bias);
        kernels::cpu::run(kernels::Fill{.y = {const_cast<void*>(bias), m.M, DType::f32}});
      }
      kernels::run_unfused(same, [](const auto& args) { kernels::cpu::run(args); });
      return {};
    }

   private:
    kernels::cuda::GemmAlgorithm algorithm(const kernels::cuda::GemmAlgorithm::Bits& bits) const {
      const auto split = library_.split_sums.find(bits[0]);
      return {bits, 64, split == library_.split_sums.end() ? 0 : split->second};
    }
    std::vector<uint64_t> numbers() const {
      const auto named = library_.offers.find(key_.epilogue);
      return named == library_.offers.end() ? std::vector<uint64_t>{1, 2, 3} : named->second;
    }
    const GemmStandIn& library_;
    const Key key_;
  };

  std::string version() const override { return "the stand-in 1"; }
  std::shared_ptr<const kernels::cuda::GemmProblem> describe(const Key& key) const override {
    return std::make_shared<Problem>(*this, key);
  }

  void* take(size_t bytes, CUstream_st*) const override {
    if (int64_t(bytes) > free_bytes && int64_t(bytes) != kMatmulWorkspace)
      throw RunError("out of GPU memory");
    ++taken;
    return ::operator new(bytes, std::align_val_t(256));
  }
  void give(void* memory, CUstream_st*) const noexcept override {
    --taken;
    ::operator delete(memory, std::align_val_t(256));
  }
  void run(const kernels::Cast& a, CUstream_st*) const override { kernels::cpu::run(a); }
  void run(const kernels::Fill& a, CUstream_st*) const override { kernels::cpu::run(a); }
  void run(const kernels::Add& a, CUstream_st*) const override { kernels::cpu::run(a); }
  void run(const kernels::AddRow& a, CUstream_st*) const override { kernels::cpu::run(a); }
  void run(const kernels::ColumnSum& a, CUstream_st*) const override {
    clock_ += column_sum_time;
    ++column_sums;
    kernels::cpu::run(a);
  }
  void run(const kernels::GeluForward& a, CUstream_st*) const override { kernels::cpu::run(a); }
  void run(const kernels::GeluBackward& a, CUstream_st*) const override { kernels::cpu::run(a); }
  bool capturing(CUstream_st*) const override { return captures; }
  void require_healthy(CUstream_st*) const override {
    ++healthy_asked;
    if (has_failed) throw RunError("an illegal memory access");
  }
  void fill_for_timing(const Span& memory, CUstream_st*) const override {
    if (!is_float8(memory.dtype)) kernels::cpu::run(kernels::Fill{.y = memory});
  }
  int64_t cache_bytes() const override { return cache; }
  double seconds(const std::function<void()>& launch, int calls, CUstream_st*) const override {
    const double before = clock_;
    for (int i = 0; i < calls; ++i) launch();
    return (clock_ - before) / calls;
  }
  double now() const override { return clock_; }

 private:
  template <class Key>
  static Answer::Status answer(const Key& key, const std::map<Key, Answer::Status>& all) {
    const auto found = all.find(key);
    return found == all.end() ? Answer::Status::done : found->second;
  }
  double time(Epilogue e, uint64_t number) const {
    const auto found = times.find({e, number});
    return found == times.end() ? 1 : found->second;
  }
  mutable double clock_ = 0;
};

}  // namespace mtrain::test
