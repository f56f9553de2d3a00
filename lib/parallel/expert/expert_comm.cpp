#include "parallel/expert/expert_comm.h"

#include <chrono>

#include "base/error.h"
#include "model/experts/experts_of_step.h"

namespace mtrain::parallel {

ExpertComm::ExpertComm(Group group, Stream& stream, int64_t experts, ExpertParts parts)
    : group_(std::move(group)), parts_(std::move(parts)), stream_(stream), experts_(experts) {
  MT_CHECK(experts_ % ranks() == 0, "{} experts for {} ranks", experts_, ranks());
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
