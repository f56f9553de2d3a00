#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "device/device.h"
#include "storage/finite_values.h"
#include "storage/safetensors.h"
#include "storage/safetensors_header.h"
#include "storage/state.h"
#include "test/support/temporary_folder.h"

namespace storage_safetensors_test {

using namespace mtrain;
using namespace mtrain::storage;
using Catch::Contains;

namespace {

// Writes a file of this header and so many bytes of data, as another program or a broken disk may
// have left it.
void write_raw(const std::filesystem::path& path, const std::string& header, size_t data_bytes,
               int64_t claimed = -1) {
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = claimed >= 0 ? uint64_t(claimed) : header.size();
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << header;
  for (size_t i = 0; i < data_bytes; ++i) out.put(char(i));
}

std::string complaint(const std::filesystem::path& path) {
  try {
    SafetensorsReader reader(path);
  } catch (const UserError& e) {
    return e.what();
  }
  return "(none)";
}

template <class T>
std::vector<T> values_of(const SafetensorsReader& reader, const char* name) {
  REQUIRE(reader.info(name).dtype == dtype_of<T>);
  std::vector<T> out(static_cast<size_t>(reader.info(name).count()));
  reader.read_bytes(name, 0, reader.info(name).bytes, out.data());
  return out;
}

// A tensor's description in the header.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& at) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + at + "}";
}

}  // namespace

TEST_CASE("a written file reads back, every dtype, from host and device") {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);

  const std::vector<double> f64{1.5, -2.25, 1e300};
  const std::vector<int64_t> i64{INT64_MIN, 0, INT64_MAX, 7};
  std::vector<float> f32(6);
  std::iota(f32.begin(), f32.end(), -2.5f);
  const std::vector<int32_t> i32{-7};
  const std::vector<bf16> half{bf16(1.0f), bf16(-3.0f), bf16(0.5f)};
  const std::vector<f16> fp16{f16(1.5f), f16(65504.0f)};
  const std::vector<uint8_t> bytes{1, 2, 255};
  {
    SafetensorsWriter writer(path,
                             {{"wide", DType::f64, {3}},
                              {"long", DType::i64, {2, 2}},
                              {"f", DType::f32, {1, 2, 3, 1}},
                              {"scalar", DType::i32, {}},
                              {"none", DType::f32, {0, 4}},
                              {"half", DType::bf16, {3}},
                              {"fp16", DType::f16, {2}},
                              {"u", DType::u8, {3}}},
                             {{"format", "pt"}, {"quote", "a \"b\" \n ü"}});
    writer.write("wide", {f64.data(), 3, DType::f64});
    writer.write("long", {i64.data(), 4, DType::i64});
    writer.write("f", Tensor::from_host(compute, {6}, f32), compute);
    writer.write("scalar", {i32.data(), 1, DType::i32});
    writer.write("none", Tensor::empty(compute, {0, 4}, DType::f32), compute);
    writer.write("half", Tensor::from_host(compute, {3}, half), compute);
    writer.write("fp16", Tensor::from_host(compute, {2}, fp16), compute);
    writer.write("u", {bytes.data(), 3, DType::u8});
    REQUIRE_FALSE(std::filesystem::exists(path));  // complete or absent
    writer.commit();
  }

  const SafetensorsReader reader(path);
  CHECK(reader.metadata() == Metadata{{"format", "pt"}, {"quote", "a \"b\" \n ü"}});
  REQUIRE(reader.tensors().size() == 8);
  CHECK(reader.tensors()[2].name == "f");
  CHECK(reader.shape("f") == Shape{1, 2, 3, 1});
  CHECK(reader.shape("scalar") == Shape{});
  CHECK(values_of<double>(reader, "wide") == f64);
  CHECK(values_of<int64_t>(reader, "long") == i64);
  CHECK(values_of<float>(reader, "f") == f32);
  CHECK(values_of<int32_t>(reader, "scalar") == i32);
  CHECK(values_of<uint8_t>(reader, "u") == bytes);
  CHECK(values_of<float>(reader, "none").empty());
  const auto stored = values_of<bf16>(reader, "half");
  for (size_t i = 0; i < half.size(); ++i) CHECK(stored[i].bits == half[i].bits);
  const auto narrow = values_of<f16>(reader, "fp16");
  for (size_t i = 0; i < fp16.size(); ++i) CHECK(narrow[i].bits == fp16[i].bits);
  for (const auto& t : reader.tensors()) CHECK(t.begin % dtype_size(*t.dtype) == 0);

  // The layout that other programs expect: length, JSON, data from a multiple of 8 on.
  const std::string raw = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, raw.data(), 8);
  CHECK(length % 8 == 0);
  CHECK(raw.substr(8, 1) == "{");
  CHECK(raw.size() == 8 + length + 24 + 32 + 24 + 4 + 6 + 4 + 3);
}

TEST_CASE("a tensor larger than one piece streams through the host") {
  const TemporaryFolder folder;
  const auto path = folder / "large.safetensors";
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  const int64_t count = (40ll << 20) / 4 + 13;  // two and a half pieces of 16 MiB, and a rest
  std::vector<float> values(static_cast<size_t>(count));
  fill_normal(1, 0, count, 1.0f, values.data());
  const Tensor tensor = Tensor::from_host(compute, {count}, values);
  SafetensorsWriter writer(path, {{"x", DType::f32, {count}}});
  writer.write("x", tensor, compute);
  writer.commit();
  CHECK(values_of<float>(SafetensorsReader(path), "x") == values);
}

TEST_CASE("a tensor that is written in parts is one tensor, and must be whole") {
  const TemporaryFolder folder;
  const auto path = folder / "parts.safetensors";
  const auto device = Device::cpu(1);
  Stream& compute = device->stream(device::StreamKind::compute);
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const Tensor tensor = Tensor::from_host(compute, {6}, values);
  const auto part = [&](int64_t first, int64_t count) { return tensor.flat(first, {count}); };
  {
    SafetensorsWriter writer(path, {{"x", DType::f32, {3, 2}}, {"y", DType::f32, {2}}});
    writer.write_part("x", part(0, 1), compute);
    CHECK_THROWS_WITH(writer.write("y", part(0, 2), compute),
                      Contains("before the 5 last elements of `x`"));
    CHECK_THROWS_AS(writer.write_part("x", part(0, 6), compute), BugError);
  }
  {
    SafetensorsWriter writer(path, {{"x", DType::f32, {3, 2}}});
    writer.write_part("x", part(0, 4), compute);
    CHECK_THROWS_WITH(writer.commit(), Contains("2 elements of `x` were not written"));
  }
  SafetensorsWriter writer(path, {{"x", DType::f32, {3, 2}}, {"y", DType::f32, {2}}});
  for (const int64_t first : {0, 2, 4}) writer.write_part("x", part(first, 2), compute);
  writer.write("y", part(4, 2), compute);
  writer.commit();
  CHECK(values_of<float>(SafetensorsReader(path), "x") == values);
  CHECK(values_of<float>(SafetensorsReader(path), "y") == std::vector<float>{5, 6});
}

TEST_CASE("a writer that is used wrongly says so, and leaves no file") {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const std::vector<float> x(4);
  const ConstSpan span{x.data(), 4, DType::f32};
  using Infos = std::vector<TensorInfo>;
  CHECK_THROWS_WITH(SafetensorsWriter(path, Infos{{"a", DType::u8, {1}}, {"b", DType::f32, {1}}}),
                    Contains("`b`") && Contains("unaligned"));
  CHECK_THROWS_AS(SafetensorsWriter(path, Infos{{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}),
                  BugError);
  {
    SafetensorsWriter writer(path, {{"a", DType::f32, {4}}, {"b", DType::f32, {2, 2}}});
    CHECK_THROWS_WITH(writer.write("b", span), Contains("`b` was written where `a` was declared"));
  }
  {
    SafetensorsWriter writer(path, {{"a", DType::f32, {4}}, {"b", DType::f32, {2, 2}}});
    writer.write("a", span);
    CHECK_THROWS_WITH(writer.commit(), Contains("`b` was declared but not written"));
    CHECK_THROWS_AS(writer.write("b", {x.data(), 3, DType::f32}), BugError);
  }
  {
    SafetensorsWriter writer(path, {{"a", DType::f32, {4}}});
    CHECK_THROWS_AS(writer.write("a", {x.data(), 4, DType::i32}), BugError);
  }
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("a damaged file is refused with its name, its tensor and what is wrong") {
  const TemporaryFolder folder;
  const auto path = folder / "bad.safetensors";
  const auto refuses = [&](const std::string& header, size_t bytes, const std::string& reason) {
    write_raw(path, header, bytes);
    INFO(header);
    CHECK_THAT(complaint(path), Contains("bad.safetensors") && Contains(reason));
  };

  SECTION("sizes") {
    std::ofstream(path) << "abc";
    CHECK_THAT(complaint(path), Contains("it has 3 bytes"));
    std::ofstream(path).close();
    CHECK_THAT(complaint(path), Contains("it has 0 bytes"));
    write_raw(path, "{}", 0, 1000);
    CHECK_THAT(complaint(path), Contains("claims 1000 bytes, but only 2 follow"));
    write_raw(path, "{}", 0, INT64_MAX);
    CHECK_THAT(complaint(path), Contains("the format allows 100000000"));
    CHECK_THAT(complaint(folder / "absent.safetensors"), Contains("absent.safetensors"));
    CHECK_THAT(complaint(folder.path), Contains("not a regular file"));
  }
  SECTION("the header's form") {
    refuses("{\"a\":", 0, "its header: not JSON at byte 6");
    refuses("", 0, "its header: not JSON at byte 1");
    refuses("[1,2]", 0, "not a JSON object");
    refuses("{\"a\":3}", 0, "`a` is not described by an object");
    refuses("{\"__metadata__\":{\"k\":1}}", 0, "entry `k` is not a string");
    refuses("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "`a` has no `data_offsets`");
    refuses("{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a string");
    refuses("{\"a\":" + entry("U8", "[1]", "[0,1]") + ",\"a\":" + entry("U8", "[1]", "[0,1]") + "}",
            1, "`a` is given twice");
    refuses(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1,
            "`a.shape` is given twice");
    refuses(R"({"__metadata__":{"k":"1","k":"2"}})", 0, "`__metadata__.k` is given twice");
    refuses("{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}", 0,
            "nested more than 64 deep");
  }
  SECTION("a tensor's description") {
    refuses("{\"a\":" + entry("I4", "[2]", "[0,4]") + "}", 4, "`a` has dtype I4");
    refuses("{\"a\":" + entry("U8", "3", "[0,3]") + "}", 3, "shape that is not a list");
    refuses("{\"a\":" + entry("U8", "[-3]", "[0,3]") + "}", 3, "not a non-negative integer");
    refuses("{\"a\":" + entry("U8", "[1.5]", "[0,3]") + "}", 3, "not a non-negative integer");
    refuses("{\"a\":" + entry("F4", "[3]", "[0,2]") + "}", 2, "`a` has 12 bits");
    refuses("{\"a\":" + entry("F32", "[4611686018427387904,8]", "[0,4]") + "}", 4, "absurd shape");
    refuses("{\"a\":" + entry("F32", "[18446744073709551615]", "[0,4]") + "}", 4,
            "non-negative integer");
    refuses("{\"a\":" + entry("F32", "[2]", "[0,4]") + "}", 4, "`a` has 4 bytes of data, but (2)");
    refuses("{\"a\":" + entry("U8", "[2]", "[0,2,3]") + "}", 3, "not two non-negative integers");
    refuses("{\"a\":" + entry("U8", "[2]", "[-1,1]") + "}", 3, "not two non-negative integers");
    refuses("{\"a\":" + entry("U8", "[2]", "[3,1]") + "}", 3, "`a` ends (1) before it begins (3)");
  }
  SECTION("how tensors lie") {
    refuses("{\"a\":" + entry("U8", "[4]", "[0,4]") + ",\"b\":" + entry("U8", "[4]", "[2,6]") + "}",
            6, "`b` overlaps tensor `a`");
    refuses(
        "{\"a\":" + entry("U8", "[4]", "[0,4]") + ",\"b\":" + entry("U8", "[4]", "[6,10]") + "}",
        10, "`b` leaves a gap of 2 bytes");
    refuses("{\"a\":" + entry("U8", "[4]", "[0,4]") + "}", 9, "5 bytes at its end");
    refuses("{\"a\":" + entry("U8", "[4]", "[0,4]") + "}", 3, "ends at byte 4 of the data");
    refuses("{}", 1, "1 bytes at its end");
  }
}

TEST_CASE("a header of 100,000 tensors takes no quadratic time") {
  constexpr int kTensors = 100'000;
  std::string text = "{";
  for (int i = 0; i < kTensors; ++i)
    text += fmt::format("{}\"model.layers.{}.weight\":", i ? "," : "", i) +
            entry("U8", "[1]", fmt::format("[{},{}]", i, i + 1));
  // The processor's time, since other programs may run on this machine.
  const std::clock_t begin = std::clock();
  const auto header = storage::parse_safetensors_header("x", text + "}", kTensors);
  const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(header.tensors.size() == kTensors);
  // It takes about 0.5 s, and took minutes when each tensor cost as many steps as there are.
  CHECK(seconds < 10);
}

TEST_CASE("a sound file is read whatever the order of its header is") {
  const TemporaryFolder folder;
  const auto path = folder / "sound.safetensors";
  write_raw(
      path,
      "{\"b\":" + entry("U8", "[4]", "[4,8]") + ",\"a\":" + entry("U8", "[4]", "[0,4]") + "}   ",
      8);
  const SafetensorsReader reader(path);
  CHECK(values_of<uint8_t>(reader, "b") == std::vector<uint8_t>{4, 5, 6, 7});
  CHECK(reader.tensors()[0].name == "a");
  CHECK_THROWS_WITH(reader.info("aa.weight"), Contains("has no tensor `aa.weight`"));
  write_raw(path, "{}", 0);
  CHECK(SafetensorsReader(path).tensors().empty());
}

TEST_CASE("every type and rank of the format is listed; unsupported types are not read") {
  const TemporaryFolder folder;
  const auto path = folder / "types.safetensors";
  struct Row {
    const char* type;
    int64_t bytes;  // the size of four elements
    bool readable = false;
  };
  const std::vector<Row> rows{
      {"BOOL", 4},       {"F4", 2},          {"F6_E2M3", 3}, {"F6_E3M2", 3},   {"U8", 4},
      {"I8", 4},         {"F8_E5M2", 4},     {"F8_E4M3", 4}, {"F8_E8M0", 4},   {"F8_E4M3FNUZ", 4},
      {"I16", 8},        {"F8_E5M2FNUZ", 4}, {"U16", 8},     {"I32", 16},      {"U32", 16},
      {"C64", 32},       {"I64", 32},        {"U64", 32},    {"F16", 8, true}, {"BF16", 8, true},
      {"F64", 32, true}, {"F32", 16, true}};
  CHECK(rows.size() == 22);
  std::string header = "{";
  int64_t at = 0;
  for (const Row& row : rows) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[2,1,1,1,2],"data_offsets":[{},{}]}})",
                          at ? "," : "", row.type, row.type, at, at + row.bytes);
    at += row.bytes;
  }
  header += fmt::format(R"(,"none":{{"dtype":"F32","shape":[3,0],"data_offsets":[{},{}]}},)"
                        R"("one":{{"dtype":"BF16","shape":[],"data_offsets":[{},{}]}}}})",
                        at, at, at, at + 2);
  write_raw(path, header, size_t(at) + 2);
  const SafetensorsReader reader(path);
  for (const Row& row : rows) {
    CAPTURE(row.type);
    CHECK(reader.info(row.type).type == row.type);
    CHECK(reader.info(row.type).shape == std::vector<int64_t>{2, 1, 1, 1, 2});
    CHECK(reader.info(row.type).count() == 4);
    CHECK_THROWS_WITH(reader.shape(row.type),
                      Contains(path.string()) && Contains(row.type) && Contains("5 dimensions"));
    std::vector<float> values(4);
    if (row.readable)
      reader.read(row.type, 0, 4, values.data());
    else
      CHECK_THROWS_WITH(reader.read(row.type, 0, 4, values.data()),
                        Contains(path.string()) &&
                            Contains(fmt::format("tensor `{0}` has dtype {0}, which mtrain does "
                                                 "not compute with",
                                                 row.type)));
  }
  CHECK(reader.shape("one") == Shape{});
  CHECK(reader.shape("none") == Shape{3, 0});
  reader.read("none", 0, 0, nullptr);
}

TEST_CASE("runs of every float type are read as fp32, across pieces, and counted") {
  const TemporaryFolder folder;
  const auto path = folder / "floats.safetensors";
  const int64_t count = (1 << 18) + 77;  // several pieces of each type
  std::vector<float> values(size_t(count), 0.0f);
  fill_normal(1, 0, count, 1.0f, values.data());
  for (float& v : values) v = float(f16(float(bf16(v))));  // values that every type can hold
  const std::vector<double> wide(values.begin(), values.end());
  std::vector<bf16> brain;
  std::vector<f16> half;
  for (const float v : values) brain.emplace_back(v), half.emplace_back(v);
  SafetensorsWriter writer(path, {{"f64", DType::f64, {count}},
                                  {"f32", DType::f32, {count}},
                                  {"bf16", DType::bf16, {count}},
                                  {"f16", DType::f16, {count}}});
  writer.write("f64", {wide.data(), count, DType::f64});
  writer.write("f32", {values.data(), count, DType::f32});
  writer.write("bf16", {brain.data(), count, DType::bf16});
  writer.write("f16", {half.data(), count, DType::f16});
  writer.commit();
  const SafetensorsReader reader(path);
  for (const char* name : {"f64", "f32", "bf16", "f16"}) {
    CAPTURE(name);
    const int64_t before = reader.bytes_read();
    for (const auto& [first, n] :
         {std::pair<int64_t, int64_t>{0, count}, {count - 1, 1}, {77, count - 200}, {5, 0}}) {
      std::vector<float> got(static_cast<size_t>(n));
      reader.read(name, first, n, got.data());
      CHECK((got == std::vector<float>(values.begin() + first, values.begin() + first + n)));
    }
    CHECK(reader.bytes_read() - before ==
          (2 * count + 1 - 200) * dtype_size(*reader.info(name).dtype));
  }
  std::vector<float> one(1);
  CHECK_THROWS_AS(reader.read("f32", count, 1, one.data()), BugError);
  CHECK_THROWS_AS(reader.read("f32", -1, 1, one.data()), BugError);
}

TEST_CASE("a file that is truncated while it is open is a RunError with file and tensor") {
  const TemporaryFolder folder;
  const auto path = folder / "cut.safetensors";
  const std::vector<float> x(1000, 1.0f);
  SafetensorsWriter writer(path, {{"first", DType::f32, {1000}}, {"last", DType::f32, {1000}}});
  for (const char* name : {"first", "last"}) writer.write(name, {x.data(), 1000, DType::f32});
  writer.commit();
  const SafetensorsReader reader(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  std::vector<float> got(1000);
  reader.read("first", 0, 1000, got.data());
  CHECK_THROWS_AS(reader.read("last", 0, 1000, got.data()), RunError);
  CHECK_THROWS_WITH(reader.read("last", 0, 1000, got.data()),
                    Contains("cannot read tensor `last` of " + path.string()));
}

TEST_CASE("long runs are read by several threads as by one, and the first bad value is named") {
  const TemporaryFolder folder;
  const auto path = folder / "long.safetensors";
  const int64_t count = (1 << 20) + 77;
  std::vector<float> values(size_t(count), 0.0f);
  fill_normal(1, 0, count, 1.0f, values.data());
  for (float& v : values) v = float(bf16(v));
  const auto write = [&] {
    const std::vector<bf16> brain(values.begin(), values.end());
    SafetensorsWriter writer(path, {{"x", DType::bf16, {count}}});
    writer.write("x", {brain.data(), count, DType::bf16});
    writer.commit();
  };
  write();
  std::vector<float> got(static_cast<size_t>(count));
  {
    const SafetensorsReader reader(path);
    CHECK_FALSE(reader.finite());
    const FiniteValues finite(reader);
    CHECK(finite.finite());
    for (const auto& [first, n] :
         {std::pair<int64_t, int64_t>{0, count}, {3, count - 9}, {count - 1, 1}, {70000, 0}}) {
      const int64_t before = reader.bytes_read();
      finite.read("x", first, n, got.data());
      CHECK(std::equal(got.begin(), got.begin() + n, values.begin() + first));
      CHECK(reader.bytes_read() - before == 2 * n);
    }
    // The file becomes shorter while it is read.
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 400'000);
    CHECK_THROWS_AS(finite.read("x", 0, count, got.data()), RunError);
    CHECK_THROWS_WITH(finite.read("x", 0, count, got.data()),
                      Contains("cannot read tensor `x` of " + path.string()));
    finite.read("x", 0, count / 2, got.data());
  }
  values[size_t(count - 2)] = values[300'000] = std::numeric_limits<float>::infinity();
  values[299'999] = std::numeric_limits<float>::quiet_NaN();
  write();
  const SafetensorsReader reader(path);
  const FiniteValues finite(reader);
  finite.read("x", 0, 299'999, got.data());
  const std::string gist = path.string() + ": tensor `x` has nan as element 299999";
  for (int i = 0; i < 10; ++i)
    CHECK_THROWS_WITH(finite.read("x", 1, count - 1, got.data()), Contains(gist));
  CHECK_THROWS_AS(finite.read("x", 1, count - 1, got.data()), UserError);
  CHECK_THROWS_WITH(finite.read("x", 300'001, count - 300'001, got.data()),
                    Contains(fmt::format("inf as element {}", count - 2)));
}

TEST_CASE("every truncation of a file is refused") {
  const TemporaryFolder folder;
  const auto path = folder / "whole.safetensors", cut = folder / "cut.safetensors";
  const std::vector<float> x{1, 2, 3};
  SafetensorsWriter writer(path, {{"layers.0.weight", DType::f32, {3}}}, {{"k", "v"}});
  writer.write("layers.0.weight", {x.data(), 3, DType::f32});
  writer.commit();
  const std::string whole = read_file(path);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::ofstream(cut, std::ios::binary) << whole.substr(0, bytes);
    INFO(bytes);
    REQUIRE_THAT(complaint(cut), Contains("cut.safetensors"));
  }
  CHECK_THROWS_WITH(SafetensorsReader(path).info("layers.0.weigth"),
                    Contains("did it mean `layers.0.weight`?"));
}

TEST_CASE("a changed byte anywhere in the header never crashes the reader") {
  const TemporaryFolder folder;
  const auto path = folder / "fuzzed.safetensors";
  SafetensorsWriter writer(path, {{"a", DType::f32, {2, 3}}, {"b", DType::u8, {5}}});
  const std::vector<float> a(6);
  const std::vector<uint8_t> b(5);
  writer.write("a", {a.data(), 6, DType::f32});
  writer.write("b", {b.data(), 5, DType::u8});
  writer.commit();
  const std::string whole = read_file(path);
  const size_t header = whole.size() - 29;
  int refused = 0, tried = 0;
  for (size_t at = 0; at < header; ++at) {
    for (const char change : {'\0', '"', '9', '}', '\xff'}) {
      std::string damaged = whole;
      if (damaged[at] == change) continue;
      damaged[at] = change;
      std::ofstream(path, std::ios::binary) << damaged;
      ++tried;
      refused += complaint(path) != "(none)";  // anything but a UserError fails the test
    }
  }
  // The files that pass have a changed name, or a padding blank that stays a blank.
  CHECK(refused > tried * 8 / 10);
}

TEST_CASE("training state keeps its values and refuses unknown ones") {
  const TemporaryFolder folder;
  const auto path = folder / "state.json";
  TrainState state;
  state.set("step", 120);
  state.set("seed", int64_t(INT64_MAX));
  state.set("plan", "512x512 onednn\n\"q\"");
  state.save(path);
  const TrainState back = TrainState::load(path);
  CHECK(back.integer("step") == 120);
  CHECK(back.integer("seed") == INT64_MAX);
  CHECK(back.text("plan") == "512x512 onednn\n\"q\"");
  CHECK_FALSE(back.contains("epoch"));
  CHECK_THROWS_WITH(back.integer("epoch"), Contains("state.json has no `epoch`"));
  CHECK_THROWS_WITH(back.integer("plan"), Contains("`plan` is not an integer"));
  CHECK_THROWS_AS(back.text("step"), UserError);

  const auto refuses = [&](const char* text, const char* reason) {
    std::ofstream(path) << text;
    CHECK_THROWS_WITH(TrainState::load(path), Contains("state.json") && Contains(reason));
  };
  refuses("", "not JSON at byte 1");
  refuses("{\"format\":1,", "not JSON at byte 13");
  refuses("[]", "not a JSON object");
  refuses("{}", "no format number");
  refuses("{\"format\":3,\"values\":{}}", "has format 3; this mtrain reads formats 1 and 2");
  refuses("{\"format\":1}", "no values");
  refuses("{\"format\":1,\"values\":{\"a\":[1]}}", "`a` is neither");
  CHECK_THROWS_AS(TrainState::load(folder / "absent.json"), UserError);

  state.needs_samples();
  state.save(path);
  CHECK_THAT(read_file(path), Contains("\"format\": 2"));
  CHECK(TrainState::load(path).integer("step") == 120);
}

}  // namespace storage_safetensors_test
