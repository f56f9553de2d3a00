// Decides which engine computes each kind of grouped GEMM. mtrain's own kernel does, until CUTLASS
// has computed the same result once and has then been measured to be faster. This header includes
// no CUDA header; tests implement the device without a GPU.
#pragma once
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "kernels/grouped_matmul.h"

namespace mtrain::kernels::cuda {

using GroupedCall = std::variant<GroupedMatmul, GroupedWeightGrad>;

// A kind of grouped GEMM. The number of rows is not part of it: it differs from one micro-batch to
// the next if ranks exchange tokens.
struct GroupedKey {
  bool weights, trans_b, accumulate;
  int64_t N, K, E;  // of weights: N, M and E
  DType a, b, c;
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm of clang-tidy 14
  auto operator<=>(const GroupedKey&) const = default;
};
GroupedKey key_of(const GroupedCall& call);
int64_t rows_of(const GroupedCall& call);
std::string describe(const GroupedKey& key);

// Returns whether CUTLASS has a kernel for the operands: bf16 with rows of a multiple of 8
// elements, or 8 bits, at addresses that are multiples of 16 bytes; results in bf16, or fp32 for
// weights.
bool fits_cutlass(const GroupedCall& call);

// How much two results of a kind may differ (compare_rows.h).
struct GroupedTolerance {
  float relative, of_row;
};
GroupedTolerance tolerance_of(const GroupedKey& key);

class GroupedDevice {
 public:
  virtual ~GroupedDevice() = default;
  virtual std::string why_no_cutlass() const = 0;  // "" if there is one for this GPU
  virtual std::string version() const = 0;         // one word: CUTLASS's version
  virtual bool capturing(CUstream_st* stream) const = 0;
  virtual void run_own(const GroupedCall& call, CUstream_st* stream) const = 0;
  // Returns "", or why CUTLASS cannot compute it; nothing is enqueued then.
  virtual std::string run_cutlass(const GroupedCall& call, CUstream_st* stream) const = 0;
  // Computes the call with both engines, and compares. The host waits. C has the result of CUTLASS
  // if `keep_cutlass` and the results are equal, otherwise that of mtrain's kernel.
  struct Comparison {
    std::string refusal;   // why CUTLASS did not compute it
    float worst = 0;       // the largest difference, in units of what is allowed
    bool compared = true;  // false: all results were 0, which shows nothing
  };
  virtual Comparison compare(const GroupedCall& call, bool keep_cutlass,
                             CUstream_st* stream) const = 0;
  // Returns the seconds of both engines for a GEMM of this kind with `rows` rows, divided equally
  // among the experts. Throws RunError if it does not fit into memory.
  struct Times {
    double own, cutlass;
  };
  virtual Times time(const GroupedKey& key, int64_t rows, CUstream_st* stream) const = 0;
  virtual double now() const = 0;  // seconds of a clock that never goes back
};

class GroupedChoices {
 public:
  explicit GroupedChoices(const GroupedDevice& device) : device_(device) {}
  // Returns whether the call is computed. Otherwise mtrain's own kernel must compute it.
  // Thread-safe.
  bool run(const GroupedCall& call, CUstream_st* stream);

  // As the functions of kernels/gemm_choices.h. A line is "grouped", CUTLASS's version, the key,
  // the rows, and in choices the engine: own or cutlass.
  std::string unchosen() const;
  std::string time(const std::string& lines, double seconds, CUstream_st* stream);
  void use(const std::string& lines);
  std::string choices() const;

 private:
  struct Kind {
    enum class State : uint8_t { unchecked, equal, refused } state = State::unchecked;
    int64_t most_rows = 0, runs = 0;
    enum class Engine : uint8_t { undecided, own, cutlass } engine = Engine::undecided;
  };
  void refuse(const GroupedKey& key, const std::string& why);
  bool check(const GroupedCall& call, const GroupedKey& key, bool chosen, CUstream_st* stream);
  std::string line(const GroupedKey& key, int64_t rows) const;

  const GroupedDevice& device_;
  mutable std::mutex mutex_;
  std::map<GroupedKey, Kind> kinds_;
};

}  // namespace mtrain::kernels::cuda
