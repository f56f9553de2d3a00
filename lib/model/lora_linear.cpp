#include "model/lora_linear.h"

#include <utility>

#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace mtrain::model {

namespace {

std::unique_ptr<Linear> without_adapters(ParamStore& params, const LinearSpec& spec,
                                         LinearSide side, TensorParallel& tensor) {
  switch (side) {
    case LinearSide::column: return tensor.column_linear(params, spec);
    case LinearSide::row: return tensor.row_linear(params, spec);
    case LinearSide::whole: return plain_linear(params, spec, tensor.replicated());
  }
  throw BugError("a side of a linear");
}

class LoraLinear : public Linear {
 public:
  LoraLinear(ParamStore& params, const LinearSpec& spec, LinearSide side, const spec::Lora& lora,
             std::shared_ptr<TensorParallel> tensor)
      : side_(side),
        scale_(lora.scale()),
        dropout_(float(lora.dropout)),
        tensor_(std::move(tensor)),
        base_(without_adapters(params, spec, side, *tensor_)) {
    for (const AdapterSpec& a : spec.adapters) add(params, spec, a);
  }

  ops::Destination input(bool training) const override { return base_->input(training); }
  ops::Destination gradient() const override { return base_->gradient(); }

  Tensor forward(Step& step, LinearOperand& x_TI) override {
    const Tensor x = x_TI.value.plain;
    const Tensor y_TO = base_->forward(step, x_TI);
    if (adapters_.empty()) return y_TO;
    x_TI.inner.clear();
    for (const Adapter& a : adapters_) {
      const Tensor u = ops::matmul(step.compute, "matmul_lora_fwd", dropped(step, x, a), a.a->value,
                                   {.b = true}, y_TO.dtype());
      x_TI.inner.push_back(exchanged(step, scaled(step, u), side_ == LinearSide::column));
    }
    add_outputs(step, x_TI.inner, y_TO);
    return y_TO;
  }

  InputGradient dgrad(Step& step, LinearOperand dy_TO) override {
    const Tensor dy = dy_TO.value.plain;
    InputGradient g = base_->dgrad(step, std::move(dy_TO));
    g.dy = {};
    if (adapters_.empty()) return g;
    g.dy = LinearOperand(dy);
    for (const Adapter& a : adapters_) {
      const Tensor du = ops::matmul(step.compute, "matmul_lora_dgrad", own_columns(step, dy, a),
                                    a.b->value, {}, dy.dtype());
      g.dy.inner.push_back(exchanged(step, scaled(step, du), side_ == LinearSide::row));
      const Tensor dx = ops::matmul(step.compute, "matmul_lora_dgrad", g.dy.inner.back(),
                                    a.a->value, {}, dy.dtype());
      drop(step, dx, a);
      ops::add_into(step.compute, dx, g.dx_TI);
    }
    return g;
  }

  void wgrad(Step& step, LinearOperand x_TI, LinearOperand dy_TO) override {
    WgradQueue::Entry entry;
    for (const Adapter& a : adapters_) entry.completes.insert(entry.completes.end(), {a.a, a.b});
    if (adapters_.empty())
      entry.run = [] {};
    else
      entry.run = [this, &step_compute = step.compute, x = inputs(step, x_TI.value.plain),
                   u = std::move(x_TI.inner),
                   dy = std::move(dy_TO)] { wgrad_now(step_compute, x, u, dy); };
    step.wgrad.push(std::move(entry));
  }

 private:
  struct Adapter {
    Parameter *a, *b;
    int64_t first;  // the first of its columns in this rank's y
    std::string name;
  };

  void add(ParamStore& params, const LinearSpec& spec, const AdapterSpec& adapter) {
    using Dim = ShardSpec::Dim;
    const int ranks = tensor_->size(), rank = tensor_->rank();
    const bool column = side_ == LinearSide::column;
    ShardSpec a = tensor_->replicated(), b = a;
    if (column)
      b = {.ranks = ranks,
           .rank = rank,
           .dim = Dim::rows,
           .sections = sections_of(adapter.b),
           .partial_grad = true};
    else if (side_ == LinearSide::row)
      a = {.ranks = ranks, .rank = rank, .dim = Dim::columns};
    int64_t first = 0;
    if (column && adapter.rows != spec::Rows::all)
      for (const spec::RowSection& s : spec.weight.split.sections) {
        if (s.rows == adapter.rows) break;
        first += ShardSpec::Section{s.units, s.width}.rows_here(ranks);
      }
    Parameter* const of_a = params.add(spec.unit, part_of(adapter.a, std::move(a)));
    adapters_.push_back({of_a, params.add(spec.unit, part_of(adapter.b, std::move(b))), first,
                         adapter.a.name.substr(0, adapter.a.name.rfind('.'))});
  }

  Tensor scaled(Step& step, const Tensor& u) const {
    ops::scale(step.compute, u, scale_);
    return u;
  }
  // Without sequence parallelism a gather has nothing to do.
  Tensor exchanged(Step& step, const Tensor& u, bool gather) const {
    if (side_ == LinearSide::whole) return u;
    return gather ? tensor_->gather(step, u) : tensor_->reduce(step, u);
  }

  // A column-parallel or whole linear has all columns of x, and under sequence parallelism its own
  // rows; a row-parallel one has its own columns.
  void drop(Step& step, const Tensor& x_TI, const Adapter& a) const {
    if (!step.training || dropout_ == 0) return;
    const int64_t T = x_TI.dim(0), I = x_TI.dim(1);
    if (side_ != LinearSide::row)
      drop_adapter_input(step, x_TI, a.name, dropout_, tensor_->first_row(T * tensor_->size()),
                         {0, I});
    else
      drop_adapter_input(step, x_TI, a.name, dropout_, 0,
                         {tensor_->rank() * I, tensor_->size() * I});
  }
  // Returns an adapter's input: x, or a copy of it after dropout.
  Tensor dropped(Step& step, const Tensor& x_TI, const Adapter& a) const {
    if (!step.training || dropout_ == 0) return x_TI;
    const Tensor copy = Tensor::empty(step.compute, x_TI.shape(), x_TI.dtype());
    ops::cast(step.compute, x_TI, copy);
    drop(step, copy, a);
    return copy;
  }
  std::vector<Tensor> inputs(Step& step, const Tensor& x_TI) const {
    std::vector<Tensor> all;
    for (const Adapter& a : adapters_) all.push_back(dropped(step, x_TI, a));
    return all;
  }

  // Returns the columns of y, or of its gradient, that an adapter adds to.
  static Tensor own_columns(Stream& stream, const Tensor& y_TO, const Adapter& a) {
    const int64_t columns = a.b->shape[0];
    if (columns == y_TO.dim(1)) return y_TO;
    const Tensor own = Tensor::empty(stream, {y_TO.dim(0), columns}, y_TO.dtype());
    ops::copy_blocks(stream, y_TO, own,
                     {{.from_row = 0,
                       .from_column = a.first,
                       .to_row = 0,
                       .to_column = 0,
                       .rows = y_TO.dim(0),
                       .columns = columns}});
    return own;
  }
  static Tensor own_columns(Step& step, const Tensor& y_TO, const Adapter& a) {
    return own_columns(step.compute, y_TO, a);
  }

  // Adds B u of each adapter to its columns of y.
  void add_outputs(Step& step, const std::vector<Tensor>& u, const Tensor& y_TO) const {
    Tensor parts_TO;  // the outputs of adapters that have some of the columns
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const Adapter& a = adapters_[i];
      const Tensor out =
          ops::matmul(step.compute, "matmul_lora_fwd", u[i], a.b->value, {.b = true}, y_TO.dtype());
      if (out.dim(1) == y_TO.dim(1)) {
        ops::add_into(step.compute, out, y_TO);
        continue;
      }
      if (!parts_TO) {
        parts_TO = Tensor::empty(step.compute, y_TO.shape(), y_TO.dtype());
        ops::fill(step.compute, parts_TO, 0);
      }
      ops::copy_blocks(step.compute, out, parts_TO,
                       {{.from_row = 0,
                         .from_column = 0,
                         .to_row = 0,
                         .to_column = a.first,
                         .rows = y_TO.dim(0),
                         .columns = out.dim(1)}});
    }
    if (parts_TO) ops::add_into(step.compute, parts_TO, y_TO);
  }

  // `x` has the input of each adapter.
  void wgrad_now(Stream& stream, const std::vector<Tensor>& x, const std::vector<Tensor>& u,
                 const LinearOperand& dy_TO) const {
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const Adapter& a = adapters_[i];
      ops::weight_gradient_into(stream, "matmul_lora_wgrad", dy_TO.inner[i], x[i], a.a->grad,
                                !a.a->consume_first_write(), {});
      ops::weight_gradient_into(stream, "matmul_lora_wgrad",
                                own_columns(stream, dy_TO.value.plain, a), u[i], a.b->grad,
                                !a.b->consume_first_write(), {});
    }
  }

  const LinearSide side_;
  const float scale_, dropout_;
  const std::shared_ptr<TensorParallel> tensor_;
  const std::unique_ptr<Linear> base_;
  std::vector<Adapter> adapters_;
};

}  // namespace

std::unique_ptr<Linear> make_linear(ParamStore& params, const LinearSpec& spec, LinearSide side,
                                    const spec::ModelSpec& model,
                                    const std::shared_ptr<TensorParallel>& tensor) {
  if (model.lora) return std::make_unique<LoraLinear>(params, spec, side, *model.lora, tensor);
  return without_adapters(params, spec, side, *tensor);
}

}  // namespace mtrain::model
