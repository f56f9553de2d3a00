// Facts of GPUs, from the vendor's data sheets. All code that needs such a fact reads it here, also
// the scripts that compare measurements with them. A GPU without a row is unknown.
#pragma once
#include <array>
#include <string_view>

#include "base/dtype.h"
#include "base/gpu.h"

namespace mtrain {

struct GpuFacts {
  Gpu gpu;
  int compute_capability;  // major version
  // The gigabytes in the data sheet, of the variant that is sold most. A module has about as many
  // GiB: an H100 of 80 GB reports 79.6. See planned_memory() and memory_gib().
  double memory_gb;
  // FLOP/s of dense GEMMs; fp32 without tensor cores, and 0 if there are none in 8 bits.
  double bf16_flops, fp8_flops, fp32_flops;
  double memory_bytes_per_second;
  double link_bytes_per_second;  // in one direction, of NVLink if there is one, else of PCIe
  int domain_gpus;               // GPUs that NVLink connects, in the vendor's usual system
  // In one direction, of one GPU's part of the network in the vendor's usual system.
  double network_bytes_per_second;

  double flops(DType dtype) const {
    return is_float8(dtype) ? fp8_flops : is_half(dtype) ? bf16_flops : fp32_flops;
  }
  // The bytes that a dry run counts. It takes a GB as 1e9 bytes, and so leaves 7 % to drivers.
  double planned_memory() const { return memory_gb * 1e9; }
  double memory_gib() const { return memory_gb; }
};

// From NVIDIA's data sheets "A100 80GB", "H100", "H200", "HGX B200 and B300", "GB200 NVL72", "GB300
// NVL72", "GH200 Grace Hopper Superchip" (96 GB of HBM3) and "L40S". Those list rates with sparsity
// from Hopper on; these are half of them. Rates are those of the SXM modules, except that an L40S
// is a PCIe card. A sheet of a system has the sum of its GPUs: 20 TB of a GB300 NVL72 are 279 GB
// each. Networks are those of DGX A100, H100, H200, B200 and B300, with a network card for each
// GPU, and of GB200 and GB300 NVL72; 200 Gbit/s are usual beside an L40S. The order is that of Gpu.
inline constexpr std::array kGpuFacts{
    GpuFacts{Gpu::a100, 8, 80, 312e12, 0, 19.5e12, 2.039e12, 300e9, 8, 25e9},
    GpuFacts{Gpu::h100, 9, 80, 989.4e12, 1978.9e12, 66.9e12, 3.35e12, 450e9, 8, 50e9},
    GpuFacts{Gpu::h200, 9, 141, 989.4e12, 1978.9e12, 66.9e12, 4.8e12, 450e9, 8, 50e9},
    GpuFacts{Gpu::b200, 10, 180, 2250e12, 4500e12, 75e12, 7.7e12, 900e9, 8, 50e9},
    GpuFacts{Gpu::b300, 10, 270, 2250e12, 4500e12, 75e12, 7.7e12, 900e9, 8, 100e9},
    GpuFacts{Gpu::gb200, 10, 186, 2500e12, 5000e12, 80e12, 8e12, 900e9, 72, 50e9},
    GpuFacts{Gpu::gb300, 10, 279, 2500e12, 5000e12, 80e12, 8e12, 900e9, 72, 100e9},
    GpuFacts{Gpu::gh200, 9, 96, 990e12, 1979e12, 67e12, 4e12, 450e9, 1, 50e9},
    GpuFacts{Gpu::l40s, 8, 48, 362.05e12, 733e12, 91.6e12, 0.864e12, 32e9, 1, 25e9}};

// A core of a CPU has no data sheet. These figures are of the order of a server's core with AVX2,
// in fp32; `mtrain doctor` measures a machine's own.
struct CpuFacts {
  double core_flops = 80e9;
  double memory_bytes_per_second = 10e9;  // a core's share
  double link_bytes_per_second = 4e9;     // between two ranks of a host, over shared memory
};
inline constexpr CpuFacts kCpuFacts;

constexpr const GpuFacts& facts(Gpu gpu) { return kGpuFacts[size_t(gpu)]; }

// Returns the GPU of a device's name ("NVIDIA H100 80GB HBM3"); null if no row is its.
const GpuFacts* find_gpu(std::string_view device_name);

// Returns the rate of dense GEMMs of the device of that name, in FLOP/s; 0 if it is unknown. The
// rate is unknown for a part of a GPU (MIG), and for PCIe and NVL cards: find_gpu() takes them for
// SXM modules, but their clocks are lower.
double rated_flops(std::string_view device_name, DType dtype);

}  // namespace mtrain
