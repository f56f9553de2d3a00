#include "parallel/tensor/tensor_linear.h"

#include <utility>

#include "device/device.h"
#include "ops/operand.h"
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

// While it lives, the GEMM of this overlap leaves multiprocessors to communication.
device::Device::GemmMargin margin_of(const model::Step& step, const plan::GemmOverlap& overlap) {
  return {step.compute.device(), overlap.sm_margin};
}

// Returns this rank's rows of the sum of all ranks' results. `overlap` must be a chunked method.
// A pipeline's GEMMs have a multiple of `rows_multiple` rows. The plan has no ring with other rows.
Tensor gemm_reduce_scatter(const TensorComm& comm, const plan::GemmOverlap& overlap,
                           const Tensor& x_TI, int64_t O, int64_t rows_multiple,
                           const RowGemm& gemm) {
  return overlap.method == Method::ring_exchange
             ? gemm_reduce_scatter_ring(comm, x_TI, O, gemm)
             : gemm_reduce_scatter_pipelined(comm, x_TI, O, overlap.splits, rows_multiple, gemm);
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
        float8_rows_multiple_(o.float8_rows_multiple),
        gemms_(params, spec, rows_shard(spec, comm), rows_shard(spec, comm)) {}

  // Under sequence parallelism the maximum is over the rows of all ranks, which only the gathered
  // tensor has. Each chunk of a chunked GEMM has a scale of its own.
  ops::Destination input(bool training) const override {
    return sequence_ ? ops::Destination{} : gemms_.input(training);
  }
  ops::Destination gradient() const override {
    return dgrad_.chunked() ? ops::Destination{} : gemms_.gradient();
  }

  Tensor forward(model::Step& step, model::LinearOperand& x_TI) override {
    const auto margin = margin_of(step, fprop_);
    if (fprop_.method == Method::ring_exchange)
      return all_gather_gemm_ring(
                 comm_, x_TI.value.plain, gemms_.O(), fprop_.aggregate,
                 [&](const Tensor& x, const Tensor& y) { gemms_.forward_into(step, x, y, true); })
          .y_TO;
    if (!sequence_) return gemms_.forward(step, x_TI, true);
    model::LinearOperand all = gathered(x_TI, comm_.await(comm_.gather(x_TI.value.plain)));
    const Tensor y_TO = gemms_.forward(step, all, true);
    x_TI.scale = all.scale;
    return y_TO;
  }

  model::InputGradient dgrad(model::Step& step, model::LinearOperand dy_TO) override {
    if (dgrad_.chunked()) return chunked_dgrad(step, std::move(dy_TO));
    model::InputGradient g = gemms_.dgrad(step, std::move(dy_TO));
    g.dx_TI = comm_.await(sequence_ ? comm_.reduce_scatter(g.dx_TI) : comm_.all_reduce(g.dx_TI));
    return g;
  }

  void wgrad(model::Step& step, model::LinearOperand x_TI, model::LinearOperand dy_TO) override {
    if (sequence_) x_TI = gathered(x_TI, comm_.await(comm_.gather(x_TI.value.plain)));
    gemms_.wgrad(step, std::move(x_TI), std::move(dy_TO));
  }

  // In bulk overlap, dgrad hides the gather of wgrad's input, and wgrad hides the reduce-scatter of
  // dgrad's result.
  Tensor backward(model::Step& step, model::LinearOperand x_TI,
                  model::LinearOperand dy_TO) override {
    if (!sequence_) return model::Linear::backward(step, std::move(x_TI), std::move(dy_TO));
    const TensorComm::Pending x = comm_.gather(x_TI.value.plain);
    if (!dgrad_.active()) comm_.await(x);
    model::InputGradient g;
    TensorComm::Pending dx;
    if (dgrad_.chunked()) {
      g = chunked_dgrad(step, std::move(dy_TO));
      dx = {std::move(g.dx_TI), {}};
    } else {
      const auto margin = margin_of(step, dgrad_);
      g = gemms_.dgrad(step, std::move(dy_TO));
      dx = comm_.reduce_scatter(std::exchange(g.dx_TI, {}));
      if (!wgrad_.active()) comm_.await(dx);
    }
    const auto margin = margin_of(step, wgrad_);
    gemms_.wgrad(step, gathered(x_TI, comm_.await(x)), std::move(g.dy));
    return comm_.await(dx);
  }

 private:
  static model::ShardSpec rows_shard(const model::LinearSpec& spec, const TensorComm& comm) {
    return shard_of(comm, model::ShardSpec::Dim::rows, model::sections_of(spec.weight));
  }
  // Returns the operand with the rows of all ranks.
  static model::LinearOperand gathered(const model::LinearOperand& own, Tensor all) {
    model::LinearOperand x(std::move(all));
    x.scale = own.scale;
    return x;
  }
  model::InputGradient chunked_dgrad(model::Step& step, model::LinearOperand dy_TO) {
    const auto margin = margin_of(step, dgrad_);
    const Tensor dx = gemm_reduce_scatter(
        comm_, dgrad_, dy_TO.value.plain, gemms_.I(),
        gemms_.quantizes() ? float8_rows_multiple_ : 1,
        [&](const Tensor& in, const Tensor& out) { gemms_.dgrad_into(step, in, out); });
    return {dx, std::move(dy_TO)};
  }

  const TensorComm& comm_;
  const bool sequence_;
  const plan::GemmOverlap fprop_, dgrad_, wgrad_;
  const int64_t float8_rows_multiple_;
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
        float8_rows_multiple_(o.float8_rows_multiple),
        // Every rank has the full output gradient, and computes the bias's full gradient.
        gemms_(params, spec, shard_of(comm, model::ShardSpec::Dim::columns),
               shard_of(comm, model::ShardSpec::Dim::none)) {}

  ops::Destination input(bool training) const override {
    return fprop_.chunked() ? ops::Destination{} : gemms_.input(training);
  }
  ops::Destination gradient() const override {
    return sequence_ ? ops::Destination{} : gemms_.gradient();
  }

  // Only rank 0 adds the bias to its part of the sum.
  Tensor forward(model::Step& step, model::LinearOperand& x_TI) override {
    const bool bias = comm_.rank() == 0;
    const auto margin = margin_of(step, fprop_);
    if (fprop_.chunked())
      return gemm_reduce_scatter(
          comm_, fprop_, x_TI.value.plain, gemms_.O(),
          gemms_.quantizes() ? float8_rows_multiple_ : 1,
          [&](const Tensor& x, const Tensor& y) { gemms_.forward_into(step, x, y, bias); });
    const Tensor partial = gemms_.forward(step, x_TI, bias);
    return comm_.await(sequence_ ? comm_.reduce_scatter(partial) : comm_.all_reduce(partial));
  }

  model::InputGradient dgrad(model::Step& step, model::LinearOperand dy_TO) override {
    Tensor& dy = dy_TO.value.plain;
    const auto margin = margin_of(step, dgrad_);
    if (dgrad_.method == Method::ring_exchange) {
      const GatheredGemm all = all_gather_gemm_ring(
          comm_, dy, gemms_.I(), dgrad_.aggregate,
          [&](const Tensor& in, const Tensor& out) { gemms_.dgrad_into(step, in, out); },
          /*keep_gathered=*/true);
      return {all.y_TO, all.x_TI};
    }
    if (sequence_) dy = comm_.await(comm_.gather(dy));
    return gemms_.dgrad(step, std::move(dy_TO));
  }

  void wgrad(model::Step& step, model::LinearOperand x_TI, model::LinearOperand dy_TO) override {
    gemms_.wgrad(step, std::move(x_TI), std::move(dy_TO));
  }

 private:
  const TensorComm& comm_;
  const bool sequence_;
  const plan::GemmOverlap fprop_, dgrad_;
  const int64_t float8_rows_multiple_;
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
