#include "storage/checkpoint_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include <fmt/ranges.h>

#include "base/error.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/read_mark.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// The tensors of a checkpoint, by name.
struct TensorsByName {
  explicit TensorsByName(const fs::path& folder) : reading(folder) {
    if (!complete_checkpoint(folder))
      throw UserError(fmt::format("{} is not a checkpoint", folder.string()),
                      "give a checkpoint such as runs/a/checkpoints/step-00000120");
    for (auto& [set, file] : open_all_checkpoint_tensors(folder)) {
      for (const CheckpointTensors::Entry& t : file->entries()) tensors.emplace(t.name, file.get());
      files.push_back(std::move(file));
    }
  }
  const ReadMark reading;
  std::vector<std::unique_ptr<CheckpointTensors>> files;
  std::map<std::string, const CheckpointTensors*> tensors;
};

std::string shape_text(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return fmt::format("{}", fmt::join(dims, " x "));
}

double distance(float x, float y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double d = std::fabs(double(x) - double(y));
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

TensorDifference compare(const std::string& name, const CheckpointTensors& a,
                         const CheckpointTensors& b, const std::function<void(int64_t)>& read) {
  constexpr int64_t kPiece = 1 << 20;
  TensorDifference row{.name = name};
  const int64_t count = a.shape(name).count();
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
  for (const auto& [name, tensor] : left.tensors) total += tensor->shape(name).count();
  for (const auto& [name, tensor] : left.tensors) {
    const auto other = right.tensors.find(name);
    if (other == right.tensors.end()) {
      rows.push_back({.name = name, .reason = fmt::format("only in {}", a.string())});
    } else if (tensor->shape(name) != other->second->shape(name)) {
      rows.push_back({.name = name,
                      .reason = fmt::format("{} and {}", shape_text(tensor->shape(name)),
                                            shape_text(other->second->shape(name)))});
    } else {
      rows.push_back(compare(name, *tensor, *other->second, [&](int64_t n) {
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
