#include "storage/safetensors_header.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "storage/safetensors_dtype.h"

namespace mtrain::storage {
namespace {

using nlohmann::json;

class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::string_view text, int64_t data_bytes)
      : path_(path),
        text_(text),
        data_begin_(kSafetensorsLengthBytes + int64_t(text.size())),
        data_bytes_(data_bytes) {}

  SafetensorsHeader parse() {
    const json header = parse_json();
    for (const auto& [key, value] : header.items()) {
      if (key == "__metadata__")
        read_metadata(value);
      else
        result_.tensors.push_back(read_tensor(key, value));
    }
    check_cover();
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw unsound_safetensors(path_, what); }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    fail(fmt::format("tensor `{}` {}", tensor, what));
  }

  json parse_json() const {
    json header;
    try {
      header = mtrain::parse_json(text_, "its header");
    } catch (const UserError& e) {
      fail(e.message());
    }
    if (!header.is_object()) fail("its header is not a JSON object");
    return header;
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail(fmt::format("__metadata__ entry `{}` is not a string", key));
      result_.metadata[key] = text.get<std::string>();
    }
  }

  StoredTensor read_tensor(const std::string& name, const json& value) const {
    if (!value.is_object()) fail(name, "is not described by an object");
    const auto field = [&](const char* key) -> const json& {
      const auto it = value.find(key);
      if (it == value.end()) fail(name, fmt::format("has no `{}`", key));
      return *it;
    };
    const SafetensorsType& type = read_type(name, field("dtype"));
    StoredTensor tensor{.name = name,
                        .type = type.name,
                        .dtype = type.dtype,
                        .shape = read_shape(name, field("shape"))};
    const json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      fail(name, "has data_offsets that are not two non-negative integers");
    const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
    if (begin > end) fail(name, fmt::format("ends ({}) before it begins ({})", end, begin));
    if (end > uint64_t(data_bytes_))
      fail(name,
           fmt::format("ends at byte {} of the data, but the file has only {}", end, data_bytes_));
    tensor.begin = data_begin_ + int64_t(begin);
    tensor.bytes = int64_t(end - begin);
    const int64_t bytes = checked_bytes(tensor, type);
    if (tensor.bytes != bytes)
      fail(name, fmt::format("has {} bytes of data, but ({}) of {} needs {}", tensor.bytes,
                             fmt::join(tensor.shape, ", "), type.name, bytes));
    return tensor;
  }

  const SafetensorsType& read_type(const std::string& name, const json& value) const {
    if (!value.is_string()) fail(name, "has a dtype that is not a string");
    const auto text = value.get<std::string>();
    if (const SafetensorsType* type = find_safetensors_type(text)) return *type;
    throw UserError(fmt::format("{}: tensor `{}` has dtype {}, which mtrain does not know",
                                path_.string(), name, text),
                    "convert it to F32, BF16 or F16");
  }

  std::vector<int64_t> read_shape(const std::string& name, const json& value) const {
    if (!value.is_array()) fail(name, "has a shape that is not a list");
    std::vector<int64_t> shape;
    for (const json& dim : value) {
      if (!dim.is_number_unsigned() || dim.get<uint64_t>() > uint64_t(INT64_MAX))
        fail(name, "has a dimension that is not a non-negative integer");
      shape.push_back(dim.get<int64_t>());
    }
    return shape;
  }

  int64_t checked_bytes(const StoredTensor& tensor, const SafetensorsType& type) const {
    int64_t bits = type.bits;
    for (const int64_t dim : tensor.shape)
      if (__builtin_mul_overflow(bits, dim, &bits))
        fail(tensor.name, fmt::format("has an absurd shape ({})", fmt::join(tensor.shape, ", ")));
    if (bits % 8 != 0)
      fail(tensor.name, fmt::format("has {} bits, which is not a multiple of 8", bits));
    return bits / 8;
  }

  // Checks that the tensors cover the data exactly: no overlap, no gap, no bytes left at the end.
  void check_cover() {
    std::ranges::stable_sort(result_.tensors, {},
                             [](const StoredTensor& t) { return std::pair(t.begin, t.bytes); });
    int64_t at = data_begin_;
    const std::string* before = nullptr;
    for (const StoredTensor& t : result_.tensors) {
      if (t.begin < at) fail(t.name, fmt::format("overlaps tensor `{}`", *before));
      if (t.begin > at)
        fail(t.name, fmt::format("leaves a gap of {} bytes before it", t.begin - at));
      at = t.begin + t.bytes;
      before = &t.name;
    }
    const int64_t rest = data_begin_ + data_bytes_ - at;
    if (rest > 0) fail(fmt::format("{} bytes at its end belong to no tensor", rest));
  }

  const std::filesystem::path& path_;
  const std::string_view text_;
  const int64_t data_begin_, data_bytes_;
  SafetensorsHeader result_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view text,
                                           int64_t data_bytes) {
  return HeaderParser(path, text, data_bytes).parse();
}

UserError unsound_safetensors(const std::filesystem::path& path, const std::string& what) {
  return UserError(fmt::format("{} is not a valid safetensors file: {}", path.string(), what),
                   "it may be truncated or damaged: save or copy it again");
}

}  // namespace mtrain::storage
