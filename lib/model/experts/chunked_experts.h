// The experts of a rank, computed chunk by chunk while the rows of other chunks travel. A chunk has
// full experts. The memory that backward reads has the layout of a computation without chunks: a
// forward in chunks may have a backward without them, and each weight's gradient is one GEMM.
//
// The exchanges have a fixed order on their stream, which all ranks share: to the experts 0 | to 1
// | back 0 | to 2 | back 1 | ... So the exchange of the next chunk and the return of the one before
// run beside the computation of a chunk.
//
// R rows of this rank's experts, H hidden, F an expert's width
#pragma once
#include "model/experts/expert_linear.h"
#include "model/experts/token_dispatcher.h"
#include "ops/activation.h"

namespace mtrain::model {

struct ExpertActivations {
  LinearOperand x_RH;  // without a value if the tokens travel again
  Tensor weight_R, first_E1;
  Tensor up_R2F;         // gate | up; absent if it is computed again
  LinearOperand act_RF;  // without a value if it is computed again
};

// The two linears of a layer's experts, and which of their operands are kept for backward.
struct ExpertGemms {
  const ExpertLinear &up, &down;
  bool keeps_rows, keeps_activation;
  ops::GateFunction gate;
};

// Sends the chunks that travel while the first one is waited for. `inputs` may be null; else its
// chunks travel after those of `rows`.
void send_first_chunks(Step& step, ChunkedRows& rows, ChunkedRows* inputs);

// Computes all chunks. rows.returned() waits for the return of the last one.
ExpertActivations chunked_forward(Step& step, ChunkedRows& rows, const ExpertGemms& gemms,
                                  const Tensor& first_E1);
// `rows` are the gradients of the experts' outputs, and `inputs` the experts' inputs, null if they
// were kept.
void chunked_backward(Step& step, ChunkedRows& rows, ChunkedRows* inputs, const ExpertGemms& gemms,
                      ExpertActivations a);

}  // namespace mtrain::model
