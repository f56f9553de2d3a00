#include "model/experts/token_dispatcher.h"
#include "ops/permute.h"

namespace mtrain::model {

namespace {

struct LocalRoute {
  Tensor row_TK, choice_R;
};

class LocalDispatcher : public TokenDispatcher {
 public:
  explicit LocalDispatcher(int64_t experts) : experts_(experts) {}

  DispatchedTokens dispatch(Step& step, const Tensor& x_TH, const Tensor& expert_TK,
                            const Tensor& weight_TK) override {
    Stream& stream = step.compute;
    const int64_t K = expert_TK.dim(1), choices = expert_TK.count();
    const ops::ExpertRows rows = ops::expert_rows(stream, expert_TK, experts_);
    // A choice's weight is a row of one column, and each choice a token of its own.
    const Tensor weight_R1 = ops::permute(stream, weight_TK.view({choices, 1}), rows.choice_R, 1);
    return {ops::permute(stream, x_TH, rows.choice_R, K), weight_R1.view({choices}), rows.first_E1,
            LocalRoute{rows.row_TK, rows.choice_R}};
  }

  Tensor combine(Step& step, const std::any& route, const Tensor& y_RH) override {
    return ops::unpermute(step.compute, y_RH, of(route).row_TK);
  }

  Tensor combine_backward(Step& step, const std::any& route, const Tensor& dy_TH) override {
    const LocalRoute& r = of(route);
    return ops::permute(step.compute, dy_TH, r.choice_R, r.row_TK.dim(1));
  }

  DispatchedGradients dispatch_backward(Step& step, const std::any& route, const Tensor& dx_RH,
                                        const Tensor& dweight_R) override {
    const LocalRoute& r = of(route);
    const int64_t choices = r.row_TK.count();
    const Tensor dweight =
        ops::unpermute(step.compute, dweight_R.view({choices, 1}), r.row_TK.view({choices, 1}));
    return {ops::unpermute(step.compute, dx_RH, r.row_TK), dweight.view(r.row_TK.shape())};
  }

 private:
  static const LocalRoute& of(const std::any& route) {
    const auto* local = std::any_cast<LocalRoute>(&route);
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
