#include "parallel/expert/expert_comm.h"

namespace mtrain::parallel {

namespace {

using model::ExpertRows;
using model::Step;
using model::TokenRoute;

class ReducedDispatcher : public model::TokenDispatcher {
 public:
  ReducedDispatcher(std::unique_ptr<TokenDispatcher> own,
                    std::shared_ptr<model::TensorParallel> tensor)
      : own_(std::move(own)), tensor_(std::move(tensor)) {}

  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK,
                                    int64_t capacity) override {
    return own_->route(step, expert_TK, capacity);
  }
  ExpertRows to_rows(Step& step, TokenRoute& route, const Tensor& x_TH,
                     const Tensor& weight_TK) override {
    return own_->to_rows(step, route, x_TH, weight_TK);
  }
  ExpertRows send(Step& step, TokenRoute& route, ExpertRows rows) override {
    return own_->send(step, route, std::move(rows));
  }
  ExpertRows by_expert(Step& step, TokenRoute& route, ExpertRows arrived) override {
    return own_->by_expert(step, route, std::move(arrived));
  }
  Tensor first_E1(const TokenRoute& route) const override { return own_->first_E1(route); }
  ExpertRows from_experts(Step& step, TokenRoute& route, ExpertRows rows) override {
    return own_->from_experts(step, route, std::move(rows));
  }
  ExpertRows send_back(Step& step, TokenRoute& route, ExpertRows rows) override {
    return own_->send_back(step, route, std::move(rows));
  }
  model::TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows arrived) override {
    model::TokenSums sums = own_->to_tokens(step, route, std::move(arrived));
    if (sums.weight_TK) tensor_->sum(sums.weight_TK);
    sums.sum_TH = tensor_->reduce(step, sums.sum_TH);
    return sums;
  }
  int64_t chunks() const override { return own_->chunks(); }
  std::unique_ptr<model::ChunkedRows> in_chunks(Step& step, TokenRoute& route,
                                                ExpertRows rows) override {
    return own_->in_chunks(step, route, std::move(rows));
  }

 private:
  const std::unique_ptr<TokenDispatcher> own_;
  const std::shared_ptr<model::TensorParallel> tensor_;
};

}  // namespace

std::unique_ptr<model::TokenDispatcher> reduced_dispatcher(
    std::unique_ptr<model::TokenDispatcher> own, std::shared_ptr<model::TensorParallel> tensor) {
  return std::make_unique<ReducedDispatcher>(std::move(own), std::move(tensor));
}

}  // namespace mtrain::parallel
