#include "model/experts/permuted_rows.h"
#include "model/experts/token_dispatcher.h"

namespace mtrain::model {

namespace {

struct LocalRoute : TokenRoute {
  ops::ExpertRows order;
};

class LocalDispatcher : public TokenDispatcher {
 public:
  explicit LocalDispatcher(int64_t experts) : experts_(experts) {}

  // Rows that do not travel need no room for others.
  std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK, int64_t) override {
    auto route = std::make_shared<LocalRoute>();
    route->order = ops::expert_rows(step.compute, expert_TK, experts_);
    return route;
  }
  ExpertRows to_rows(Step& step, TokenRoute& route, const Tensor& x_TH,
                     const Tensor& weight_TK) override {
    return permuted_rows(step.compute, of(route).order, x_TH, weight_TK);
  }
  Tensor first_E1(const TokenRoute& route) const override { return of(route).order.first_E1; }
  TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows rows) override {
    return sums_of_rows(step.compute, of(route).order, rows);
  }

 private:
  static const LocalRoute& of(const TokenRoute& route) {
    const auto* local = dynamic_cast<const LocalRoute*>(&route);
    MT_CHECK(local, "a route of another dispatcher");
    return *local;
  }

  const int64_t experts_;
};

}  // namespace

std::unique_ptr<TokenDispatcher> local_dispatcher(int64_t experts) {
  return std::make_unique<LocalDispatcher>(experts);
}

}  // namespace mtrain::model
