// Prices launches by data sheets whose figures are round.
#include <catch2/catch.hpp>

#include "predict/launch_class.h"
#include "predict/sheet_costs.h"

namespace predict_sheet_costs_test {

using namespace mtrain;
using namespace mtrain::predict;
using device::StreamKind;

namespace {

plan::Cluster cluster() {
  plan::Cluster c;
  c.bf16_flops = 1000e12;
  c.fp8_flops = 2000e12;
  c.fp32_flops = 100e12;
  c.memory_bytes_per_s = 4e12;
  c.domain_gpus = 8;
  c.nodes = 4;
  c.domain = {.bytes_per_s = 400e9, .latency_s = 2e-6};
  c.network = {.bytes_per_s = 50e9, .latency_s = 5e-6};
  return c;
}

const StackConstants kHalf{.gemm = 0.5,
                           .gemm8 = 0.5,
                           .attention = 0.5,
                           .memory = 0.5,
                           .conversion = 0.25,
                           .tp_link = 0.5,
                           .dp_link = 0.5};

double seconds(const LaunchWork& launch) {
  return SheetCosts(cluster(), kHalf).cost(launch, nullptr).seconds;
}
double seconds(const LaunchWork& launch, const std::vector<int64_t>& ranks) {
  const plan::GroupLink link = plan::link_of(cluster(), ranks);
  return SheetCosts(cluster(), kHalf).cost(launch, &link).seconds;
}

LaunchWork sent(const char* name, StreamKind stream, double bytes) {
  LaunchWork w{.stream = stream, .wire_bytes = bytes};
  w.name = name;
  return w;
}

}  // namespace

TEST_CASE("the class of a launch follows from its name and its operands") {
  const auto of = [](const char* name, DType dtype, double flops) {
    return class_of({.name = name, .dtype = dtype, .flops = flops});
  };
  CHECK(of("matmul_qkv_fwd", DType::bf16, 1) == LaunchClass::gemm);
  CHECK(of("matmul_qkv_fwd", DType::f8e4m3, 1) == LaunchClass::gemm8);
  CHECK(of("experts_up_wgrad", DType::f8e5m2, 1) == LaunchClass::gemm8);
  CHECK(of("expert_rows", DType::i32, 0) == LaunchClass::memory);
  CHECK(of("attention_block_bwd", DType::bf16, 1) == LaunchClass::attention);
  CHECK(of("attention_merge", DType::bf16, 0) == LaunchClass::memory);
  CHECK(of("matmul_muon_gram", DType::bf16, 1) == LaunchClass::optimizer);
  CHECK(of("adamw", DType::f32, 0) == LaunchClass::optimizer);
  CHECK(of("quantize", DType::bf16, 0) == LaunchClass::conversion);
  CHECK(of("norm_fwd", DType::bf16, 0) == LaunchClass::memory);
  CHECK(class_of({.name = "all_reduce", .stream = StreamKind::tp}) == LaunchClass::communication);
}

TEST_CASE("a GEMM takes the longer one of its arithmetic and its memory") {
  CHECK(seconds({.name = "matmul_fc1_fwd", .dtype = DType::bf16, .flops = 1e12, .read = 1e9}) ==
        Approx(2e-3));
  CHECK(seconds({.name = "matmul_fc1_fwd", .dtype = DType::bf16, .flops = 1e9, .read = 4e9}) ==
        Approx(2e-3));
  CHECK(seconds({.name = "matmul_fc1_fwd", .dtype = DType::f8e4m3, .flops = 1e12}) == Approx(1e-3));
  CHECK(seconds({.name = "matmul_fc1_fwd", .dtype = DType::f32, .flops = 1e12}) == Approx(2e-2));
}

TEST_CASE("a part of a GEMM's memory traffic may add to its arithmetic") {
  StackConstants c = kHalf;
  c.traffic = 0.25;
  const LaunchWork gemm{.name = "matmul_fc1_fwd", .dtype = DType::bf16, .flops = 1e12, .read = 4e9};
  CHECK(SheetCosts(cluster(), c).cost(gemm, nullptr).seconds == Approx(2.5e-3));
}

TEST_CASE("GEMMs of experts have an efficiency of their own") {
  StackConstants c = kHalf;
  c.experts = 0.5;
  const LaunchWork gemm{.name = "experts_up_fwd", .dtype = DType::bf16, .flops = 1e12};
  CHECK(SheetCosts(cluster(), c).cost(gemm, nullptr).seconds == Approx(4e-3));
}

TEST_CASE("8-bit GEMMs of a device that has none take the time of 16-bit ones") {
  plan::Cluster c = cluster();
  c.fp8_flops = 0;
  CHECK(SheetCosts(c, kHalf)
            .cost({.name = "matmul_fc1_fwd", .dtype = DType::f8e4m3, .flops = 1e12}, nullptr)
            .seconds == Approx(2e-3));
}

TEST_CASE("passes over memory take their bytes") {
  CHECK(seconds({.name = "norm_fwd", .dtype = DType::bf16, .read = 3e9, .written = 1e9}) ==
        Approx(2e-3));
  CHECK(seconds({.name = "quantize", .dtype = DType::bf16, .read = 3e9, .written = 1e9}) ==
        Approx(4e-3));
}

TEST_CASE("a group in a domain uses the domain's links") {
  CHECK(seconds(sent("all_reduce", StreamKind::tp, 2e8), {0, 1, 2, 3}) == Approx(1e-3 + 2 * 2e-6));
}

TEST_CASE("ranks of a domain share their network cards for collectives") {
  // Two ranks in each of two domains.
  CHECK(seconds(sent("reduce_scatter", StreamKind::dp_grad, 5e7), {0, 4, 8, 12}) ==
        Approx(1e-3 + 2 * 5e-6));
  // A message has one card.
  CHECK(seconds(sent("send", StreamKind::pp_send, 5e7), {0, 8}) == Approx(2e-3 + 5e-6));
  // Eight cards have the rate of the domain's links.
  std::vector<int64_t> all(32);
  for (size_t i = 0; i < all.size(); ++i) all[i] = int64_t(i);
  CHECK(seconds(sent("all_gather", StreamKind::dp_param, 2e8), all) == Approx(1e-3 + 5 * 5e-6));
}

TEST_CASE("what an exchange sends within its domain does not use the network") {
  // Of three other ranks, two are in another domain.
  CHECK(seconds(sent("all_to_all", StreamKind::ep, 7.5e7), {0, 1, 8, 9}) ==
        Approx(2e-3 + 2 * 5e-6));
}

}  // namespace predict_sheet_costs_test
