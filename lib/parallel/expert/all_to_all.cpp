#include <utility>

#include "model/experts/permuted_rows.h"
#include "parallel/expert/all_to_all_chunks.h"
#include "parallel/expert/expert_comm.h"
#include "parallel/expert/expert_path.h"

namespace mtrain::parallel {

namespace {

using model::ExpertRows;
using model::Step;
using model::TokenRoute;

struct AllToAllRoute : TokenRoute {
  ops::ExpertRows order;
  int64_t choices = 0, capacity = 0;  // of this rank's tokens; of an expert, 0: unlimited
  Tensor counts;  // (ranks of ep x tp, E): how many rows each rank has for each expert
  // Known from the first send() on, or in_chunks().
  bool known = false;
  ExpertPath path;
  Tensor first_E1;
  RowsOf rows;          // kept for `chunked` if rows may travel in chunks
  ChunkedPath chunked;  // empty until rows travel in chunks
};

class AllToAllDispatcher : public model::TokenDispatcher {
 public:
  AllToAllDispatcher(std::shared_ptr<ExpertComm> comm, bool pad, int64_t chunks)
      : comm_(std::move(comm)), pad_(pad), chunks_(chunks) {}

  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK,
                                    int64_t capacity) override {
    auto route = std::make_shared<AllToAllRoute>();
    route->choices = expert_TK.count();
    route->capacity = capacity;
    const int64_t padded = pad_ ? capacity : 0;
    route->order = ops::expert_rows(step.compute, expert_TK, comm_->experts(), 0, padded);
    if (padded > 0)
      find_path(step.compute, *route,
                [padded](int64_t, int64_t, int64_t, int64_t) { return padded; });
    if (padded > 0 || knows_counts(step)) return route;
    route->counts = comm_->gather_counts(step.compute, route->order.count_E);
    return route;
  }

  ExpertRows to_rows(Step& step, TokenRoute& route, const Tensor& x_TH,
                     const Tensor& weight_TK) override {
    return model::permuted_rows(step.compute, of(route).order, x_TH, weight_TK);
  }

  ExpertRows send(Step& step, TokenRoute& route, ExpertRows rows) override {
    AllToAllRoute& r = of(route);
    if (!r.known) read(step, r);
    return comm_->exchange(step.compute, rows, r.path.travelling);
  }

  ExpertRows by_expert(Step& step, TokenRoute& route, ExpertRows arrived) override {
    const AllToAllRoute& r = of(route);
    step.compute.wait(std::exchange(arrived.ready, {}));  // edge: the rows' transfer -> the experts
    return r.path.in_order ? arrived
                           : copied(step.compute, arrived, r.path.to_experts, r.path.rows);
  }

  Tensor first_E1(const TokenRoute& route) const override {
    return dynamic_cast<const AllToAllRoute&>(route).first_E1;
  }

  ExpertRows from_experts(Step& step, TokenRoute& route, ExpertRows rows) override {
    return by_arrival(step.compute, *comm_, of(route).path, std::move(rows));
  }

  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows rows) override {
    return comm_->exchange_back(step.compute, rows, of(route).path.travelling);
  }

  model::TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows arrived) override {
    step.compute.wait(arrived.ready);  // edge: the return of the rows -> their sums
    return model::sums_of_rows(step.compute, of(route).order, arrived);
  }

  int64_t chunks() const override { return chunks_; }
  std::unique_ptr<model::ChunkedRows> in_chunks(Step& step, TokenRoute& route,
                                                ExpertRows rows) override {
    AllToAllRoute& r = of(route);
    if (!r.known) read(step, r);
    if (r.chunked.chunks.empty())
      r.chunked = chunked_path(step.compute, *comm_, chunks_, std::exchange(r.rows, {}));
    return chunked_rows(step.compute, *comm_, r.chunked, std::move(rows));
  }

 private:
  static AllToAllRoute& of(TokenRoute& route) { return dynamic_cast<AllToAllRoute&>(route); }

  // Waits for the counts of the rows that travel.
  void read(Step& step, AllToAllRoute& r) const {
    const int64_t tp = comm_->tp(), E = comm_->experts(), here = comm_->experts_here();
    std::vector<int32_t> counts =
        comm_->read_counts(step, r.counts, [&] { return even_parts(r.choices, E, r.capacity); });
    r.counts = {};
    find_path(step.compute, r,
              [=, counts = std::move(counts)](int64_t from, int64_t t, int64_t to, int64_t expert) {
                return int64_t(counts[size_t((from * tp + t) * E + to * here + expert)]);
              });
  }

  // The chunked path needs one more upload. Only passes in chunks make it, so that the others need
  // not wait for it.
  void find_path(Stream& compute, AllToAllRoute& r, RowsOf rows) const {
    r.path = expert_path(*comm_, 0, comm_->experts_here(), rows);
    r.first_E1 = Tensor::from_host(compute, {comm_->experts_here() + 1}, r.path.first,
                                   device::MemoryCategory::activations);
    if (chunks_ > 1) r.rows = std::move(rows);
    r.known = true;
  }

  const std::shared_ptr<ExpertComm> comm_;
  const bool pad_;
  const int64_t chunks_;
};

}  // namespace

std::unique_ptr<model::TokenDispatcher> all_to_all_dispatcher(std::shared_ptr<ExpertComm> comm,
                                                              bool pad, int64_t chunks) {
  return std::make_unique<AllToAllDispatcher>(std::move(comm), pad, chunks);
}

}  // namespace mtrain::parallel
