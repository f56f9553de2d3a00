#include "parallel/expert/expert_comm.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "device/device.h"
#include "model/experts/experts_of_step.h"

namespace mtrain::parallel {

ExpertComm::ExpertComm(Group group, Stream& stream, int64_t experts, ExpertParts parts,
                       std::optional<CountsGroup> counts)
    : group_(std::move(group)),
      parts_(std::move(parts)),
      counts_(counts ? *std::move(counts) : CountsGroup{all(), &stream}),
      stream_(stream),
      experts_(experts) {
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

// Allocates memory for `rows` rows like those of x_RN.
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

Tensor ExpertComm::gather_counts(Stream& compute, const Tensor& count_N) const {
  const Tensor gathered = Tensor::empty(compute, {counts_.all.size(), count_N.count()}, DType::i32);
  counts_.stream->wait(compute.record());  // edge: this rank's counts -> their gather
  counts_.all.all_gather(count_N, gathered, *counts_.stream);
  return gathered;
}
std::vector<int32_t> ExpertComm::read_counts(model::Step& step, const Tensor& gathered,
                                             const EvenCounts& even) const {
  return parallel::read_counts(step, gathered, *counts_.stream, [&] {
    const std::vector<int32_t> own = even();
    std::vector<int32_t> of_all;
    for (int rank = 0; rank < all().size(); ++rank)
      of_all.insert(of_all.end(), own.begin(), own.end());
    return of_all;
  });
}

namespace {

std::vector<Tensor> tensors_of(const model::ExpertRows& rows) {
  std::vector<Tensor> tensors{rows.x_RH};
  if (rows.weight_R) tensors.push_back(rows.weight_R);
  return tensors;
}
model::ExpertRows rows_of(std::vector<Tensor> tensors, const Event& done) {
  model::ExpertRows rows{.x_RH = std::move(tensors[0]), .ready = done};
  if (tensors.size() > 1) rows.weight_R = std::move(tensors[1]);
  return rows;
}

}  // namespace

// The results are not allocated on compute: work that was enqueued there after the rows were ready
// could still use the same memory.
std::pair<std::vector<Tensor>, Event> ExpertComm::exchange(const Event& ready,
                                                           const std::vector<Tensor>& rows,
                                                           const RowCounts& counts) const {
  std::vector<Tensor> out;
  std::vector<Group::AllToAllTensor> tensors;
  for (const Tensor& x_RN : rows) {
    out.push_back(room(stream_, x_RN, arriving(counts)));
    tensors.push_back({x_RN, elements(counts.sends, x_RN), over_ep(out.back(), counts),
                       elements(counts.receives, x_RN)});
  }
  const Event done = enqueue(ready, [&](const Group& ep, Stream& stream) {
    ep.all_to_all(tensors, stream);
    if (!parts_.tp) return;
    for (const Tensor& all : out) parts_.tp.all_gather(part_of_tp(all, counts), all, stream);
  });
  return {out, done};
}

Event ExpertComm::exchange_back(const Event& ready, const std::vector<Tensor>& rows,
                                const RowCounts& counts, const std::vector<Tensor>& into) const {
  std::vector<Group::AllToAllTensor> tensors;
  for (size_t i = 0; i < rows.size(); ++i)
    tensors.push_back({over_ep(rows[i], counts), elements(counts.receives, rows[i]), into[i],
                       elements(counts.sends, rows[i])});
  return enqueue(ready, [&](const Group& ep, Stream& stream) {
    if (parts_.tp)
      for (const Tensor& x_RN : rows)
        parts_.tp.reduce_scatter(x_RN, part_of_tp(x_RN, counts), comm::Reduce::sum, stream);
    ep.all_to_all(tensors, stream);
  });
}

model::ExpertRows ExpertComm::exchange(Stream& compute, const model::ExpertRows& rows,
                                       const RowCounts& counts) const {
  const Event ready = rows.ready ? rows.ready : compute.record();
  auto [out, done] = exchange(ready, tensors_of(rows), counts);
  return rows_of(std::move(out), done);
}
model::ExpertRows ExpertComm::exchange_back(Stream& compute, const model::ExpertRows& rows,
                                            const RowCounts& counts) const {
  const Event ready = rows.ready ? rows.ready : compute.record();
  const std::vector<Tensor> leaving = tensors_of(rows);
  std::vector<Tensor> into;
  for (const Tensor& x_RN : leaving) into.push_back(room(stream_, x_RN, counts.leaving()));
  const Event done = exchange_back(ready, leaving, counts, into);
  return rows_of(std::move(into), done);
}

bool knows_counts(const model::Step& step) { return step.recomputing && step.forward_results; }

std::vector<int32_t> even_parts(int64_t total, int64_t parts, int64_t most) {
  std::vector<int32_t> even;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t part = total * (i + 1) / parts - total * i / parts;
    even.push_back(int32_t(most > 0 ? std::min(part, most) : part));
  }
  return even;
}

std::vector<int32_t> read_counts(model::Step& step, const Tensor& counts, Stream& stream,
                                 const EvenCounts& even) {
  if (knows_counts(step)) {
    MT_CHECK(!step.forward_results->empty(),
             "more layers of experts are recomputed than were computed");
    auto read = std::any_cast<std::vector<int32_t>>(std::move(step.forward_results->front()));
    step.forward_results->pop_front();
    return read;
  }
  const auto begun = std::chrono::steady_clock::now();
  std::vector<int32_t> read = counts.to_host<int32_t>(stream);
  if (stream.device().is_recording()) read = even();
  if (step.experts && step.experts->host_wait)
    *step.experts->host_wait += std::chrono::steady_clock::now() - begun;
  if (step.forward_results) step.forward_results->push_back(read);
  return read;
}

}  // namespace mtrain::parallel
