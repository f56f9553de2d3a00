// A linear of a layer's experts, y[r] = W[e] x[r] for the rows r of each expert e, and its
// gradients: in the compute type, or in 8 bits. Nothing here communicates.
//
// Rows are quantized once for all products that read them, under one scale for all rows of the
// rank, and the weights of the rank's experts under one scale, too. Results are in the compute type
// in any case, and gradients of weights are fp32.
//
// R rows of the rank's experts, E experts, I and O extents of an expert's matrix
#pragma once
#include <memory>
#include <string>

#include "model/experts/token_dispatcher.h"
#include "model/fp8.h"
#include "model/param/parameters.h"
#include "model/step.h"

namespace mtrain::model {

class ExpertLinear {
 public:
  // Rows as the products read them: in the compute type, without an inverse; or in 8 bits.
  using Rows = ops::Float8Tensor;
  // The names of the products in profiles and traces.
  struct Names {
    const char *forward, *dgrad, *wgrad;
  };

  // `weight` is (E, O, I). `name` is that of its delayed scales. Without `fp8` the products are in
  // the compute type.
  ExpertLinear(Parameter& weight, const std::string& name, const Names& names,
               std::shared_ptr<Float8Scaling> fp8);

  // Sets `scale` if it is absent; otherwise x is an input that has been computed again.
  Rows input(Step& step, const Tensor& x_RI, ops::Float8Scale& scale) const;
  Rows gradient(Step& step, const Tensor& dy_RO) const;

  // Expert e has the rows [first[e], first[e + 1]). If there may be unused_rows behind the last
  // one's, the results are 0 there.
  Tensor forward(Step& step, const Rows& x_RI, const Tensor& first_E1, bool unused_rows) const;
  Tensor dgrad(Step& step, const Rows& dy_RO, const Tensor& first_E1, bool unused_rows) const;
  // The same for the rows of a chunk's experts alone, which have no unused rows between them. The
  // products must not be in 8 bits. `into` (optional) is the memory of the result.
  Tensor forward(Step& step, const Tensor& x_RI, const ExpertChunk& chunk,
                 const Tensor& into = {}) const;
  Tensor dgrad(Step& step, const Tensor& dy_RO, const ExpertChunk& chunk,
               const Tensor& into = {}) const;
  // Make memory for rows of x and of y, in the compute type.
  Tensor input_rows(Stream& stream, int64_t R) const {
    return Tensor::empty(stream, {R, weight_->value.dim(2)}, weight_->value.dtype());
  }
  Tensor output_rows(Stream& stream, int64_t R) const {
    return Tensor::empty(stream, {R, weight_->value.dim(1)}, weight_->value.dtype());
  }
  // Adds the weight's gradient, now or when the queue runs.
  void wgrad(Step& step, Rows dy_RO, Rows x_RI, const Tensor& first_E1) const;

 private:
  Tensor multiply(Stream& stream, const char* name, const Rows& a, bool trans_b, bool record,
                  const Tensor& first_E1, bool unused_rows) const;
  Tensor multiply(Stream& stream, const char* name, const Tensor& a, bool trans_b,
                  const ExpertChunk& chunk, const Tensor& into) const;
  void wgrad_now(Stream& stream, const Rows& dy_RO, const Rows& x_RI, const Tensor& first_E1) const;

  Parameter* const weight_;
  const Names names_;
  const std::shared_ptr<Float8Scaling> fp8_;  // null: in the compute type
  const int64_t number_;                      // this linear's number in fp8_
};

}  // namespace mtrain::model
