#include "parallel/tensor/tensor_parallel.h"

#include "parallel/tensor/replicated_grads.h"

namespace mtrain::parallel {

namespace {

class MultiRankTensorParallel : public model::TensorParallel {
 public:
  MultiRankTensorParallel(TensorGroups groups, TensorLinearOptions options)
      : comm_(std::move(groups)), options_(options) {}

  int size() const override { return comm_.size(); }
  int rank() const override { return comm_.rank(); }
  bool sequence() const override { return options_.sequence; }

  std::unique_ptr<model::Linear> column_linear(model::ParamStore& params,
                                               const model::LinearSpec& spec) override {
    return column_parallel(params, spec, comm_, options_);
  }
  std::unique_ptr<model::Linear> row_linear(model::ParamStore& params,
                                            const model::LinearSpec& spec) override {
    return row_parallel(params, spec, comm_, options_);
  }

  Tensor gather(model::Step&, const Tensor& x_TH) override {
    return sequence() ? comm_.await(comm_.gather(x_TH)) : x_TH;
  }
  Tensor reduce(model::Step&, const Tensor& partial_TH) override {
    return comm_.await(sequence() ? comm_.reduce_scatter(partial_TH)
                                  : comm_.all_reduce(partial_TH));
  }
  Tensor gather_sums(model::Step&, const Tensor& sums_T3) override {
    const Tensor all = comm_.await(comm_.gather(sums_T3));
    return all.view({size(), sums_T3.dim(0), sums_T3.dim(1)});
  }

  void finish_grads(model::ParamStore& params) override { sum_replicated_grads(params, comm_); }
  void sum(const Tensor& values) override { comm_.await(comm_.all_reduce(values)); }
  void max(const Tensor& values) override {
    comm_.after_compute();
    comm_.all().all_reduce(values, comm::Reduce::max, comm_.stream());
    comm_.before_compute();
  }
  Tensor all_ranks(const Tensor& unit) override {
    const Tensor all = Tensor::empty(comm_.compute(), {unit.count() * size()}, unit.dtype(),
                                     device::MemoryCategory::buffers);
    comm_.after_compute();
    comm_.all().all_gather(unit, all, comm_.stream());
    comm_.before_compute();
    return all;
  }

 private:
  const TensorComm comm_;
  const TensorLinearOptions options_;
};

}  // namespace

std::shared_ptr<model::TensorParallel> tensor_parallel(TensorGroups groups,
                                                       TensorLinearOptions options) {
  return std::make_shared<MultiRankTensorParallel>(std::move(groups), options);
}

}  // namespace mtrain::parallel
