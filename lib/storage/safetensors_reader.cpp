#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "storage/safetensors.h"
#include "storage/safetensors_dtype.h"

namespace mtrain::storage {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;  // the format's own limit
constexpr int kMaxDims = 4;

// Parses and checks the header of one file. Every error names the file.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::span<const std::byte> file)
      : path_(path), file_(file) {}

  struct Entry {
    TensorInfo info;
    int64_t begin = 0, end = 0;  // bytes from the file's start
  };
  std::vector<Entry> entries;
  Metadata metadata;

  void parse() {
    const json header = read_header();
    for (const auto& [key, value] : header.items()) {
      if (key == "__metadata__")
        read_metadata(value);
      else
        entries.push_back(read_entry(key, value));
    }
    check_cover();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(fmt::format("{} is not a sound safetensors file: {}", path_.string(), what),
                    "it may be truncated or damaged: save or copy it again");
  }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    fail(fmt::format("tensor `{}` {}", tensor, what));
  }

  json read_header() {
    if (file_.size() < kLengthBytes)
      fail(fmt::format("it has {} bytes, fewer than the {} of a header length", file_.size(),
                       kLengthBytes));
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), kLengthBytes);
    if (length > kLargestHeader)
      fail(fmt::format("its header claims {} bytes; the format allows {}", length, kLargestHeader));
    if (length > file_.size() - kLengthBytes)
      fail(fmt::format("its header claims {} bytes, but only {} follow", length,
                       file_.size() - kLengthBytes));
    data_begin_ = int64_t(kLengthBytes + length);
    const char* text = reinterpret_cast<const char*>(file_.data()) + kLengthBytes;

    // The JSON parser silently keeps the last of two equal keys; a tensor that is listed twice must
    // be an error.
    std::set<std::string> seen;
    std::optional<std::string> twice;
    const auto watch = [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::key && depth == 1 &&
          !seen.insert(value.get<std::string>()).second)
        twice = value.get<std::string>();
      return true;
    };
    try {
      json header = json::parse(text, text + length, watch);
      if (!header.is_object()) fail("its header is not a JSON object");
      if (twice) fail(*twice, "is listed twice");
      return header;
    } catch (const json::exception& e) {
      fail(fmt::format("its header is not valid JSON ({})", e.what()));
    }
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail(fmt::format("__metadata__ entry `{}` is not a string", key));
      metadata[key] = text.get<std::string>();
    }
  }

  Entry read_entry(const std::string& name, const json& value) const {
    if (!value.is_object()) fail(name, "is not described by an object");
    const auto field = [&](const char* key) -> const json& {
      const auto it = value.find(key);
      if (it == value.end()) fail(name, fmt::format("has no `{}`", key));
      return *it;
    };
    Entry entry;
    entry.info.name = name;
    entry.info.dtype = read_dtype(name, field("dtype"));
    entry.info.shape = read_shape(name, field("shape"));
    const json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      fail(name, "has data_offsets that are not two whole numbers");
    const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
    const uint64_t data_bytes = file_.size() - uint64_t(data_begin_);
    if (begin > end) fail(name, fmt::format("ends ({}) before it begins ({})", end, begin));
    if (end > data_bytes)
      fail(name,
           fmt::format("ends at byte {} of the data, but the file has only {}", end, data_bytes));
    const int64_t bytes = checked_bytes(entry.info);
    if (int64_t(end - begin) != bytes)
      fail(name, fmt::format("has {} bytes of data, but {} of {} needs {}", end - begin,
                             entry.info.shape.str(), dtype_name(entry.info.dtype), bytes));
    entry.begin = data_begin_ + int64_t(begin);
    entry.end = data_begin_ + int64_t(end);
    return entry;
  }

  DType read_dtype(const std::string& name, const json& value) const {
    if (!value.is_string()) fail(name, "has a dtype that is not a string");
    const auto text = value.get<std::string>();
    const auto dtype = safetensors_dtype(text);
    if (!dtype)
      throw UserError(fmt::format("{}: tensor `{}` has dtype {}, which mtrain does not read",
                                  path_.string(), name, text),
                      "convert it to F32, BF16, F16, F64, I32, I64 or U8");
    return *dtype;
  }

  Shape read_shape(const std::string& name, const json& value) const {
    if (!value.is_array()) fail(name, "has a shape that is not a list");
    if (value.size() > kMaxDims)
      throw UserError(fmt::format("{}: tensor `{}` has {} dimensions; mtrain reads at most {}",
                                  path_.string(), name, value.size(), kMaxDims));
    int64_t dims[kMaxDims] = {};
    for (size_t i = 0; i < value.size(); ++i) {
      if (!value[i].is_number_unsigned() || value[i].get<uint64_t>() > uint64_t(INT64_MAX))
        fail(name, "has a dimension that is not a whole number");
      dims[i] = value[i].get<int64_t>();
    }
    switch (value.size()) {
      case 0: return {};
      case 1: return {dims[0]};
      case 2: return {dims[0], dims[1]};
      case 3: return {dims[0], dims[1], dims[2]};
      default: return {dims[0], dims[1], dims[2], dims[3]};
    }
  }

  int64_t checked_bytes(const TensorInfo& info) const {
    int64_t bytes = dtype_size(info.dtype);
    for (int i = 0; i < info.shape.rank(); ++i)
      if (__builtin_mul_overflow(bytes, info.shape[i], &bytes))
        fail(info.name, fmt::format("has an absurd shape {}", info.shape.str()));
    return bytes;
  }

  // Checks that the tensors cover the data exactly: no overlap, no hole, nothing left at the end.
  void check_cover() {
    std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t at = data_begin_;
    const std::string* before = nullptr;
    for (const Entry& e : entries) {
      if (e.begin < at) fail(e.info.name, fmt::format("overlaps tensor `{}`", *before));
      if (e.begin > at)
        fail(e.info.name, fmt::format("leaves a hole of {} bytes before it", e.begin - at));
      at = e.end;
      before = &e.info.name;
    }
    if (at != int64_t(file_.size()))
      fail(fmt::format("{} bytes at its end belong to no tensor", int64_t(file_.size()) - at));
  }

  const std::filesystem::path& path_;
  std::span<const std::byte> file_;
  int64_t data_begin_ = 0;
};

}  // namespace

SafetensorsReader::SafetensorsReader(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_shared<MappedFile>(path_)) {
  HeaderParser parser(path_, file_->bytes());
  parser.parse();
  metadata_ = std::move(parser.metadata);
  for (auto& entry : parser.entries) {
    index_[entry.info.name] = tensors_.size();
    begins_.push_back(entry.begin);
    tensors_.push_back(std::move(entry.info));
  }
}
SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;

size_t SafetensorsReader::find(std::string_view name) const {
  if (const auto it = index_.find(name); it != index_.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& t : tensors_) names.push_back(t.name);
  const std::string close = nearest(name, names);
  throw UserError(fmt::format("{} has no tensor `{}`", path_.string(), name),
                  close.empty() ? fmt::format("it has {} tensors of other names", names.size())
                                : fmt::format("did it mean `{}`?", close));
}

const TensorInfo& SafetensorsReader::info(std::string_view name) const {
  return tensors_[find(name)];
}

ConstSpan SafetensorsReader::span(std::string_view name) const {
  const size_t i = find(name);
  return {file_->bytes().data() + begins_[i], tensors_[i].shape.count(), tensors_[i].dtype};
}

}  // namespace mtrain::storage
