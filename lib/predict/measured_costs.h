// What launches cost by a calibration: times of the same launches in other sizes.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/calibration.h"
#include "plan/cluster.h"
#include "plan/options/device_plan.h"
#include "predict/launch_class.h"
#include "predict/launch_costs.h"
#include "predict/sheet_costs.h"

namespace mtrain::predict {

// The time of one kind of launch as a function of its size. `constant + flops / rate + bytes /
// rate` is fitted to the points. The ratio of a point's time to this is interpolated in the
// logarithms of FLOPs and bytes. The function is smooth and positive, and exact at the points.
// Beyond the range of the points, the ratio at its edge holds.
class SizeCurve {
 public:
  explicit SizeCurve(const std::vector<plan::LaunchPoint>& points);  // one or more

  // `known` if the size lies in the range of the points, along each of FLOPs and bytes.
  LaunchCost at(double flops, double read, double written) const;
  // Returns at most what launches take that have these FLOPs together.
  double at_least(double flops) const;

 private:
  struct Place {
    double x[3];  // logarithms of FLOPs, bytes read and bytes written
    double log_ratio;
  };
  double fitted(double flops, double bytes) const;

  double constant_ = 0, per_flop_ = 0, per_byte_ = 0;
  double least_ratio_ = 1;
  double low_[3], high_[3];
  std::vector<Place> places_;
};

// A rank's link that the plan emulates on a CPU (comm::EmulatedLink).
struct EmulatedLinkCosts {
  double latency_s = 0, seconds_per_byte = 0;
  std::vector<std::string> streams;  // names of the kinds of streams that use it; empty: all
};
EmulatedLinkCosts emulated_link(const plan::CommOptions& comm);

// Ranks that compute on the CPUs of a host.
struct CpuRanks {
  int64_t threads = 1;  // of each rank
  int64_t of_host = 1;  // ranks that compute at the same time
};

class MeasuredCosts : public LaunchCosts {
 public:
  // `cpu` is what the prediction is for; absent: GPUs. If the calibration had other numbers, all
  // costs of computations are unknown.
  MeasuredCosts(plan::Calibration calibration, const plan::Cluster& cluster,
                const std::optional<CpuRanks>& cpu, EmulatedLinkCosts link);

  // A launch that was not measured takes the time of launches of its class and type with such a
  // size, and is unknown. Without any, it takes that of the cluster's data sheet.
  LaunchCost cost(const LaunchWork& launch, const plan::GroupLink* link) const override;
  double least_seconds(const LaunchWork& launch) const override;
  double gap_seconds() const override { return calibration_.gap_s; }
  double host_seconds() const override { return calibration_.host_s; }
  TogetherCosts together(const plan::Layout& layout) const override;
  double idle_share(device::StreamKind kind) const override;
  double beside_compute(device::StreamKind kind) const override;
  double slowdown(device::StreamKind kind) const override;

 private:
  LaunchCost compute(const LaunchWork& launch) const;
  LaunchCost communication(const LaunchWork& launch, const plan::GroupLink& link) const;
  double stretch(device::StreamKind kind) const;
  bool uses_link(device::StreamKind kind) const;

  const plan::Calibration calibration_;
  const SheetCosts sheet_;
  const EmulatedLinkCosts link_;
  const bool same_ranks_;
  std::map<std::pair<std::string, DType>, SizeCurve, std::less<>> curves_;
  std::map<std::pair<LaunchClass, DType>, SizeCurve> of_class_;
  // The curves of `curves_` by class.
  std::map<std::pair<LaunchClass, DType>, std::vector<const SizeCurve*>> named_;
};

}  // namespace mtrain::predict
