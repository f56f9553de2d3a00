#include "parallel/tensor/tensor_linear.h"

#include <utility>

#include "parallel/tensor/split_product.h"

namespace mtrain {

namespace {

Cut cut_of(const TensorComm& comm, Cut::Dim dim, std::vector<Cut::Section> sections = {}) {
  return {.ranks = comm.size(),
          .rank = comm.rank(),
          .dim = dim,
          .sections = std::move(sections),
          // Of the rows that ranks have copies of, each rank's heads give a part.
          .partial_grad = dim == Cut::Dim::rows};
}

using Method = ProductOverlap::Method;

// This rank's rows of the sum over ranks of products of all rows.
Tensor product_scatter(const TensorComm& comm, const ProductOverlap& how, const Tensor& x_TI,
                       int64_t O, const RowProduct& product) {
  return how.method == Method::ring_exchange
             ? ring_product_scatter(comm, x_TI, O, product)
             : pipelined_product_scatter(comm, x_TI, O, how.splits, product);
}
bool splits(const ProductOverlap& how) {
  return how.method == Method::ring_exchange || how.method == Method::pipeline;
}

class ColumnParallel : public Linear {
 public:
  ColumnParallel(ParamStore& params, const LinearSpec& spec, const TensorComm& comm,
                 const TensorLinearOptions& o)
      : comm_(comm),
        sequence_(o.sequence),
        fprop_(o.overlap.of(spec.names.product, "fprop")),
        dgrad_(o.overlap.of(spec.names.product, "dgrad")),
        wgrad_(o.overlap.of(spec.names.product, "wgrad")),
        products_(params, spec, rows_cut(spec, comm), rows_cut(spec, comm)) {}

  Tensor forward(Step& step, const Tensor& x_TI) override {
    if (fprop_.method == Method::ring_exchange)
      return ring_gather_product(
          comm_, x_TI, products_.O(), fprop_.aggregate,
          [&](const Tensor& x, const Tensor& y) { products_.forward_into(step, x, y, true); });
    return products_.forward(step, sequence_ ? comm_.await(comm_.gather(x_TI)) : x_TI, true);
  }

  Tensor dgrad(Step& step, OutputGradient& dy) override {
    if (splits(dgrad_)) return split_dgrad(step, dy.dy_TO);
    const Tensor partial = products_.dgrad(step, dy);
    return comm_.await(sequence_ ? comm_.reduce_scatter(partial) : comm_.all_reduce(partial));
  }

  void wgrad(Step& step, const Tensor& x_TI, const OutputGradient& dy) override {
    products_.wgrad(step, sequence_ ? comm_.await(comm_.gather(x_TI)) : x_TI, dy);
  }

  // In bulk the inputs of the weight gradient arrive behind the input gradient, and that one's sum
  // behind the weight gradient.
  Tensor backward(Step& step, const Tensor& x_TI, OutputGradient dy) override {
    if (!sequence_) return Linear::backward(step, x_TI, std::move(dy));
    const TensorComm::Coming x = comm_.gather(x_TI);
    if (dgrad_.method == Method::none) comm_.await(x);
    TensorComm::Coming dx;
    if (splits(dgrad_)) {
      dx = {split_dgrad(step, dy.dy_TO), {}};
    } else {
      dx = comm_.reduce_scatter(products_.dgrad(step, dy));
      if (wgrad_.method == Method::none) comm_.await(dx);
    }
    products_.wgrad(step, comm_.await(x), dy);
    return comm_.await(dx);
  }

 private:
  static Cut rows_cut(const LinearSpec& spec, const TensorComm& comm) {
    return cut_of(comm, Cut::Dim::rows,
                  spec.sections.empty() ? std::vector<Cut::Section>{{spec.O, 1}} : spec.sections);
  }
  Tensor split_dgrad(Step& step, const Tensor& dy_TO) {
    return product_scatter(
        comm_, dgrad_, dy_TO, products_.I(),
        [&](const Tensor& dy, const Tensor& dx) { products_.dgrad_into(step, dy, dx); });
  }

  const TensorComm& comm_;
  const bool sequence_;
  const ProductOverlap fprop_, dgrad_, wgrad_;
  LinearProducts products_;
};

class RowParallel : public Linear {
 public:
  RowParallel(ParamStore& params, const LinearSpec& spec, const TensorComm& comm,
              const TensorLinearOptions& o)
      : comm_(comm),
        sequence_(o.sequence),
        fprop_(o.overlap.of(spec.names.product, "fprop")),
        dgrad_(o.overlap.of(spec.names.product, "dgrad")),
        // Every rank sees the whole output gradient, and so the bias' whole gradient.
        products_(params, spec, cut_of(comm, Cut::Dim::columns), cut_of(comm, Cut::Dim::none)) {}

  // One rank's part of the sum has the bias.
  Tensor forward(Step& step, const Tensor& x_TI) override {
    const bool bias = comm_.rank() == 0;
    if (splits(fprop_))
      return product_scatter(
          comm_, fprop_, x_TI, products_.O(),
          [&](const Tensor& x, const Tensor& y) { products_.forward_into(step, x, y, bias); });
    const Tensor partial = products_.forward(step, x_TI, bias);
    return comm_.await(sequence_ ? comm_.reduce_scatter(partial) : comm_.all_reduce(partial));
  }

  Tensor dgrad(Step& step, OutputGradient& dy) override {
    if (dgrad_.method == Method::ring_exchange) {
      const Tensor own = dy.dy_TO;
      return ring_gather_product(
          comm_, own, products_.I(), dgrad_.aggregate,
          [&](const Tensor& rows, const Tensor& dx) { products_.dgrad_into(step, rows, dx); },
          &dy.dy_TO);
    }
    if (sequence_) dy.dy_TO = comm_.await(comm_.gather(dy.dy_TO));
    return products_.dgrad(step, dy);
  }

  void wgrad(Step& step, const Tensor& x_TI, const OutputGradient& dy) override {
    products_.wgrad(step, x_TI, dy);
  }

 private:
  const TensorComm& comm_;
  const bool sequence_;
  const ProductOverlap fprop_, dgrad_;
  LinearProducts products_;
};

}  // namespace

std::unique_ptr<Linear> column_parallel(ParamStore& params, const LinearSpec& spec,
                                        const TensorComm& comm,
                                        const TensorLinearOptions& options) {
  return std::make_unique<ColumnParallel>(params, spec, comm, options);
}

std::unique_ptr<Linear> row_parallel(ParamStore& params, const LinearSpec& spec,
                                     const TensorComm& comm, const TensorLinearOptions& options) {
  return std::make_unique<RowParallel>(params, spec, comm, options);
}

}  // namespace mtrain
