#include "storage/checkpoint_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include <fmt/ranges.h>

#include "base/error.h"
#include "storage/checkpoint_dir.h"
#include "storage/safetensors.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// The tensors of a checkpoint, by name.
struct TensorsByName {
  explicit TensorsByName(const fs::path& folder) {
    if (!complete_checkpoint(folder))
      throw UserError(fmt::format("{} is not a checkpoint", folder.string()),
                      "give a checkpoint such as runs/a/checkpoints/step-00000120");
    std::error_code error;
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      if (!fs::exists(folder / name, error)) continue;
      files.push_back(std::make_unique<SafetensorsReader>(folder / name));
      for (const StoredTensor& t : files.back()->tensors())
        tensors.emplace(t.name, std::pair(files.back().get(), &t));
    }
  }
  std::vector<std::unique_ptr<SafetensorsReader>> files;
  std::map<std::string, std::pair<const SafetensorsReader*, const StoredTensor*>> tensors;
};

double distance(float x, float y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double d = std::fabs(double(x) - double(y));
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

TensorDifference compare(const std::string& name, const SafetensorsReader& a,
                         const SafetensorsReader& b, const std::function<void(int64_t)>& read) {
  constexpr int64_t kPiece = 1 << 20;
  TensorDifference row{.name = name};
  const int64_t count = a.info(name).count();
  std::vector<float> x(size_t(std::min(kPiece, count))), y(x.size());
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t n = std::min(kPiece, count - first);
    a.read(name, first, n, x.data());
    b.read(name, first, n, y.data());
    for (int64_t i = 0; i < n; ++i) {
      const float u = x[size_t(i)], v = y[size_t(i)];
      row.scale = std::fmax(row.scale, std::fmax(std::fabs(u), std::fabs(v)));
      if (const double d = distance(u, v); d > row.largest)
        row.largest = d, row.element = first + i;
    }
    read(n);
  }
  return row;
}

}  // namespace

std::vector<TensorDifference> checkpoint_differences(
    const fs::path& a, const fs::path& b, const std::function<void(int64_t, int64_t)>& progress) {
  const TensorsByName left(a), right(b);
  std::vector<TensorDifference> rows;
  int64_t done = 0, total = 0;
  for (const auto& [name, tensor] : left.tensors) total += tensor.second->count();
  for (const auto& [name, tensor] : left.tensors) {
    const auto other = right.tensors.find(name);
    if (other == right.tensors.end()) {
      rows.push_back({.name = name, .reason = fmt::format("only in {}", a.string())});
    } else if (tensor.second->shape != other->second.second->shape) {
      rows.push_back({.name = name,
                      .reason = fmt::format("{} and {}", fmt::join(tensor.second->shape, " x "),
                                            fmt::join(other->second.second->shape, " x "))});
    } else {
      rows.push_back(compare(name, *tensor.first, *other->second.first, [&](int64_t n) {
        done += n;
        if (progress) progress(done, total);
      }));
    }
  }
  for (const auto& [name, tensor] : right.tensors)
    if (!left.tensors.contains(name))
      rows.push_back({.name = name, .reason = fmt::format("only in {}", b.string())});
  std::ranges::stable_sort(rows, [](const auto& x, const auto& y) {
    if (x.reason.empty() != y.reason.empty()) return !x.reason.empty();
    return x.largest > y.largest;
  });
  return rows;
}

}  // namespace mtrain::storage
