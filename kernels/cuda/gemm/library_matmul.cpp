#include "kernels/cuda/gemm/library_matmul.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "base/log.h"
#include "base/matmul_workspace.h"
#include "kernels/cuda/gemm/gemm_memory.h"
#include "kernels/cuda/gemm/gemm_timing.h"
#include "kernels/matmul_unfused.h"

namespace mtrain::kernels::cuda {
namespace {

using Status = GemmAnswer::Status;

const char* name_of(Epilogue e) {
  switch (e) {
    case Epilogue::none: return "";
    case Epilogue::bias: return " with a bias";
    case Epilogue::gelu: return " with gelu";
    case Epilogue::gelu_bias: return " with a bias and gelu";
    case Epilogue::dgelu: return " with gelu's gradient";
    case Epilogue::sums: return " with the bias's gradient";
  }
  return "";
}

// Returns which devices have a GEMM with such scales.
const char* devices_of(ScaleBlocks blocks) {
  switch (blocks) {
    case ScaleBlocks::none: return "";
    case ScaleBlocks::rows_128:
    case ScaleBlocks::square_128:
      return "; scales of 128 elements need a GPU of compute capability 9 (h100, h200)";
    case ScaleBlocks::rows_32:
      return "; scales of 32 elements need a GPU of compute capability 10 or newer (b200, b300)";
  }
  return "";
}

std::string describe(const MatmulKey& k) {
  return fmt::format("the GEMM of M {} N {} K {} of {} and {} to {}{}", k.M, k.N, k.K,
                     dtype_name(k.a), dtype_name(k.b), dtype_name(k.c), name_of(k.epilogue));
}

const char* instead_of(Epilogue e) {
  if (e == Epilogue::none) return "";
  return e == Epilogue::bias ? ": mtrain adds the bias after the GEMM"
                             : ": mtrain's own kernels compute the epilogue";
}

// The operand as `dtype`: itself, or a converted copy that lives as long as this object.
class Converted {
 public:
  Converted(const GemmDevice& device, ConstSpan s, int64_t count, DType dtype, bool convert,
            CUstream_st* stream)
      : memory_(device, convert ? count * dtype_size(dtype) : 0, stream), span_(s) {
    if (!convert) return;
    const Span to{memory_.get(), count, dtype};
    device.run(Cast{.x = {s.data, count, s.dtype}, .y = to}, stream);
    span_ = to;
  }
  ConstSpan span() const { return span_; }

 private:
  GemmMemory memory_;
  ConstSpan span_;
};

void check(const Matmul& m) {
  MT_CHECK(m.M >= 0 && m.N >= 0 && m.K >= 0 && m.a.count >= m.M * m.K && m.b.count >= m.K * m.N &&
               m.c_MN.count >= m.M * m.N,
           "matmul: M {} N {} K {} with {}, {} and {} elements", m.M, m.N, m.K, m.a.count,
           m.b.count, m.c_MN.count);
  MT_CHECK(!m.accumulate || (m.c_MN.dtype == DType::f32 && !m.bias_N),
           "matmul: accumulation needs an fp32 C and no bias");
  MT_CHECK(!is_float8(m) || float8_fits_library(m),
           "matmul: no 8-bit kernel for {} and {} with M {} N {} K {}, transposed {} {}, at their "
           "addresses",
           dtype_name(m.a.dtype), dtype_name(m.b.dtype), m.M, m.N, m.K, m.trans_a, m.trans_b);
  if (block_length(m.a_blocks) == 128 && m.M % 4 != 0)
    throw RunError(fmt::format(
        "8-bit GEMMs with scales of 128 elements need a multiple of 4 tokens, not {}", m.M));
  check_epilogue(m);
}

bool sums_in_fp32(const MatmulKey& key, const GemmAlgorithm& algorithm) {
  return (algorithm.split_sums & ~fp32_split_sums(key)) == 0;
}

}  // namespace

LibraryMatmul::PlanRef LibraryMatmul::make(const MatmulKey& key) {
  auto plan = std::make_shared<Plan>();
  plan->problem = api_.describe(key);
  GemmProblem::Offer offer = plan->problem->offer(GemmTiming::kAlgorithms);
  plan->algorithms = std::move(offer.algorithms);
  std::erase_if(plan->algorithms, [&](const auto& a) { return !sums_in_fp32(key, a); });
  // The library's sums are used only if they were measured to be faster.
  plan->apart = key.epilogue == Epilogue::sums;
  const std::lock_guard lock(choosing_);
  if (const auto choice = choices_.find(key); choice != choices_.end()) {
    plan->apart = choice->second.apart;
    const auto found = plan->apart ? std::nullopt : plan->problem->find(choice->second.bits);
    if (found && sums_in_fp32(key, *found)) {
      std::erase_if(plan->algorithms, [&](const auto& a) { return a.bits == found->bits; });
      plan->algorithms.insert(plan->algorithms.begin(), *found);
    } else if (!plan->apart) {
      log::info(fmt::format("{}: the algorithm that was chosen for it {}", describe(key),
                            found ? "rounds partial sums" : "is not offered by the library"));
      plan->apart = key.epilogue == Epilogue::sums;
      choices_.erase(choice);
    }
  }
  if (plan->algorithms.empty()) {
    plan->refusal = fmt::format("cuBLASLt has no algorithm for {} ({}){}", describe(key),
                                offer.why_none, devices_of(key.a_blocks));
    if (!plan->apart && key.epilogue != Epilogue::none)
      log::info(plan->refusal + instead_of(key.epilogue));
  }
  return plan;
}

LibraryMatmul::PlanRef LibraryMatmul::without_first(const MatmulKey& key, const PlanRef& plan,
                                                    const std::string& refusal) {
  // Another thread may have replaced the plan already.
  return plans_.change(key, [&](const PlanRef& now) {
    if (now != plan) return now;
    auto next = std::make_shared<Plan>();
    next->problem = plan->problem;
    next->algorithms.assign(plan->algorithms.begin() + 1, plan->algorithms.end());
    next->apart = plan->apart;
    const bool last = next->algorithms.empty();
    log::info(fmt::format("{}: {}{}", describe(key), refusal,
                          last ? instead_of(key.epilogue) : "; mtrain uses the next algorithm"));
    if (last) next->refusal = fmt::format("{}: {}", describe(key), refusal);
    return PlanRef(next);
  });
}

GemmAnswer LibraryMatmul::run_one(const Plan& plan, const GemmAlgorithm& algorithm, const Matmul& m,
                                  CUstream_st* stream) const {
  // The library overwrites sums; mtrain adds to them.
  const GemmMemory sums(device_, m.a_sums_M ? m.M * dtype_size(DType::f32) : 0, stream);
  const GemmMemory workspace(device_, algorithm.workspace > 0 ? kMatmulWorkspace : 0, stream);
  const void* const bias = m.a_sums_M ? sums.get() : m.bias_N.data;
  const GemmAnswer answer = plan.problem->run(m, bias, algorithm, workspace.get(), stream);
  if (answer.status == Status::done && m.a_sums_M)
    device_.run(Add{.a = {m.a_sums_M.data, m.M, DType::f32},
                    .b = {sums.get(), m.M, DType::f32},
                    .y = {m.a_sums_M.data, m.M, DType::f32}},
                stream);
  return answer;
}

bool LibraryMatmul::multiply(const Matmul& m, CUstream_st* stream) {
  const MatmulKey key = key_of(m);
  PlanRef plan = plan_of(key);
  while (!plan->apart && !plan->algorithms.empty()) {
    if (plan->runs == 0 && device_.capturing(stream))
      throw RunError(describe(key) + " was not computed before the capture of a graph");
    const GemmAnswer answer = run_one(*plan, plan->algorithms[0], m, stream);
    if (answer.status == Status::done) {
      ++plan->runs;
      return true;
    }
    if (answer.status == Status::failed) throw RunError(answer.text);
    if (device_.capturing(stream))
      throw RunError(fmt::format("{}: in the capture of a graph {}", describe(key), answer.text));
    device_.require_healthy(stream);
    plan = without_first(key, plan, answer.text);
  }
  if (key.epilogue == Epilogue::none) throw RunError(plan->refusal);
  ++plan->runs;
  return false;
}

bool LibraryMatmul::run_fused(const Matmul& m, CUstream_st* stream) {
  return epilogue_fits_library(m) && multiply(m, stream);
}

void LibraryMatmul::run_apart(const Matmul& m, CUstream_st* stream) {
  run_unfused(m, [&]<class Args>(const Args& args) {
    if constexpr (std::is_same_v<Args, Matmul>)
      run_plain(args, stream);
    else
      device_.run(args, stream);
  });
}

// Sets C to the bias in every row, or to zero.
void LibraryMatmul::run_empty_sum(const Matmul& m, CUstream_st* stream) {
  if (m.accumulate) return;
  const Span c{m.c_MN.data, m.M * m.N, m.c_MN.dtype};
  device_.run(Fill{.y = c}, stream);
  if (m.bias_N) device_.run(AddRow{.row_N = m.bias_N, .y_MN = c, .M = m.M, .N = m.N}, stream);
}

void LibraryMatmul::run_plain(const Matmul& m, CUstream_st* stream) {
  if (m.K == 0) return run_empty_sum(m, stream);
  const Conversions convert = conversions_of(m);
  const bool wide = needs_wide_c(m);
  const Converted a(device_, m.a, m.M * m.K, DType::f32, convert.a, stream);
  const Converted b(device_, m.b, m.K * m.N, DType::f32, convert.b, stream);
  const DType c_type = wide ? DType::f32 : m.c_MN.dtype;
  const DType bias_as = bias_type(m, c_type);
  const Converted bias(device_, m.bias_N, m.N, bias_as, must_copy_bias(m, bias_as), stream);
  const GemmMemory wide_c(device_, wide ? m.M * m.N * dtype_size(DType::f32) : 0, stream);
  Matmul same = m;
  same.a = a.span(), same.b = b.span(), same.bias_N = bias.span();
  same.c_MN = {wide ? wide_c.get() : m.c_MN.data, m.M * m.N, c_type};
  if (!multiply(same, stream)) {
    same.bias_N = {};
    multiply(same, stream);
    device_.run(AddRow{.row_N = bias.span(), .y_MN = same.c_MN, .M = m.M, .N = m.N}, stream);
  }
  if (wide) device_.run(Cast{.x = same.c_MN, .y = {m.c_MN.data, m.M * m.N, m.c_MN.dtype}}, stream);
}

void LibraryMatmul::run(const Matmul& m, CUstream_st* stream) {
  check(m);
  if (m.M == 0 || m.N == 0) return;
  if (!has_epilogue(m)) return run_plain(m, stream);
  if (!run_fused(m, stream)) run_apart(m, stream);
}

}  // namespace mtrain::kernels::cuda
