#include <array>
#include <deque>

#include "schedule/generators.h"

namespace mtrain::schedule {

ActionList dualpipev(const ScheduleSize& size, int64_t rank) {
  const int64_t P = size.pp, M = size.micro_batches;
  const int64_t stage[2] = {rank, 2 * P - 1 - rank};
  ActionList list;
  std::deque<Action> weights;  // weight gradients that the Is so far have left
  std::array<int64_t, 2> forwards{}, backwards{};
  const auto F = [&](int chunk) {
    list.push_back({ActionKind::F, stage[chunk], forwards[size_t(chunk)]++});
  };
  const auto F_and_B = [&](int forward, int backward) {
    F(forward);
    list.back().overlaps_next = true;
    list.push_back({ActionKind::B, stage[backward], backwards[size_t(backward)]++});
  };
  const auto B = [&](int chunk) {
    list.push_back({ActionKind::B, stage[chunk], backwards[size_t(chunk)]++});
  };
  const auto I = [&](int chunk) {
    const int64_t m = backwards[size_t(chunk)]++;
    list.push_back({ActionKind::I, stage[chunk], m});
    weights.push_back({ActionKind::W, stage[chunk], m});
  };
  const auto W = [&] {
    list.push_back(weights.front());
    weights.pop_front();
  };

  const int64_t after = P - 1 - rank;
  for (int64_t i = 0; i < 2 * after; ++i) F(0);
  for (int64_t i = 0; i < rank + 1; ++i) F(0), F(1);
  for (int64_t i = 0; i < after; ++i) I(1), W(), F(1);
  for (int64_t i = 0; i < M - 2 * P + rank + 1; ++i) {
    // On the last rank this is the backward of the micro-batch that has just gone forward.
    if (i == 0 && after == 0)
      F(0), B(1);
    else
      F_and_B(0, 1);
    F_and_B(1, 0);
  }
  for (int64_t i = 0; i < after; ++i) B(1), F_and_B(1, 0);
  // The second half of the last 2 (rank + 1) backwards delays its weight gradients until this rank
  // would otherwise wait for the ranks before it.
  for (int64_t i = 0; i < 2 * (rank + 1); ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    i < rank + 1 ? B(chunk) : I(chunk);
  }
  for (int64_t i = 0; i < after; ++i) W(), I(0);
  while (!weights.empty()) W();
  return list;
}

}  // namespace mtrain::schedule
