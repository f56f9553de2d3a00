#include "parallel/tensor/replicated_grads.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace mtrain::parallel {

namespace {

// Returns the gradients that this rank owns and that are partial sums. The key is the number of
// ranks that hold the same rows of the parameter.
std::map<int, std::vector<Tensor>> partial_grads(model::ParamStore& params) {
  std::map<int, std::vector<Tensor>> grads;
  for (const model::Parameter* p : params.params()) {
    if (!p->shard.partial_grad || p->frozen) continue;
    const auto parts = owned_parts(*p);
    for (const model::RowShard& r : p->rows_here()) {
      if (r.replicas == 1) continue;
      const int64_t begin = r.here * p->columns(), end = begin + r.count * p->columns();
      for (const model::OwnedPart& part : parts) {
        const int64_t from = std::max(begin, part.in_param),
                      to = std::min(end, part.in_param + part.count);
        if (from < to)
          grads[r.replicas].push_back(
              part.range->grad.flat(part.in_range + from - part.in_param, {to - from}));
      }
    }
  }
  return grads;
}

}  // namespace

void sum_replicated_grads(model::ParamStore& params, const TensorComm& comm) {
  Stream& compute = comm.compute();
  for (const auto& [replicas, grads] : partial_grads(params)) {
    int64_t count = 0;
    for (const Tensor& g : grads) count += g.count();
    const Tensor together =
        Tensor::empty(compute, {count}, DType::f32, device::MemoryCategory::buffers);
    const auto each = [&](const auto& copy) {
      int64_t first = 0;
      for (const Tensor& g : grads) {
        copy(g, together.flat(first, {g.count()}));
        first += g.count();
      }
    };
    each([&](const Tensor& grad, const Tensor& part) { ops::cast(compute, grad, part); });
    comm.after_compute();
    comm.groups().replicas.at(replicas).all_reduce(together, comm::Reduce::sum, comm.stream());
    comm.before_compute();
    each([&](const Tensor& grad, const Tensor& part) { ops::cast(compute, part, grad); });
  }
}

}  // namespace mtrain::parallel
