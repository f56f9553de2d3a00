#include "storage/checkpoint_index.h"

#include <charconv>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "storage/file_sums.h"
#include "storage/manifest_json.h"
#include "storage/safetensors_dtype.h"

namespace mtrain::storage {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char *kTensorFiles = "tensor_files", *kDtype = "dtype", *kShape = "shape",
                     *kPieces = "pieces";
constexpr TensorSet kSets[] = {TensorSet::weights, TensorSet::optimizer};

// Reads numbers and the signs between them.
class PieceText {
 public:
  explicit PieceText(std::string_view text)
      : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  bool done() const { return at_ == end_; }
  bool follows(char sign) {
    if (done() || *at_ != sign) return false;
    ++at_;
    return true;
  }
  void expect(char sign) {
    if (!follows(sign)) fail();
  }
  template <class T>
  T number() {
    T value = 0;
    const auto [end, error] = std::from_chars(at_, end_, value);
    if (error != std::errc() || value < 0) fail();
    at_ = end;
    return value;
  }
  [[noreturn]] void fail() const {
    throw UserError(fmt::format("character {} of a list of pieces is wrong", at_ - begin_));
  }

 private:
  const char *begin_, *at_, *end_;
};

// Whether the elements of the run are in a tensor of `count` elements.
bool is_within(const StridedRun& r, int64_t count) {
  if (r.count < 1 || r.times < 1 || r.first > count || r.count > count - r.first) return false;
  if (r.times == 1) return r.stride == 0;
  int64_t last = 0;
  return r.stride >= r.count && !__builtin_mul_overflow(r.times - 1, r.stride, &last) &&
         last <= count - r.first - r.count;
}

json tensors_json(const PiecedTensors& tensors) {
  json all = json::object();
  for (const auto& [name, t] : tensors) {
    json shape = json::array();
    for (int i = 0; i < t.shape.rank(); ++i) shape.push_back(t.shape[i]);
    all[name] = {{kDtype, safetensors_name(t.dtype)},
                 {kShape, std::move(shape)},
                 {kPieces, pieces_text(t.pieces)}};
  }
  return all;
}

class IndexParser {
 public:
  IndexParser(const fs::path& path, const Manifest& manifest) : path_(path), manifest_(manifest) {}

  CheckpointIndex parse(const json& file) {
    const json& files = member(file, kTensorFiles);
    if (!files.is_array()) fail("it lists no files of tensors");
    for (const json& name : files) {
      if (!name.is_string() || !manifest_.sizes.contains(name.get<std::string>()))
        fail("it lists a file of tensors that is not a file of the folder");
      index_.files.push_back(name.get<std::string>());
    }
    for (const TensorSet set : kSets) {
      const json& tensors = member(file, std::string(tensor_set_name(set)));
      if (!tensors.is_object()) fail(fmt::format("it has no {}", tensor_set_name(set)));
      for (const auto& [name, value] : tensors.items()) index_.of(set)[name] = tensor(name, value);
    }
    return std::move(index_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw damaged_file(path_, what); }

  const json& member(const json& object, const std::string& key) const {
    const auto at = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || at == object.end()) fail(fmt::format("it has no `{}`", key));
    return *at;
  }

  PiecedTensor tensor(const std::string& name, const json& value) const {
    PiecedTensor t;
    const json &dtype = member(value, kDtype), &pieces = member(value, kPieces);
    const SafetensorsType* type =
        dtype.is_string() ? find_safetensors_type(dtype.get<std::string>()) : nullptr;
    if (!type || !type->dtype) fail(fmt::format("tensor `{}` has an unknown type", name));
    t.dtype = *type->dtype;
    t.shape = shape(name, member(value, kShape));
    if (!pieces.is_string()) fail(fmt::format("tensor `{}` has no list of pieces", name));
    try {
      t.pieces = parse_pieces(pieces.get_ref<const std::string&>());
    } catch (const UserError& e) {
      fail(fmt::format("tensor `{}`: {}", name, e.message()));
    }
    int64_t rest = t.shape.count();
    for (const Piece& p : t.pieces) {
      if (size_t(p.file) >= index_.files.size() || !is_within(p.run, t.shape.count()))
        fail(fmt::format("piece `{}` is not in its tensor", piece_name(name, p.run)));
      rest -= p.run.total();
      if (rest < 0) break;
    }
    if (rest != 0) fail(fmt::format("the pieces of tensor `{}` do not cover it once", name));
    return t;
  }

  Shape shape(const std::string& name, const json& value) const {
    constexpr int kMaxRank = 4;
    std::vector<int64_t> d;
    int64_t count = 1;
    bool sound = value.is_array() && int(value.size()) <= kMaxRank;
    for (size_t i = 0; sound && i < value.size(); ++i) {
      sound = value[i].is_number_unsigned() && value[i].get<uint64_t>() <= uint64_t(INT64_MAX) &&
              !__builtin_mul_overflow(count, value[i].get<int64_t>(), &count);
      if (sound) d.push_back(value[i].get<int64_t>());
    }
    if (!sound) fail(fmt::format("tensor `{}` has no shape", name));
    return shape_of(d);
  }

  const fs::path& path_;
  const Manifest& manifest_;
  CheckpointIndex index_;
};

}  // namespace

std::string_view tensor_set_name(TensorSet set) {
  return set == TensorSet::weights ? "weights" : "optimizer";
}

Shape shape_of(const std::vector<int64_t>& d) {
  switch (d.size()) {
    case 0: return {};
    case 1: return {d[0]};
    case 2: return {d[0], d[1]};
    case 3: return {d[0], d[1], d[2]};
    case 4: return {d[0], d[1], d[2], d[3]};
    default: throw BugError(fmt::format("{} dimensions", d.size()));
  }
}

std::string piece_name(std::string_view tensor, const StridedRun& run) {
  return fmt::format("{}@{}", tensor, run.first);
}

std::string shard_file_name(TensorSet set, int rank) {
  return fmt::format("{}-{:05}.safetensors", tensor_set_name(set), rank);
}

std::string pieces_text(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& p : pieces) {
    text += fmt::format("{}{}:{}+{}", text.empty() ? "" : " ", p.file, p.run.first, p.run.count);
    if (p.run.times > 1) text += fmt::format("x{}/{}", p.run.times, p.run.stride);
  }
  return text;
}

std::vector<Piece> parse_pieces(std::string_view text) {
  std::vector<Piece> pieces;
  PieceText from(text);
  while (!from.done()) {
    if (!pieces.empty()) from.expect(' ');
    Piece p;
    p.file = from.number<int32_t>();
    from.expect(':');
    p.run.first = from.number<int64_t>();
    from.expect('+');
    p.run.count = from.number<int64_t>();
    if (from.follows('x')) {
      p.run.times = from.number<int64_t>();
      from.expect('/');
      p.run.stride = from.number<int64_t>();
    }
    pieces.push_back(p);
  }
  return pieces;
}

void write_index(const fs::path& folder, int64_t step, const CheckpointIndex& index,
                 const std::map<std::string, std::string>& sums) {
  json file = describe_files(folder, step, sums);
  file["format"] = kIndexFormat;
  file["needs"] = kIndexNeeds;
  file[kTensorFiles] = index.files;
  for (const TensorSet set : kSets)
    file[std::string(tensor_set_name(set))] = tensors_json(index.of(set));
  write_with_checksum(folder / kIndexJson, std::move(file));
}

CheckpointIndex parse_index(const fs::path& path, std::string_view text, const Manifest& manifest) {
  json file;
  try {
    file = parse_json(text, kIndexJson);
  } catch (const UserError& e) {
    throw damaged_file(path, e.message());
  }
  return IndexParser(path, manifest).parse(file);
}

CheckpointIndex read_index(const fs::path& folder, const Manifest& manifest) {
  const fs::path path = folder / kIndexJson;
  const std::string text = read_saved(path);
  check_own_checksum(path, text);
  return parse_index(path, text, manifest);
}

}  // namespace mtrain::storage
