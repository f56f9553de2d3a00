// Asks NVIDIA's management library about the GPUs of this host. The library is loaded at run time:
// every driver has it, and builds without CUDA can ask it, too.
#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "base/shared_library.h"
#include "base/strings.h"
#include "run/doctor.h"

namespace mtrain::run {

namespace {

// The parts of nvml.h that are used here. Their values are fixed.
using NvmlDevice = struct NvmlDeviceHandle*;
constexpr int kNvmlSuccess = 0, kNvmlUncorrected = 1, kNvmlVolatile = 0, kNvmlFeatureOn = 1;
constexpr unsigned kNvmlMostLinks = 18;
constexpr unsigned long long kNvmlThermal = 0x20 | 0x40, kNvmlPowerBrake = 0x8 | 0x80;
struct NvmlMemory {
  unsigned long long total, free, used;
};

struct Nvml {
  SharedLibrary library{"libnvidia-ml.so.1"};
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*ecc)(NvmlDevice, int, int, unsigned long long*) = nullptr;
  int (*throttling)(NvmlDevice, unsigned long long*) = nullptr;
  int (*link)(NvmlDevice, unsigned, int*) = nullptr;
  int (*remapped)(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  Nvml() {
    library.find(init, "nvmlInit_v2");
    library.find(shutdown, "nvmlShutdown");
    library.find(count, "nvmlDeviceGetCount_v2");
    library.find(handle, "nvmlDeviceGetHandleByIndex_v2");
    library.find(name, "nvmlDeviceGetName");
    library.find(memory, "nvmlDeviceGetMemoryInfo");
    library.find(ecc, "nvmlDeviceGetTotalEccErrors");
    library.find(throttling, "nvmlDeviceGetCurrentClocksThrottleReasons");
    library.find(link, "nvmlDeviceGetNvLinkState");
    library.find(remapped, "nvmlDeviceGetRemappedRows");
    library.find(driver, "nvmlSystemGetDriverVersion");
  }
};

bool has_nvidia_device() { return access("/dev/nvidiactl", F_OK) == 0; }

// Collects what is wrong with a GPU; the gravest comes last.
class GpuFindings {
 public:
  void add(Verdict verdict, const std::string& what, const std::string& hint) {
    row.value += "; " + what;
    if (verdict < row.verdict) return;
    row.verdict = verdict;
    row.hint = hint;
  }
  DoctorRow row;
};

DoctorRow gpu_row(const Nvml& nvml, unsigned index) {
  GpuFindings found;
  found.row.check = fmt::format("GPU {}", index);
  NvmlDevice device = nullptr;
  if (const int code = nvml.handle(index, &device); code != kNvmlSuccess) {
    found.row = {found.row.check, fmt::format("NVML cannot open it (code {})", code),
                 Verdict::fault, "it has fallen off the bus, or another user has it: see dmesg"};
    return found.row;
  }
  char name[96] = "?";
  nvml.name(device, name, sizeof name);
  NvmlMemory memory{};
  nvml.memory(device, &memory);
  found.row.value = fmt::format("{}, {} of {} free", name, human_bytes(double(memory.free)),
                                human_bytes(double(memory.total)));
  if (memory.total > 0 && memory.used > memory.total / 20)
    found.add(Verdict::warning, "in use", "another process has its memory: see nvidia-smi");
  unsigned long long reasons = 0;
  if (nvml.throttling(device, &reasons) == kNvmlSuccess) {
    if (reasons & kNvmlThermal)
      found.add(Verdict::warning, "throttled by heat", "check its cooling");
    if (reasons & kNvmlPowerBrake)
      found.add(Verdict::warning, "throttled by hardware", "check its power supply");
  }
  unsigned links = 0, down = 0;
  for (unsigned i = 0; i < kNvmlMostLinks; ++i) {
    int state = 0;
    if (nvml.link(device, i, &state) != kNvmlSuccess) continue;
    ++links;
    if (state != kNvmlFeatureOn) ++down;
  }
  // A link that is off may be broken, or no bridge or switch is there: NVML does not distinguish.
  if (links > 0) found.row.value += fmt::format("; {} NVLinks", links - down);
  if (down > 0) found.row.value += fmt::format(", {} not connected", down);
  unsigned correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
  if (nvml.remapped(device, &correctable, &uncorrectable, &pending, &failed) == kNvmlSuccess) {
    if (pending)
      found.add(Verdict::warning, "a row of memory waits to be replaced", "reset the GPU");
    if (failed)
      found.add(Verdict::fault, "a row of memory could not be replaced", "replace the GPU");
  }
  unsigned long long errors = 0;
  if (nvml.ecc(device, kNvmlUncorrected, kNvmlVolatile, &errors) == kNvmlSuccess && errors > 0)
    found.add(Verdict::fault, fmt::format("{} uncorrected ECC errors since its reset", errors),
              "reset the GPU; replace it if they return");
  return found.row;
}

// The driver's Xid reports are in the kernel's log, which not every user may read.
DoctorRow xid_row() {
  DoctorRow row{.check = "Xid errors"};
  const int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    row.value = fmt::format("unknown: /dev/kmsg: {}", std::strerror(errno));
    return row;
  }
  int reports = 0;
  std::string last;
  char line[8192];
  while (true) {
    const ssize_t n = read(fd, line, sizeof line);
    if (n < 0 && errno == EPIPE) continue;  // the oldest lines were overwritten
    if (n <= 0) break;
    const std::string_view text(line, size_t(n));
    const size_t at = text.find("NVRM: Xid");
    if (at == std::string_view::npos) continue;
    ++reports;
    last = std::string(text.substr(at, text.find('\n', at) - at));
  }
  close(fd);
  row.value =
      reports == 0 ? "none in the kernel's log" : fmt::format("{}; the last: {}", reports, last);
  if (reports > 0) {
    row.verdict = Verdict::warning;
    row.hint = "NVIDIA's list of Xid errors says which of them mean a broken GPU";
  }
  return row;
}

}  // namespace

std::vector<DoctorRow> examine_gpus() {
  const Nvml nvml;
  if (!nvml.library.handle()) {
    if (!has_nvidia_device()) return {};
    return {{"GPUs", nvml.library.problem(), Verdict::warning,
             "there is a driver, but not its library libnvidia-ml.so.1: install it to have the "
             "GPUs examined"}};
  }
  if (!nvml.library.problem().empty())
    return {{"GPUs", nvml.library.problem(), Verdict::warning, "the driver is too old for this"}};
  if (const int code = nvml.init(); code != kNvmlSuccess) {
    if (!has_nvidia_device()) return {};
    return {{"GPUs", fmt::format("NVML does not start (code {})", code), Verdict::fault,
             "see nvidia-smi"}};
  }
  std::vector<DoctorRow> rows;
  char version[96] = "?";
  nvml.driver(version, sizeof version);
  rows.push_back({.check = "driver", .value = version});
  unsigned count = 0;
  nvml.count(&count);
  for (unsigned i = 0; i < count; ++i) rows.push_back(gpu_row(nvml, i));
  if (count > 0) rows.push_back(xid_row());
  nvml.shutdown();
  return rows;
}

}  // namespace mtrain::run
