#include "parallel/expert/expert_comm.h"

#include <chrono>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "model/experts/experts_of_step.h"

namespace mtrain::parallel {

ExpertComm::ExpertComm(Group group, Stream& stream, int64_t experts)
    : group_(std::move(group)), stream_(stream), experts_(experts) {
  MT_CHECK(experts_ % ranks() == 0, "{} experts for {} ranks", experts_, ranks());
}

std::pair<Tensor, Event> ExpertComm::exchange(Stream& compute, const Tensor& x_RN,
                                              const RowCounts& counts) const {
  Shape shape = x_RN.shape();
  const int64_t width = shape.rank() > 1 ? shape[1] : 1;
  shape[0] = std::accumulate(counts.receives.begin(), counts.receives.end(), int64_t{0});
  const auto elements = [&](std::vector<int64_t> rows) {
    for (int64_t& n : rows) n *= width;
    return rows;
  };
  const Tensor out = Tensor::empty(compute, shape, x_RN.dtype());
  Event there = enqueue(compute, [&](const Group& group, Stream& stream) {
    group.all_to_all(x_RN, elements(counts.sends), out, elements(counts.receives), stream);
  });
  return {out, there};
}

model::ExpertRows ExpertComm::exchange(Stream& compute, const model::ExpertRows& rows,
                                       const RowCounts& counts) const {
  model::ExpertRows out;
  std::tie(out.x_RH, out.there) = exchange(compute, rows.x_RH, counts);
  if (rows.weight_R) std::tie(out.weight_R, out.there) = exchange(compute, rows.weight_R, counts);
  return out;
}

bool knows_counts(const model::Step& step) { return step.recomputing && step.found; }

std::vector<int32_t> read_counts(model::Step& step, const Tensor& counts, Stream& stream) {
  if (knows_counts(step)) {
    MT_CHECK(!step.found->empty(), "a recomputation of more layers of experts than were computed");
    auto read = std::any_cast<std::vector<int32_t>>(std::move(step.found->front()));
    step.found->pop_front();
    return read;
  }
  const auto begun = std::chrono::steady_clock::now();
  std::vector<int32_t> read = counts.to_host<int32_t>(stream);
  if (step.experts && step.experts->host_wait)
    *step.experts->host_wait += std::chrono::steady_clock::now() - begun;
  if (step.found) step.found->push_back(read);
  return read;
}

}  // namespace mtrain::parallel
