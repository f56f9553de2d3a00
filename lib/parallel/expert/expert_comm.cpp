#include "parallel/expert/expert_comm.h"

#include <chrono>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "model/experts/experts_of_step.h"

namespace mtrain::parallel {

ExpertComm::ExpertComm(Group group, Stream& stream, int64_t experts, ExpertParts parts)
    : group_(std::move(group)), parts_(std::move(parts)), stream_(stream), experts_(experts) {
  MT_CHECK(experts_ % ranks() == 0, "{} experts for {} ranks", experts_, ranks());
}

namespace {

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Elements of each of x_RN's rows; a tensor of one dim has rows of one.
int64_t width(const Tensor& x_RN) { return x_RN.shape().rank() > 1 ? x_RN.dim(1) : 1; }
std::vector<int64_t> elements(std::vector<int64_t> rows, const Tensor& x_RN) {
  for (int64_t& n : rows) n *= width(x_RN);
  return rows;
}

// Makes room for other rows of the same kind.
Tensor room(Stream& home, const Tensor& x_RN, int64_t rows) {
  Shape shape = x_RN.shape();
  shape[0] = rows;
  return Tensor::empty(home, shape, x_RN.dtype());
}

}  // namespace

int64_t RowCounts::leaving() const { return sum(sends); }
int64_t ExpertComm::arriving(const RowCounts& counts) const {
  return parts_.tp ? tp() * counts.each : sum(counts.receives);
}
Tensor ExpertComm::part_of_tp(const Tensor& rows, const RowCounts& counts) const {
  return parts_.tp ? rows.rows(tp_rank() * counts.each, (tp_rank() + 1) * counts.each) : rows;
}
Tensor ExpertComm::over_ep(const Tensor& rows, const RowCounts& counts) const {
  return part_of_tp(rows, counts).rows(0, sum(counts.receives));
}

// Memory of compute could be that of work which the host has given it since the rows were ready.
std::pair<Tensor, Event> ExpertComm::exchange(const Event& ready, const Tensor& x_RN,
                                              const RowCounts& counts) const {
  const Tensor out = room(stream_, x_RN, arriving(counts));
  Event there = enqueue(ready, [&](const Group& ep, Stream& stream) {
    ep.all_to_all(x_RN, elements(counts.sends, x_RN), over_ep(out, counts),
                  elements(counts.receives, x_RN), stream);
    if (parts_.tp) parts_.tp.all_gather(part_of_tp(out, counts), out, stream);
  });
  return {out, there};
}

std::pair<Tensor, Event> ExpertComm::exchange_back(const Event& ready, const Tensor& x_RN,
                                                   const RowCounts& counts,
                                                   const Tensor& into) const {
  const Tensor out = into ? into : room(stream_, x_RN, sum(counts.sends));
  Event there = enqueue(ready, [&](const Group& ep, Stream& stream) {
    if (parts_.tp)
      parts_.tp.reduce_scatter(x_RN, part_of_tp(x_RN, counts), comm::Reduce::sum, stream);
    ep.all_to_all(over_ep(x_RN, counts), elements(counts.receives, x_RN), out,
                  elements(counts.sends, x_RN), stream);
  });
  return {out, there};
}

model::ExpertRows ExpertComm::exchange(Stream& compute, const model::ExpertRows& rows,
                                       const RowCounts& counts) const {
  const Event ready = rows.there ? rows.there : compute.record();
  model::ExpertRows out;
  std::tie(out.x_RH, out.there) = exchange(ready, rows.x_RH, counts);
  if (rows.weight_R) std::tie(out.weight_R, out.there) = exchange(ready, rows.weight_R, counts);
  return out;
}
model::ExpertRows ExpertComm::exchange_back(Stream& compute, const model::ExpertRows& rows,
                                            const RowCounts& counts) const {
  const Event ready = rows.there ? rows.there : compute.record();
  model::ExpertRows out;
  std::tie(out.x_RH, out.there) = exchange_back(ready, rows.x_RH, counts);
  if (rows.weight_R)
    std::tie(out.weight_R, out.there) = exchange_back(ready, rows.weight_R, counts);
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
