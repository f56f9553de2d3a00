#include <catch2/catch.hpp>

#include "base/gpu_facts.h"

namespace base_gpu_facts_test {

using namespace mtrain;

TEST_CASE("each GPU has a row of facts, and its own name finds it") {
  CHECK(kGpuFacts.size() == enum_names(Gpu{}).size());
  for (const auto& [gpu, name] : enum_names(Gpu{})) {
    INFO(name);
    CHECK(facts(gpu).gpu == gpu);
    REQUIRE(find_gpu(name));
    CHECK(find_gpu(name)->gpu == gpu);
    // A tensor core does twice as many operations in 8 bits, and none that a GPU lacks.
    const GpuFacts& f = facts(gpu);
    CHECK((f.fp8_flops == 0 || f.fp8_flops / f.bf16_flops == Approx(2).margin(0.03)));
    CHECK((f.memory_bytes_per_second > 0.5e12 && f.memory_bytes_per_second < 10e12));
  }
}

TEST_CASE("a device is known by its name, and what has no row is unknown") {
  const auto gpu = [](const char* name) { return find_gpu(name) ? find_gpu(name)->gpu : Gpu{99}; };
  CHECK(gpu("NVIDIA A100-SXM4-80GB") == Gpu::a100);
  CHECK(gpu("NVIDIA H100 80GB HBM3") == Gpu::h100);
  CHECK(gpu("NVIDIA H200") == Gpu::h200);
  CHECK(gpu("NVIDIA B200") == Gpu::b200);
  CHECK(gpu("NVIDIA GB200") == Gpu::gb200);
  CHECK(gpu("NVIDIA GH200 480GB") == Gpu::gh200);
  CHECK(gpu("NVIDIA L40S") == Gpu::l40s);
  for (const char* name :
       {"NVIDIA H20", "NVIDIA A1000", "NVIDIA A100X", "NVIDIA L40", "NVIDIA L4", ""}) {
    INFO(name);
    CHECK_FALSE(find_gpu(name));
    CHECK(rated_flops(name, DType::bf16) == 0);
  }
}

TEST_CASE("only a whole module has a rated speed") {
  CHECK(rated_flops("NVIDIA H200", DType::bf16) == 989.4e12);
  CHECK(rated_flops("NVIDIA H200", DType::f16) == 989.4e12);
  CHECK(rated_flops("NVIDIA H200", DType::f32) == 66.9e12);
  CHECK(rated_flops("NVIDIA B200", DType::bf16) == 2250e12);
  CHECK(rated_flops("NVIDIA B200", DType::f8e4m3) == 4500e12);
  CHECK(rated_flops("NVIDIA GH200 480GB", DType::bf16) == 990e12);
  CHECK(rated_flops("NVIDIA L40S", DType::bf16) == 362.05e12);
  CHECK(rated_flops("NVIDIA A100-SXM4-80GB", DType::f8e4m3) == 0);
  for (const char* name :
       {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"})
    CHECK(rated_flops(name, DType::bf16) == 0);
}

}  // namespace base_gpu_facts_test
