// Tests that an operation refuses a dtype that does not fit, by the tensor's name, before it is
// enqueued.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "device/device.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/attention_block.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/permute.h"
#include "ops/rope.h"

namespace ops_checks_test {

using namespace mtrain;
using Catch::Contains;

TEST_CASE("operations refuse dtypes that do not fit, and name the tensor") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const auto make = [&](Shape shape, DType dtype) { return Tensor::empty(stream, shape, dtype); };
  const DType f32 = DType::f32, bf16 = DType::bf16, i32 = DType::i32, f64 = DType::f64;
  const int64_t T = 4, H = 8, V = 16;
  const Tensor x = make({T, H}, f32), half = make({T, H}, bf16), ids = make({T, H}, i32);
  const Tensor w = make({H}, f32), half_w = make({H}, bf16), label_T = make({T}, i32);

  CHECK_THROWS_WITH(ops::add(stream, x, half), Contains("add: b is bf16, expected fp32"));
  CHECK_THROWS_WITH(ops::add(stream, ids, ids),
                    Contains("add: a is int32, expected fp32, bf16 or fp16"));
  CHECK_THROWS_WITH(ops::matmul(stream, "m", x, ids, {.b = true}, f32),
                    Contains("matmul: b is int32"));
  CHECK_THROWS_WITH(ops::matmul(stream, "m", x, x, {.b = true}, f64), Contains("matmul: c is"));
  CHECK_THROWS_WITH(ops::matmul(stream, "m", x, make({H, H}, f32), {}, f32, make({H}, i32)),
                    Contains("bias_N is int32"));

  const ops::NormWeights rms{NormKind::rms, w, {}, 1e-5f};
  const ops::NormWeights half_rms{NormKind::rms, half_w, {}, 1e-5f};
  CHECK_THROWS_WITH(ops::norm(stream, half_rms, x), Contains("norm: w.w_H is bf16, expected fp32"));
  CHECK_THROWS_WITH(ops::norm(stream, rms, x, half), Contains("norm: residual_TH is bf16"));
  const ops::NormResult f{x, x, make({T}, f32), {}};
  CHECK_THROWS_WITH(ops::norm_backward(stream, rms, f, half, {}, w, {}),
                    Contains("norm_backward: f.sum_TH is fp32, expected bf16"));
  CHECK_THROWS_WITH(ops::norm_backward(stream, rms, f, x, {}, half_w, {}),
                    Contains("norm_backward: dw_H is bf16, expected fp32"));
  const ops::HeadRange heads{0, 1, H};
  CHECK_THROWS_WITH(ops::head_norm(stream, rms, x, half, heads),
                    Contains("head_norm: out_TN is bf16"));

  CHECK_THROWS_WITH(ops::swiglu(stream, ids), Contains("swiglu: gate_up_T2F is int32"));
  CHECK_THROWS_WITH(ops::soft_cap(stream, ids, 2), Contains("soft_cap: x is int32"));
  CHECK_THROWS_WITH(ops::swiglu_backward(stream, x, make({T, H / 2}, bf16), {}),
                    Contains("swiglu_backward: dy_TF is bf16"));
  CHECK_THROWS_WITH(ops::gelu(stream, ids, true), Contains("gelu: x is int32"));
  CHECK_THROWS_WITH(ops::gelu_backward(stream, x, x, half, true),
                    Contains("gelu_backward: y is bf16"));

  const ops::AttentionDims dims{.B = 1, .S = T, .A = 1, .G = 1, .D = H, .scale = 1};
  const Tensor qkv = make({T, 3 * H}, f32);
  CHECK_THROWS_WITH(ops::attention(stream, dims, qkv, make({2}, DType::i64)),
                    Contains("attention: cu_seqlens is"));
  const ops::AttentionResult forward{x, make({1, 1, T}, f32)};
  CHECK_THROWS_WITH(ops::attention_backward(stream, dims, qkv, {}, forward, half),
                    Contains("attention_backward: dout_TN is bf16"));

  const Tensor table = make({T, H / 2}, f32);
  CHECK_THROWS_WITH(ops::rope(stream, x, table, make({T, H / 2}, bf16), label_T, 1, H, false),
                    Contains("rope: sin_PR is bf16"));
  CHECK_THROWS_WITH(ops::rope(stream, x, table, table, label_T, 2, H / 2, false),
                    Contains("pairs of lanes in heads of"));
  CHECK_THROWS_WITH(ops::rope(stream, x, table, table, make({T}, f32), 1, H, false),
                    Contains("rope: position_T is fp32"));
  CHECK_THROWS_WITH(
      ops::cross_entropy(stream, make({T, V}, f32), make({T}, f32), make({T}, f32), V, 1, true),
      Contains("cross_entropy: label_T is fp32"));
  CHECK_THROWS_WITH(
      ops::cross_entropy(stream, make({T, V}, f32), label_T, make({T}, bf16), V, 1, true),
      Contains("cross_entropy: loss_T is bf16"));
  CHECK_THROWS_WITH(ops::embedding_backward(stream, make({T}, f32), x, make({V, H}, f32)),
                    Contains("embedding_backward: id_T is fp32"));
  const Tensor rows = make({2 * T, H}, f32), row_TK = make({T, 2}, DType::i32);
  CHECK_THROWS_WITH(ops::expert_rows(stream, make({T, 2}, f32), 3),
                    Contains("expert_rows: expert_TK is fp32"));
  CHECK_THROWS_WITH(ops::permute(stream, x, make({2 * T}, DType::i32), 2, make({T, 3}, f32)),
                    Contains("permute: weight_TK is (4, 3), expected (4, 2)"));
  CHECK_THROWS_WITH(ops::unpermute(stream, rows, make({T, 2}, f32)),
                    Contains("unpermute: row_TK is fp32"));
  CHECK_THROWS_WITH(ops::unpermute_weight_grad(stream, half, rows, row_TK),
                    Contains("unpermute_weight_grad: dout_TH is bf16"));
  CHECK_NOTHROW(device->synchronize());  // nothing wrong was enqueued
}

TEST_CASE("tokens go to their experts' rows, and return as the sum of the chosen rows") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const Tensor expert_TK = Tensor::from_host<int32_t>(stream, {3, 2}, {1, 0, 2, 1, 0, 2}),
               x = Tensor::empty(stream, {3, 4}, DType::f32);
  ops::fill(stream, x, 1.5f);
  const ops::ExpertRows rows = ops::expert_rows(stream, expert_TK, 3);
  const Tensor there = ops::permute(stream, x, rows.choice_R, 2);
  const Tensor back = ops::unpermute(stream, there, rows.row_TK);
  const Tensor dots = ops::unpermute_weight_grad(stream, x, there, rows.row_TK);
  CHECK(rows.count_E.to_host<int32_t>(stream) == std::vector<int32_t>{2, 2, 2});
  CHECK(rows.row_TK.to_host<int32_t>(stream) == std::vector<int32_t>{2, 0, 4, 3, 1, 5});
  CHECK(rows.first_E1.to_host<int32_t>(stream) == std::vector<int32_t>{0, 2, 4, 6});
  CHECK(back.to_host<float>(stream) == std::vector<float>(12, 3.0f));
  CHECK(dots.to_host<float>(stream) == std::vector<float>(6, 9.0f));
}

TEST_CASE("operations on blocks and shards refuse tensors that do not fit, by name") {
  const auto device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  const auto make = [&](Shape shape, DType dtype) { return Tensor::empty(stream, shape, dtype); };
  const DType f32 = DType::f32, bf16 = DType::bf16;
  const int64_t T = 4, H = 8, V = 16;
  const Tensor x = make({T, H}, f32), half = make({T, H}, bf16), label_T = make({T}, DType::i32);
  const ops::AttentionResult forward{x, make({1, 1, T}, f32)};

  const ops::AttentionBlock block{
      .B = 1, .q = {0, T}, .kv = {0, T}, .A = 1, .G = 1, .D = H, .scale = 1};
  const auto attend = [&](const ops::AttentionBlock& b, const ops::Heads& q, const ops::Heads& v,
                          const ops::AttentionResult& into) {
    ops::attention_block(stream, b, q, {x}, v, into);
  };
  CHECK_THROWS_WITH(attend(block, {x}, {half}, forward), Contains("attention_block: q is fp32"));
  CHECK_THROWS_WITH(attend(block, {x, 1}, {x}, forward), Contains("q is (4, 8), expected 1 heads"));
  CHECK_THROWS_WITH(attend(block, {x}, {x}, {half, forward.lse}),
                    Contains("attention_block: out is bf16"));
  CHECK_THROWS_WITH(attend(block, {x}, {x}, {x, make({1, 1, 3}, f32)}), Contains("lse is"));
  ops::AttentionBlock beyond = block;
  beyond.kv.end = T + 1;
  CHECK_THROWS_WITH(attend(beyond, {x}, {x}, forward), Contains("k is (4, 8), expected 1 heads"));
  beyond.kv = {3, 2};
  CHECK_THROWS_WITH(attend(beyond, {x}, {x}, forward), Contains("keys [3, 2)"));
  ops::AttentionBlock packed = block;
  packed.q_documents = {label_T, label_T};
  CHECK_THROWS_WITH(attend(packed, {x}, {x}, forward), Contains("4 and 0 documents"));
  packed.kv_documents = {make({T}, f32), label_T};
  CHECK_THROWS_WITH(attend(packed, {x}, {x}, forward), Contains("4 documents, fp32"));
  CHECK_THROWS_WITH(ops::attention_merge(stream, forward, {half, forward.lse}, 0),
                    Contains("attention_merge: into.out_TN is bf16"));
  CHECK_THROWS_WITH(ops::attention_merge(stream, forward, forward, 1),
                    Contains("4 positions from 1"));
  CHECK_THROWS_WITH(ops::attention_block_backward(stream, block, {x}, {x}, {x}, forward, half,
                                                  {{x}, {x}, {x}, false, false}),
                    Contains("attention_block_backward: dout_TN is bf16"));
  CHECK_THROWS_WITH(ops::attention_block_backward(stream, block, {x}, {x}, {x}, forward, x,
                                                  {{x}, {half}, {x}, false, false}),
                    Contains("attention_block_backward: dk is bf16"));

  const Tensor logits = make({T, V}, f32), sums = make({2, T, 3}, f32), loss_T = make({T}, f32);
  CHECK_THROWS_WITH(ops::cross_entropy_sums(stream, logits, loss_T, {0, V, V}),
                    Contains("cross_entropy_sums: label_T is fp32"));
  CHECK_THROWS_WITH(ops::cross_entropy_sums(stream, logits, label_T, {0, V + 1, V + 1}),
                    Contains("vocabulary 17 in rows of 16"));
  CHECK_THROWS_WITH(ops::cross_entropy_from_sums(stream, logits, label_T, make({2, T, 4}, f32),
                                                 loss_T, {0, V, V}, 1, true),
                    Contains("sums_PT3 is (2, 4, 4)"));
  CHECK_THROWS_WITH(ops::cross_entropy_from_sums(stream, logits, label_T, sums, make({T}, bf16),
                                                 {0, V, V}, 1, true),
                    Contains("cross_entropy_from_sums: loss_T is bf16"));
  CHECK_THROWS_WITH(ops::copy_blocks(stream, x, half, {}), Contains("copy_blocks: to_TN is bf16"));
  CHECK_NOTHROW(device->synchronize());  // nothing wrong was enqueued
}

}  // namespace ops_checks_test
