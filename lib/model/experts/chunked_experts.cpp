#include "model/experts/chunked_experts.h"

#include <utility>

#include "ops/experts.h"

namespace mtrain::model {

namespace {

// How many chunks are sent before the first is computed.
constexpr int64_t kAhead = 2;

void send(Step& step, ChunkedRows& rows, ChunkedRows* inputs, int64_t c) {
  if (c >= rows.chunks()) return;
  rows.send(step, c);
  if (inputs) inputs->send(step, c);
}

// Returns a chunk's part of the rows of all chunks; absent if these are absent.
Tensor part(const Tensor& all, const ExpertChunk& chunk) {
  return all ? all.rows(chunk.first_row, chunk.first_row + chunk.rows) : Tensor();
}

}  // namespace

void send_first_chunks(Step& step, ChunkedRows& rows, ChunkedRows* inputs) {
  for (int64_t c = 0; c < kAhead; ++c) send(step, rows, inputs, c);
}

ExpertActivations chunked_forward(Step& step, ChunkedRows& rows, const ExpertGemms& gemms,
                                  const Tensor& first_E1) {
  Stream& compute = step.compute;
  const auto& [up, down, keeps_rows, keeps_activation, gate] = gemms;
  const int64_t R = rows.rows();
  ExpertActivations a{.weight_R = Tensor::empty(compute, {R}, DType::f32), .first_E1 = first_E1};
  if (keeps_rows) {
    a.x_RH.value.plain = up.input_rows(compute, R);
    a.up_R2F = up.output_rows(compute, R);
  }
  if (keeps_activation) a.act_RF.value.plain = down.input_rows(compute, R);
  for (int64_t c = 0; c < rows.chunks(); ++c) {
    const ExpertChunk& chunk = rows.chunk(c);
    const ExpertRows arrived{
        .x_RH = keeps_rows ? part(a.x_RH.value.plain, chunk) : up.input_rows(compute, chunk.rows),
        .weight_R = part(a.weight_R, chunk)};
    rows.arrive(step, c, arrived);
    const Tensor up_R2F = up.forward(step, arrived.x_RH, chunk, part(a.up_R2F, chunk));
    const Tensor act_RF = ops::weighted_swiglu(compute, up_R2F, arrived.weight_R,
                                               part(a.act_RF.value.plain, chunk), gate);
    rows.send_back(step, c, {.x_RH = down.forward(step, act_RF, chunk)});
    send(step, rows, nullptr, c + kAhead);
  }
  return a;
}

void chunked_backward(Step& step, ChunkedRows& rows, ChunkedRows* inputs, const ExpertGemms& gemms,
                      ExpertActivations a) {
  Stream& compute = step.compute;
  const auto& [up, down, keeps_rows, keeps_activation, gate] = gemms;
  const int64_t R = rows.rows();
  if (inputs) {
    a.x_RH.value.plain = up.input_rows(compute, R);
    a.up_R2F = up.output_rows(compute, R);
  }
  const Tensor dy_RH = down.output_rows(compute, R);
  // Unless the activation's output is kept, the kernel overwrites its gradient with it.
  const bool recomputes_act = !a.act_RF.value.plain;
  if (recomputes_act) a.act_RF.value.plain = down.input_rows(compute, R);
  for (int64_t c = 0; c < rows.chunks(); ++c) {
    const ExpertChunk& chunk = rows.chunk(c);
    const Tensor up_R2F = part(a.up_R2F, chunk), act_RF = part(a.act_RF.value.plain, chunk),
                 dy = part(dy_RH, chunk);
    if (inputs) {
      const Tensor x_RH = part(a.x_RH.value.plain, chunk);
      inputs->arrive(step, c, {.x_RH = x_RH});
      up.forward(step, x_RH, chunk, up_R2F);
    }
    rows.arrive(step, c, {.x_RH = dy});
    const Tensor dact_RF = down.dgrad(step, dy, chunk, recomputes_act ? act_RF : Tensor());
    // The gradient of gate | up overwrites gate | up.
    const ops::WeightedSwigluGradients d =
        ops::weighted_swiglu_backward(compute, up_R2F, part(a.weight_R, chunk), dact_RF,
                                      recomputes_act ? act_RF : Tensor(), up_R2F, gate);
    rows.send_back(step, c, {.x_RH = up.dgrad(step, up_R2F, chunk), .weight_R = d.dweight_R});
    send(step, rows, inputs, c + kAhead);
  }
  // They hide the return of the last chunks.
  down.wgrad(step, dy_RH, std::move(a.act_RF.value.plain), a.first_E1);
  up.wgrad(step, std::move(a.up_R2F), std::move(a.x_RH.value.plain), a.first_E1);
}

}  // namespace mtrain::model
