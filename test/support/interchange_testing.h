// The committed folders of small models, test/golden/hf.
#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace mtrain {

inline std::filesystem::path golden_hf() {
  return std::filesystem::path(MTRAIN_SOURCE_DIR) / "test/golden/hf";
}

inline std::vector<std::string> golden_hf_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_hf()))
    if (entry.path().filename() != "expected") names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace mtrain
