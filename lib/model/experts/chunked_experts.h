// The experts of a rank, computed chunk by chunk while the rows of other chunks travel. A chunk has
// whole experts, and what backward reads lies as if all rows had been computed at once: a forward
// in chunks may have a backward without them, and each weight's gradient is one product as ever.
//
// On the stream of their communication exchanges have a fixed order, which all ranks share: to the
// experts 0 | to 1 | back 0 | to 2 | back 1 | ... So the exchange of the next chunk and the return
// of the one before run beside the computation of a chunk.
//
// R rows of this rank's experts, H hidden, F an expert's width
#pragma once
#include "model/experts/expert_linear.h"
#include "model/experts/token_dispatcher.h"

namespace mtrain::model {

struct ExpertActivations {
  ExpertLinear::Rows x_RH;  // absent if the tokens travel again
  Tensor weight_R, first_E1;
  Tensor up_R2F;              // gate | up; absent if it is computed again
  ExpertLinear::Rows act_RF;  // absent if it is computed again
  // What x_RH and act_RF are quantized under when they are computed again.
  ops::Float8Scale x_scale, act_scale;
};

// The two products of a layer's experts, and what is kept of them for backward.
struct ExpertProducts {
  const ExpertLinear &up, &down;
  bool keeps_rows, keeps_activation;
  ops::GateFunction gate;
};

// Sends the chunks that are to be on their way when the first one is waited for. `again` may be
// null; else its chunks travel behind those of `rows`.
void send_first_chunks(Step& step, ChunkedRows& rows, ChunkedRows* again);

// Computes all chunks, and leaves the last one's way back to rows.returned().
ExpertActivations chunked_forward(Step& step, ChunkedRows& rows, const ExpertProducts& products,
                                  const Tensor& first_E1);
// `rows` are the gradients of the experts' outputs, and `again` the experts' inputs, null if they
// were kept.
void chunked_backward(Step& step, ChunkedRows& rows, ChunkedRows* again,
                      const ExpertProducts& products, ExpertActivations a);

}  // namespace mtrain::model
