// Facts of GPUs, from the vendor's data sheets. All code that needs such a fact reads it here. A
// GPU without a row is unknown.
#pragma once
#include <array>
#include <string_view>

#include "base/dtype.h"
#include "base/enum_name.h"

namespace mtrain {

enum class Gpu { a100, h100, h200, b200, b300, gb200, gb300, gh200, l40s };
constexpr auto enum_names(Gpu) {
  return std::array{
      EnumName{Gpu::a100, "a100"},   EnumName{Gpu::h100, "h100"},   EnumName{Gpu::h200, "h200"},
      EnumName{Gpu::b200, "b200"},   EnumName{Gpu::b300, "b300"},   EnumName{Gpu::gb200, "gb200"},
      EnumName{Gpu::gb300, "gb300"}, EnumName{Gpu::gh200, "gh200"}, EnumName{Gpu::l40s, "l40s"}};
}

struct GpuFacts {
  Gpu gpu;
  int compute_capability;  // major version
  double memory_gb;        // bytes / 1e9 of the variant that is sold most
  // FLOP/s of dense GEMMs; fp32 without tensor cores, and 0 if there are none in 8 bits.
  double bf16_flops, fp8_flops, fp32_flops;
  double memory_bytes_per_second;
  double link_bytes_per_second;  // in one direction, of NVLink if there is one, else of PCIe
  double flops(DType dtype) const {
    return is_float8(dtype) ? fp8_flops : is_half(dtype) ? bf16_flops : fp32_flops;
  }
};

// From NVIDIA's data sheets "A100 80GB", "H100", "H200", "HGX B200 and B300", "GB200 NVL72", "GB300
// NVL72", "GH200 Grace Hopper Superchip" (96 GB of HBM3) and "L40S". Those list rates with sparsity
// from Hopper on; these are half of them. Rates are those of the SXM modules, except that an L40S
// is a PCIe card. The order is that of Gpu.
inline constexpr std::array kGpuFacts{
    GpuFacts{Gpu::a100, 8, 80, 312e12, 0, 19.5e12, 2.039e12, 300e9},
    GpuFacts{Gpu::h100, 9, 80, 989.4e12, 1978.9e12, 66.9e12, 3.35e12, 450e9},
    GpuFacts{Gpu::h200, 9, 141, 989.4e12, 1978.9e12, 66.9e12, 4.8e12, 450e9},
    GpuFacts{Gpu::b200, 10, 180, 2250e12, 4500e12, 75e12, 7.7e12, 900e9},
    GpuFacts{Gpu::b300, 10, 288, 2250e12, 4500e12, 75e12, 8e12, 900e9},
    GpuFacts{Gpu::gb200, 10, 186, 2500e12, 5000e12, 80e12, 8e12, 900e9},
    GpuFacts{Gpu::gb300, 10, 288, 2500e12, 5000e12, 80e12, 8e12, 900e9},
    GpuFacts{Gpu::gh200, 9, 96, 990e12, 1979e12, 67e12, 4e12, 450e9},
    GpuFacts{Gpu::l40s, 8, 48, 362.05e12, 733e12, 91.6e12, 0.864e12, 32e9}};

constexpr const GpuFacts& facts(Gpu gpu) { return kGpuFacts[size_t(gpu)]; }

// Returns the GPU of a device's name ("NVIDIA H100 80GB HBM3"); null if no row is its.
const GpuFacts* find_gpu(std::string_view device_name);

// Returns the rate of dense GEMMs of the device of that name, in FLOP/s; 0 if it is unknown. The
// rate is unknown for a part of a GPU (MIG), and for PCIe and NVL cards: find_gpu() takes them for
// SXM modules, but their clocks are lower.
double rated_flops(std::string_view device_name, DType dtype);

}  // namespace mtrain
