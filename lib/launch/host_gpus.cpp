#include "launch/host_gpus.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

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
  size_t count = 0;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    count = *visible ? size_t(std::count(visible, visible + std::strlen(visible), ',')) + 1 : 0;
  else
    while (fs::exists(fmt::format("/dev/nvidia{}", count))) ++count;
  std::vector<std::string> names = driver_models();
  names.resize(count);
  return names;
}

}  // namespace mtrain::launch
