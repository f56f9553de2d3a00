#include "plan/nccl_memory.h"

#include "plan/process_groups.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr int64_t kSteps = 8;  // a buffer is filled in this many parts
// Long messages; short ones in lines of 16 bytes (8 for each of 512 threads); short ones by NVLink
// (120 words of 8 bytes for each of 640 threads).
constexpr int64_t kConnection = 4 * kMiB + 8 * 512 * 16 * kSteps + 120 * 640 * 8 * kSteps;
constexpr int64_t kChannels = 16;
constexpr int64_t kNvlsChannels = 16, kNvlsStep = 128 * kKiB;

}  // namespace

Count nccl_bytes(const mesh::CountedSplit& group, const NcclMachine& machine) {
  if (group.ranks == 0 || group.parent >= 0) return 0;
  const int bound = most_blocks(group.traffic);
  const int64_t channels = bound > 0 ? bound : kChannels,
                connections = group.traffic == GroupTraffic::messages ? 1 : 2;
  Count bytes = Count(channels * connections * kConnection);
  if (machine.switch_sums && bound == 0 && group.on_host > 2)
    bytes += Count(2 * kNvlsChannels * group.on_host * kNvlsStep * kSteps);
  return bytes;
}

Count nccl_bytes(const RunPlan& plan, int64_t rank, const NcclMachine& machine) {
  const bool by_nccl =
      plan.device.kind == DeviceKind::cuda &&
      (plan.comm.backend == CommBackend::nccl || plan.comm.backend == CommBackend::automatic);
  if (!by_nccl) return 0;
  Count bytes = 0;
  for (const mesh::CountedSplit& g : count_process_groups(plan, rank, machine.ranks_per_host))
    bytes += nccl_bytes(g, machine);
  return bytes;
}

}  // namespace mtrain::plan
