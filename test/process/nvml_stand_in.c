// Stands in for NVIDIA's management library: two GPUs, of which the second has what NVML_FAULTS
// names.
#include <stdlib.h>
#include <string.h>

typedef void* device;

static int faulty(device d, const char* fault) {
  const char* faults = getenv("NVML_FAULTS");
  return d == (device)2 && faults && strstr(faults, fault);
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device* d) {
  *d = (device)(size_t)(index + 1);
  return faulty(*d, "lost") ? 15 : 0;
}
int nvmlDeviceGetName(device d, char* name, unsigned length) {
  (void)d;
  strncpy(name, "Stand-in H100", length);
  return 0;
}
int nvmlDeviceGetMemoryInfo(device d, unsigned long long* total_free_used) {
  total_free_used[0] = 80ull << 30;
  total_free_used[2] = faulty(d, "used") ? 40ull << 30 : 0;
  total_free_used[1] = total_free_used[0] - total_free_used[2];
  return 0;
}
int nvmlDeviceGetTotalEccErrors(device d, int type, int counter, unsigned long long* errors) {
  *errors = type == 1 && counter == 0 && faulty(d, "ecc") ? 3 : 0;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long* reasons) {
  *reasons = faulty(d, "heat") ? 0x40 : 0;
  return 0;
}
int nvmlDeviceGetNvLinkState(device d, unsigned link, int* state) {
  if (link >= 4) return 3;
  *state = !(link == 2 && faulty(d, "link"));
  return 0;
}
int nvmlDeviceGetRemappedRows(device d, unsigned* correctable, unsigned* uncorrectable,
                              unsigned* pending, unsigned* failed) {
  *correctable = *uncorrectable = *pending = 0;
  *failed = faulty(d, "row");
  return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  strncpy(version, "999.1", length);
  return 0;
}
