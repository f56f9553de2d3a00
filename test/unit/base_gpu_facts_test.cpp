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

TEST_CASE("facts follow from the sheets of the systems, whose GPUs they are") {
  // Memory of all GPUs of a system, and FP8 with sparsity: HGX B200 and B300, GB200 and GB300
  // NVL72.
  struct System {
    Gpu gpu;
    int gpus;
    double memory_tb, sparse_fp8_pflops;
  };
  for (const System& s :
       {System{.gpu = Gpu::b200, .gpus = 8, .memory_tb = 1.44, .sparse_fp8_pflops = 72},
        System{.gpu = Gpu::b300, .gpus = 8, .memory_tb = 2.16, .sparse_fp8_pflops = 72},
        System{.gpu = Gpu::gb200, .gpus = 72, .memory_tb = 13.4, .sparse_fp8_pflops = 720},
        System{.gpu = Gpu::gb300, .gpus = 72, .memory_tb = 20.1, .sparse_fp8_pflops = 720}}) {
    const GpuFacts& f = facts(s.gpu);
    INFO(enum_name(s.gpu));
    CHECK(f.domain_gpus == s.gpus);
    CHECK(s.gpus * f.memory_gb == Approx(s.memory_tb * 1e3).epsilon(0.01));
    CHECK(2 * s.gpus * f.fp8_flops == Approx(s.sparse_fp8_pflops * 1e15).epsilon(0.01));
  }
  for (const GpuFacts& f : kGpuFacts) {
    INFO(enum_name(f.gpu));
    // NVLink is faster than a network card; a GPU by itself has PCIe, or NVLink to its CPU.
    CHECK(f.link_bytes_per_second > f.network_bytes_per_second);
    CHECK(f.domain_gpus >= 1);
    CHECK(f.planned_memory() < f.memory_gib() * double(1 << 30));
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
