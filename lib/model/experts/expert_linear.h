// A linear of a layer's experts, y[r] = W[e] x[r] for the rows r of each expert e, and its
// gradients: in the compute type, or quantized. Nothing here communicates.
//
// Rows are quantized once for all GEMMs that read them, under one scale for all rows of the rank.
// The weights of the rank's experts have one scale, too. Results are always in the compute type,
// and gradients of weights are fp32.
//
// R rows of the rank's experts, E experts, I and O extents of an expert's matrix
#pragma once
#include <memory>
#include <string>

#include "model/experts/token_dispatcher.h"
#include "model/param/parameters.h"
#include "model/quantizer.h"
#include "model/step.h"
#include "ops/operand.h"

namespace mtrain::model {

// What training adds to each frozen matrix: scale B A, with A (E, dim, I) and B (E, O, dim). If
// tensor parallelism divides O, a rank's gradient of A is a part of a sum over its ranks; if it
// divides I, that of B is.
struct ExpertAdapter {
  Parameter *a = nullptr, *b = nullptr;  // null without an adapter
  float scale = 1;
};

class ExpertLinear {
 public:
  // The names of the GEMMs in profiles and traces.
  struct Names {
    const char *forward, *dgrad, *wgrad;
  };

  // `weight` is (E, O, I). `name` is that of its delayed scales. Without a quantizer the GEMMs are
  // in the compute type.
  ExpertLinear(Parameter& weight, const std::string& name, const Names& names,
               std::shared_ptr<Quantizer> quantizer, const ExpertAdapter& adapter = {});

  // Return the rows as the GEMMs read them. Quantized ones replace the plain ones of x, also if
  // these have been computed again.
  ops::Operand input(Step& step, LinearOperand& x_RI) const;
  ops::Operand gradient(Step& step, const Tensor& dy_RO) const;

  // Expert e has the rows [first[e], first[e + 1]). If there may be unused_rows after the last
  // one's, the results are 0 there.
  Tensor forward(Step& step, const ops::Operand& x_RI, const Tensor& first_E1,
                 bool unused_rows) const;
  Tensor dgrad(Step& step, const ops::Operand& dy_RO, const Tensor& first_E1,
               bool unused_rows) const;
  // The same for the rows of one chunk's experts. A chunk has no unused rows between its experts.
  // The GEMMs must not be quantized. `into` (optional) is the memory of the result.
  Tensor forward(Step& step, const Tensor& x_RI, const ExpertChunk& chunk,
                 const Tensor& into = {}) const;
  Tensor dgrad(Step& step, const Tensor& dy_RO, const ExpertChunk& chunk,
               const Tensor& into = {}) const;
  // Allocate rows of x and of y, in the compute type.
  Tensor input_rows(Stream& stream, int64_t R) const {
    return Tensor::empty(stream, {R, weight_->shape[2]}, weight_->compute);
  }
  Tensor output_rows(Stream& stream, int64_t R) const {
    return Tensor::empty(stream, {R, weight_->shape[1]}, weight_->compute);
  }
  // Adds the gradient of the weight, or of its adapter, now or when the queue runs.
  void wgrad(Step& step, ops::Operand dy_RO, ops::Operand x_RI, const Tensor& first_E1) const;

 private:
  Tensor multiply(Stream& stream, const char* name, const ops::Operand& a, bool trans_b,
                  bool record, const Tensor& first_E1, bool unused_rows) const;
  Tensor multiply(Stream& stream, const char* name, const Tensor& a, bool trans_b,
                  const ExpertChunk& chunk, const Tensor& into) const;
  // Returns scale A x, or scale B^T dy, for the rows of experts whose A or B `factor` has.
  Tensor inner(Stream& stream, const char* name, const Tensor& rows, const Tensor& factor,
               bool trans, const Tensor& first_E1, bool unused_rows) const;
  // Adds the adapter's part of y = forward(x), or of dx = dgrad(dy), for experts from the first on.
  void add_adapter(Stream& stream, bool backward, const Tensor& rows, const Tensor& first_E1,
                   bool unused_rows, int64_t first_expert, const Tensor& result) const;

  Parameter* const weight_;
  const Names names_;
  const LinearQuantizer quantizer_;
  const ExpertAdapter adapter_;
};

}  // namespace mtrain::model
