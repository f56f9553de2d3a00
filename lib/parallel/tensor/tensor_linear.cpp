#include "parallel/tensor/tensor_linear.h"

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

class ColumnParallel : public Linear {
 public:
  ColumnParallel(ParamStore& params, const LinearSpec& spec, const TensorComm& comm, bool sequence)
      : ColumnParallel(params, spec, comm, sequence,
                       cut_of(comm, Cut::Dim::rows,
                              spec.sections.empty() ? std::vector<Cut::Section>{{spec.O, 1}}
                                                    : spec.sections)) {}

  Tensor forward(Step& step, const Tensor& x_TI) override {
    const Tensor x = sequence_ ? comm_.await(comm_.gather(x_TI)) : x_TI;
    return products_.forward(step.compute, x, true);
  }

  Tensor dgrad(Step& step, Tensor& dy_TO) override {
    const Tensor partial = products_.dgrad(step.compute, dy_TO);
    return comm_.await(sequence_ ? comm_.reduce_scatter(partial) : comm_.all_reduce(partial));
  }

  void wgrad(Step& step, const Tensor& x_TI, const Tensor& dy_TO) override {
    products_.wgrad(step, sequence_ ? comm_.await(comm_.gather(x_TI)) : x_TI, dy_TO);
  }

 private:
  ColumnParallel(ParamStore& params, const LinearSpec& spec, const TensorComm& comm, bool sequence,
                 const Cut& cut)
      : comm_(comm), sequence_(sequence), products_(params, spec, cut, cut) {}

  const TensorComm& comm_;
  const bool sequence_;
  LinearProducts products_;
};

class RowParallel : public Linear {
 public:
  RowParallel(ParamStore& params, const LinearSpec& spec, const TensorComm& comm, bool sequence)
      : comm_(comm),
        sequence_(sequence),
        // Every rank sees the whole output gradient, and so the bias' whole gradient.
        products_(params, spec, cut_of(comm, Cut::Dim::columns), cut_of(comm, Cut::Dim::none)) {}

  // One rank's part of the sum has the bias.
  Tensor forward(Step& step, const Tensor& x_TI) override {
    const Tensor partial = products_.forward(step.compute, x_TI, comm_.rank() == 0);
    return comm_.await(sequence_ ? comm_.reduce_scatter(partial) : comm_.all_reduce(partial));
  }

  Tensor dgrad(Step& step, Tensor& dy_TO) override {
    if (sequence_) dy_TO = comm_.await(comm_.gather(dy_TO));
    return products_.dgrad(step.compute, dy_TO);
  }

  void wgrad(Step& step, const Tensor& x_TI, const Tensor& dy_TO) override {
    products_.wgrad(step, x_TI, dy_TO);
  }

 private:
  const TensorComm& comm_;
  const bool sequence_;
  LinearProducts products_;
};

}  // namespace

std::unique_ptr<Linear> column_parallel(ParamStore& params, const LinearSpec& spec,
                                        const TensorComm& comm, bool sequence) {
  return std::make_unique<ColumnParallel>(params, spec, comm, sequence);
}

std::unique_ptr<Linear> row_parallel(ParamStore& params, const LinearSpec& spec,
                                     const TensorComm& comm, bool sequence) {
  return std::make_unique<RowParallel>(params, spec, comm, sequence);
}

}  // namespace mtrain
