#include <algorithm>
#include <array>

#include "schedule/generators.h"

namespace mtrain::schedule {

ActionList v_schedule(const ScheduleSize& size, int64_t rank) {
  const int64_t P = size.pp, M = size.micro_batches;
  const int64_t stage[2] = {rank, 2 * P - 1 - rank};
  // If there are too few micro-batches to fill the V, they run in the order of the smallest number
  // that fills it.
  const int64_t n = std::max(2 * P - 1, M);
  ActionList list;
  std::array<int64_t, 2> forwards{}, inputs{}, weights{};
  const auto add = [&](ActionKind kind, int chunk, std::array<int64_t, 2>& done) {
    const int64_t m = done[size_t(chunk)]++;
    if (m < M) list.push_back({kind, stage[chunk], m});
  };
  const auto F = [&](int chunk) { add(ActionKind::F, chunk, forwards); };
  const auto I = [&](int chunk) { add(ActionKind::I, chunk, inputs); };
  const auto W = [&](int chunk) { add(ActionKind::W, chunk, weights); };

  for (int64_t i = 0; i < 2 * (P - rank) - 1; ++i) F(0);
  for (int64_t i = 0; i < rank; ++i) F(1), F(0);
  for (int64_t i = 0; i < P - rank; ++i) F(1), I(1), W(1);
  while (forwards[1] < n) {
    if (forwards[0] < n) F(0);
    I(0), W(0), F(1), I(1), W(1);
  }
  for (int64_t i = 0; i < rank; ++i) I(0), I(1);
  for (int64_t i = 0; i < P - rank; ++i) I(0), W(0);
  for (const int chunk : {1, 0})
    while (weights[size_t(chunk)] < n) W(chunk);
  return list;
}

}  // namespace mtrain::schedule
