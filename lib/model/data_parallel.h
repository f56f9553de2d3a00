// What spreads samples over ranks implements: when gradients are reduced, and what the ranks agree
// on.
#pragma once
#include "model/parameters.h"

namespace mtrain {

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  virtual int rank() const = 0;  // which samples this rank reads
  virtual int size() const = 0;

  // Before the backward of a micro-batch; gradients are whole with the step's last one.
  virtual void begin_backward(bool last_micro_batch) = 0;
  // The last backward has enqueued everything that adds to this gradient, on the compute stream.
  virtual void grad_ready(Parameter& p) = 0;
  // From here on `compute` sees gradients that are summed over all ranks. The sum is of gradients
  // of a loss that is already divided by the tokens of the global batch.
  virtual void finish_grads() = 0;

  // Sums over all ranks, of a few numbers; `on_host` blocks the host until they are there.
  virtual void sum(const Tensor& values) = 0;
  virtual std::vector<int64_t> sum_on_host(std::vector<int64_t> values) = 0;
};

}  // namespace mtrain
