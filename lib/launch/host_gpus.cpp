#include "launch/host_gpus.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/strings.h"

namespace mtrain::launch {
namespace {

namespace fs = std::filesystem;

// Returns the "Model:" lines of the driver, one per GPU, in the order of the bus.
std::vector<std::string> driver_models() {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored))
    folders.push_back(entry.path());
  std::ranges::sort(folders);
  std::vector<std::string> models;
  for (const fs::path& folder : folders) {
    std::ifstream file(folder / "information");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("Model:")) models.emplace_back(trim(std::string_view(line).substr(6)));
  }
  return models;
}

}  // namespace

std::vector<std::string> visible_gpus() {
  size_t devices = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > 6 && name.starts_with("nvidia") &&
        name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++devices;
  }
  std::vector<std::string> names = driver_models();
  names.resize(devices);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible ? gpus_chosen_by(visible, names) : names;
}

// CUDA uses the devices of the list up to the first that does not exist. A device may be named by
// its UUID, which `names` do not have.
std::vector<std::string> gpus_chosen_by(const std::string& visible_devices,
                                        const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  for (const std::string& word : split(visible_devices, ',')) {
    const std::string_view device = trim(word);
    size_t index = 0;
    const auto [stop, error] = std::from_chars(device.data(), device.data() + device.size(), index);
    const bool number = error == std::errc() && stop == device.data() + device.size();
    const bool uuid = device.starts_with("GPU-") || device.starts_with("MIG-");
    if (chosen.size() == names.size() || (number ? index >= names.size() : !uuid)) break;
    chosen.push_back(number ? names[index] : names[0]);
    if (device.starts_with("MIG-")) chosen.back() += " MIG";  // a part of the GPU
  }
  return chosen;
}

}  // namespace mtrain::launch
