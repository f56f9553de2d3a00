#include "kernels/permute.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

constexpr int64_t kNone = -1;  // no row, or no choice

template <class Args>
void check_weight(const char* op, const Args& a) {
  if (a.weight_TK) check(op, "weight", a.weight_TK, a.T * a.K, DType::f32);
}

void check_permute(const Permute& a) {
  check_holds("permute", "x", a.x_TH, a.T * a.H);
  check("permute", "out", a.out_RH, a.R * a.H, a.x_TH.dtype);
  check_indices("permute", "choice", a.choice_R, a.R, a.T * a.K, kNone);
  check_weight("permute", a);
}
// If experts are padded to a capacity, there may be more rows than choices.
int64_t max_rows(int64_t T, int64_t K, int64_t R) { return std::max(T * K, R); }
void check_unpermute(const Unpermute& a) {
  check_holds("unpermute", "x", a.x_RH, a.R * a.H);
  check("unpermute", "out", a.out_TH, a.T * a.H, a.x_RH.dtype);
  check_indices("unpermute", "row", a.row_TK, a.T * a.K, max_rows(a.T, a.K, a.R), kNone);
  check_weight("unpermute", a);
}
void check_weight_grad(const UnpermuteWeightGrad& a) {
  check_holds("unpermute's weights", "x", a.x_RH, a.R * a.H);
  check("unpermute's weights", "dout", a.dout_TH, a.T * a.H, a.x_RH.dtype);
  check_indices("unpermute's weights", "row", a.row_TK, a.T * a.K, max_rows(a.T, a.K, a.R), kNone);
  check("unpermute's weights", "dweight", a.dweight_TK, a.T * a.K, DType::f32);
}

}  // namespace

// This reads two numbers for each choice: one thread finishes before other threads would wake up.
void run(const ExpertRows& a) {
  const int64_t choices = a.T * a.K, all_rows = a.capacity > 0 ? a.E * a.capacity : choices;
  check("expert rows", "expert", a.expert_TK, choices, DType::i32);
  check("expert rows", "count", a.count_E, a.E, DType::i32);
  check("expert rows", "row", a.row_TK, choices, DType::i32);
  check("expert rows", "choice", a.choice_R, all_rows, DType::i32);
  if (a.first_E1) check("expert rows", "first", a.first_E1, a.E + 1, DType::i32);
  const auto* numbers = a.expert_TK.as<int32_t>();
  auto* const count = a.count_E.as<int32_t>();
  auto* const row = a.row_TK.as<int32_t>();
  auto* const choice = a.choice_R.as<int32_t>();
  const auto expert = [&](int64_t i) { return numbers[i] - a.begin; };
  const auto kept = [&](int64_t i) { return expert(i) >= 0 && expert(i) < a.E; };
  for (int64_t e = 0; e < a.E; ++e) count[e] = 0;
  for (int64_t i = 0; i < choices; ++i)
    if (kept(i)) ++count[expert(i)];
  if (a.capacity > 0)
    for (int64_t e = 0; e < a.E; ++e) count[e] = std::min(count[e], int32_t(a.capacity));
  std::vector<int32_t> next(static_cast<size_t>(a.E)), end = next;
  auto* const first = a.first_E1 ? a.first_E1.as<int32_t>() : nullptr;
  int32_t rows = 0;
  for (int64_t e = 0; e < a.E; ++e) {
    next[size_t(e)] = rows;
    end[size_t(e)] = rows + count[e];
    if (first) first[e] = rows;
    rows += a.capacity > 0 ? int32_t(a.capacity) : count[e];
  }
  if (first) first[a.E] = rows;
  std::fill_n(choice, all_rows, -1);
  for (int64_t i = 0; i < choices; ++i) {
    const auto e = kept(i) ? size_t(expert(i)) : 0;
    row[i] = kept(i) && next[e] < end[e] ? next[e]++ : -1;
    if (row[i] >= 0) choice[row[i]] = int32_t(i);
  }
}

MT_DISPATCH(Permute, check_permute)
MT_DISPATCH(Unpermute, check_unpermute)
MT_DISPATCH(UnpermuteWeightGrad, check_weight_grad)

}  // namespace mtrain::kernels::cpu
