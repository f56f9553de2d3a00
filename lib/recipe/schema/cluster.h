// The fields of a cluster file, which describes the machines that a plan is for.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "base/gpu.h"
#include "recipe/schema/field.h"

namespace mtrain::recipe {

// The kind of a cluster's devices: a Gpu, or cpu.
enum class ClusterKind : int {};
inline constexpr size_t kGpuKinds = enum_names(Gpu{}).size();
inline constexpr ClusterKind kCpuKind{int(kGpuKinds)};
constexpr ClusterKind cluster_kind(Gpu gpu) { return ClusterKind(int(gpu)); }
constexpr auto enum_names(ClusterKind) {
  std::array<EnumName<ClusterKind>, kGpuKinds + 1> names{};
  for (size_t i = 0; i < kGpuKinds; ++i)
    names[i] = {cluster_kind(enum_names(Gpu{})[i].value), enum_names(Gpu{})[i].name};
  names.back() = {kCpuKind, "cpu"};
  return names;
}

struct PeakTflops {
  Auto<double> bf16, fp8, fp32;

  static constexpr auto fields =
      std::tuple{Field{"bf16",
                       &PeakTflops::bf16,
                       "peak of dense GEMMs in bf16",
                       {.unit = "TFLOP/s", .min = 0, .above_min = true}},
                 Field{"fp8",
                       &PeakTflops::fp8,
                       "peak of dense GEMMs in 8 bits; 0: none",
                       {.unit = "TFLOP/s", .min = 0}},
                 Field{"fp32",
                       &PeakTflops::fp32,
                       "peak in fp32, without tensor cores",
                       {.unit = "TFLOP/s", .min = 0, .above_min = true}}};
};

struct ClusterGpu {
  std::optional<ClusterKind> kind;
  Auto<double> memory_gib, memory_gbytes_s;
  double usable = 0.94;
  PeakTflops peak_tflops;

  static constexpr auto fields = std::tuple{
      Field{"kind", &ClusterGpu::kind,
            "kind of the devices, a rank each; decides what is auto, by the vendor's data sheets. "
            "A cpu is one core"},
      Field{"memory_gib",
            &ClusterGpu::memory_gib,
            "memory of a device; of a cpu, for each rank",
            {.unit = "GiB", .min = 0, .above_min = true}},
      Field{"usable",
            &ClusterGpu::usable,
            "share of the memory that training may use; the rest is for drivers and libraries",
            {.min = 0, .max = 1, .above_min = true}},
      Field{"peak_tflops", &ClusterGpu::peak_tflops, "peak rates of GEMMs"},
      Field{"memory_gbytes_s",
            &ClusterGpu::memory_gbytes_s,
            "rate of the device's memory",
            {.unit = "GB/s", .min = 0, .above_min = true}}};
};

struct ClusterDomain {
  Auto<int64_t> gpus;
  Auto<double> gbps;
  double latency_us = 3;

  static constexpr auto fields = std::tuple{
      Field{"gpus",
            &ClusterDomain::gpus,
            "devices that share the fast links of a domain: NVLink's, or a host's memory",
            {.min = 1}},
      Field{"gbps",
            &ClusterDomain::gbps,
            "what a device sends to others of its domain, in one direction",
            {.unit = "Gbit/s", .min = 0, .above_min = true}},
      Field{"latency_us",
            &ClusterDomain::latency_us,
            "time of an empty message within a domain; an assumption, no data sheet has it",
            {.unit = "us", .min = 0}}};
};

struct ClusterNetwork {
  Auto<double> gbps;
  double latency_us = 5, nics_per_gpu = 1, oversubscription = 1;

  static constexpr auto fields = std::tuple{
      Field{"gbps",
            &ClusterNetwork::gbps,
            "rate of a network card, in one direction",
            {.unit = "Gbit/s", .min = 0, .above_min = true}},
      Field{"latency_us",
            &ClusterNetwork::latency_us,
            "time of an empty message between domains; an assumption, no data sheet has it",
            {.unit = "us", .min = 0}},
      Field{"nics_per_gpu",
            &ClusterNetwork::nics_per_gpu,
            "network cards for each device; 0.5 if two share one",
            {.min = 0, .above_min = true}},
      Field{"oversubscription",
            &ClusterNetwork::oversubscription,
            "by how much the cards' rates exceed that of the network when all of them send",
            {.min = 1}}};
};

struct ClusterConfig {
  ClusterGpu gpu;
  ClusterDomain domain;
  ClusterNetwork network;
  Auto<int64_t> nodes;
  std::optional<std::string> calibration, stack;

  static constexpr auto fields = std::tuple{
      Field{"gpu", &ClusterConfig::gpu, "the devices", {.shorthand = "kind"}},
      Field{"domain", &ClusterConfig::domain, "links within a domain"},
      Field{"network", &ClusterConfig::network, "links between domains"},
      Field{"nodes",
            &ClusterConfig::nodes,
            "domains of the cluster; auto: as many as the ranks of a plan need",
            {.min = 1, .max = 1 << 20}},
      Field{"calibration", &ClusterConfig::calibration,
            "a file of measured times; its path begins at the cluster file"},
      Field{"stack", &ClusterConfig::stack, "name of the fitted constants of a training program"}};
};

}  // namespace mtrain::recipe
