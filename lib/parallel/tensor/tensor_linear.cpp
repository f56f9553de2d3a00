#include "parallel/tensor/tensor_linear.h"

#include <utility>

#include "parallel/tensor/chunked_gemm.h"

namespace mtrain::parallel {

namespace {

model::ShardSpec shard_of(const TensorComm& comm, model::ShardSpec::Dim dim,
                          std::vector<model::ShardSpec::Section> sections = {}) {
  return {.ranks = comm.size(),
          .rank = comm.rank(),
          .dim = dim,
          .sections = std::move(sections),
          // If several ranks hold the same rows, each computes a part of their gradient.
          .partial_grad = dim == model::ShardSpec::Dim::rows};
}

using Method = plan::GemmOverlap::Method;

// Returns this rank's rows of the sum of all ranks' results. `overlap` must be a chunked method.
Tensor gemm_reduce_scatter(const TensorComm& comm, const plan::GemmOverlap& overlap,
                           const Tensor& x_TI, int64_t O, const RowGemm& gemm) {
  return overlap.method == Method::ring_exchange
             ? gemm_reduce_scatter_ring(comm, x_TI, O, gemm)
             : gemm_reduce_scatter_pipelined(comm, x_TI, O, overlap.splits, gemm);
}

class ColumnParallel : public model::Linear {
 public:
  ColumnParallel(model::ParamStore& params, const model::LinearSpec& spec, const TensorComm& comm,
                 const TensorLinearOptions& o)
      : comm_(comm),
        sequence_(o.sequence),
        fprop_(o.overlap.at(spec.gemm, Pass::fprop)),
        dgrad_(o.overlap.at(spec.gemm, Pass::dgrad)),
        wgrad_(o.overlap.at(spec.gemm, Pass::wgrad)),
        gemms_(params, spec, rows_shard(spec, comm), rows_shard(spec, comm)) {}

  // Under sequence parallelism the maximum is over the rows of all ranks, which only the gathered
  // tensor has. Each chunk of a chunked GEMM has a scale of its own.
  ops::Float8Write input_write(bool training) const override {
    return sequence_ ? ops::Float8Write{} : gemms_.input_write(training);
  }
  ops::Float8Write gradient_write() const override {
    return dgrad_.chunked() ? ops::Float8Write{} : gemms_.gradient_write();
  }

  Tensor forward(model::Step& step, const Tensor& x_TI, model::InputScale& scale) override {
    if (fprop_.method == Method::ring_exchange)
      return all_gather_gemm_ring(
                 comm_, x_TI, gemms_.O(), fprop_.aggregate,
                 [&](const Tensor& x, const Tensor& y) { gemms_.forward_into(step, x, y, true); })
          .y_TO;
    return gemms_.forward(step, sequence_ ? comm_.await(comm_.gather(x_TI)) : x_TI, scale, true);
  }

  model::InputGradient dgrad(model::Step& step, model::WrittenGradient dy) override {
    if (dgrad_.chunked()) return chunked_dgrad(step, std::move(dy.dy_TO));
    model::InputGradient g = gemms_.dgrad(step, std::move(dy));
    g.dx_TI = comm_.await(sequence_ ? comm_.reduce_scatter(g.dx_TI) : comm_.all_reduce(g.dx_TI));
    return g;
  }

  void wgrad(model::Step& step, const Tensor& x_TI, const model::InputScale& scale,
             model::OutputGradient dy) override {
    gemms_.wgrad(step, sequence_ ? comm_.await(comm_.gather(x_TI)) : x_TI, scale, std::move(dy));
  }

  // In bulk overlap, dgrad hides the gather of wgrad's input, and wgrad hides the reduce-scatter of
  // dgrad's result.
  Tensor backward(model::Step& step, const Tensor& x_TI, const model::InputScale& scale,
                  model::WrittenGradient dy) override {
    if (!sequence_) return model::Linear::backward(step, x_TI, scale, std::move(dy));
    const TensorComm::Pending x = comm_.gather(x_TI);
    if (!dgrad_.active()) comm_.await(x);
    model::InputGradient g;
    TensorComm::Pending dx;
    if (dgrad_.chunked()) {
      g = chunked_dgrad(step, std::move(dy.dy_TO));
      dx = {std::move(g.dx_TI), {}};
    } else {
      g = gemms_.dgrad(step, std::move(dy));
      dx = comm_.reduce_scatter(std::exchange(g.dx_TI, {}));
      if (!wgrad_.active()) comm_.await(dx);
    }
    gemms_.wgrad(step, comm_.await(x), scale, std::move(g.for_wgrad));
    return comm_.await(dx);
  }

 private:
  static model::ShardSpec rows_shard(const model::LinearSpec& spec, const TensorComm& comm) {
    return shard_of(comm, model::ShardSpec::Dim::rows,
                    spec.sections.empty() ? std::vector<model::ShardSpec::Section>{{spec.O, 1}}
                                          : spec.sections);
  }
  model::InputGradient chunked_dgrad(model::Step& step, Tensor dy_TO) {
    const Tensor dx = gemm_reduce_scatter(
        comm_, dgrad_, dy_TO, gemms_.I(),
        [&](const Tensor& in, const Tensor& out) { gemms_.dgrad_into(step, in, out); });
    return {dx, {std::move(dy_TO)}};
  }

  const TensorComm& comm_;
  const bool sequence_;
  const plan::GemmOverlap fprop_, dgrad_, wgrad_;
  model::LinearGemms gemms_;
};

class RowParallel : public model::Linear {
 public:
  RowParallel(model::ParamStore& params, const model::LinearSpec& spec, const TensorComm& comm,
              const TensorLinearOptions& o)
      : comm_(comm),
        sequence_(o.sequence),
        fprop_(o.overlap.at(spec.gemm, Pass::fprop)),
        dgrad_(o.overlap.at(spec.gemm, Pass::dgrad)),
        // Every rank has the full output gradient, and computes the bias's full gradient.
        gemms_(params, spec, shard_of(comm, model::ShardSpec::Dim::columns),
               shard_of(comm, model::ShardSpec::Dim::none)) {}

  ops::Float8Write input_write(bool training) const override {
    return fprop_.chunked() ? ops::Float8Write{} : gemms_.input_write(training);
  }
  ops::Float8Write gradient_write() const override {
    return sequence_ ? ops::Float8Write{} : gemms_.gradient_write();
  }

  // Only rank 0 adds the bias to its part of the sum.
  Tensor forward(model::Step& step, const Tensor& x_TI, model::InputScale& scale) override {
    const bool bias = comm_.rank() == 0;
    if (fprop_.chunked())
      return gemm_reduce_scatter(
          comm_, fprop_, x_TI, gemms_.O(),
          [&](const Tensor& x, const Tensor& y) { gemms_.forward_into(step, x, y, bias); });
    const Tensor partial = gemms_.forward(step, x_TI, scale, bias);
    return comm_.await(sequence_ ? comm_.reduce_scatter(partial) : comm_.all_reduce(partial));
  }

  model::InputGradient dgrad(model::Step& step, model::WrittenGradient dy) override {
    if (dgrad_.method == Method::ring_exchange) {
      const GatheredGemm all = all_gather_gemm_ring(
          comm_, dy.dy_TO, gemms_.I(), dgrad_.aggregate,
          [&](const Tensor& in, const Tensor& out) { gemms_.dgrad_into(step, in, out); },
          /*keep_gathered=*/true);
      return {all.y_TO, {all.x_TI}};
    }
    if (sequence_) dy.dy_TO = comm_.await(comm_.gather(dy.dy_TO));
    return gemms_.dgrad(step, std::move(dy));
  }

  void wgrad(model::Step& step, const Tensor& x_TI, const model::InputScale& scale,
             model::OutputGradient dy) override {
    gemms_.wgrad(step, x_TI, scale, std::move(dy));
  }

 private:
  const TensorComm& comm_;
  const bool sequence_;
  const plan::GemmOverlap fprop_, dgrad_;
  model::LinearGemms gemms_;
};

}  // namespace

std::unique_ptr<model::Linear> column_parallel(model::ParamStore& params,
                                               const model::LinearSpec& spec,
                                               const TensorComm& comm,
                                               const TensorLinearOptions& options) {
  return std::make_unique<ColumnParallel>(params, spec, comm, options);
}

std::unique_ptr<model::Linear> row_parallel(model::ParamStore& params,
                                            const model::LinearSpec& spec, const TensorComm& comm,
                                            const TensorLinearOptions& options) {
  return std::make_unique<RowParallel>(params, spec, comm, options);
}

}  // namespace mtrain::parallel
