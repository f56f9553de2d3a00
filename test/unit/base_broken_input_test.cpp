// Broken input gives an error message: no JSON and no kind of file crashes, hangs or fills memory.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cstring>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/regular_file.h"
#include "test/support/temporary_folder.h"

namespace base_broken_input_test {

using namespace mtrain;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string repeat(std::string_view text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("JSON of any depth is refused at the byte where it is too deep") {
  constexpr int kDeep = 100'000;
  const struct {
    std::string text;
    const char* at;
  } rows[] = {{repeat("[", kDeep) + repeat("]", kDeep), "byte 65"},
              {repeat("[", kDeep), "byte 65"},
              {repeat("{\"a\":", kDeep) + "1" + repeat("}", kDeep), "byte 321"},
              {repeat("[{\"a\":", kDeep), "byte 193"},
              {"{\"a\\\"[\":" + repeat("[", kDeep), "byte 72"},
              {"[[]," + repeat("[", 64), "byte 68"}};
  for (const auto& row : rows) {
    CHECK_THROWS_AS(parse_json(row.text, "x.json"), UserError);
    CHECK_THROWS_WITH(parse_json(row.text, "x.json"),
                      Contains("x.json: not JSON at " + std::string(row.at) + ": nested"));
    CHECK_THROWS_WITH(parse_json_objects(row.text, "x.json", [](size_t, json&) { return true; }),
                      Contains("nested"));
  }
  CHECK(parse_json(repeat("[", 64) + repeat("]", 64), "x").is_array());
  CHECK_THROWS_WITH(parse_json(R"({"\u001b]0;x\u0007":1,"\u001b]0;x\u0007":2})", "x.json"),
                    Contains("the key `?]0;x?` is given twice"));
  CHECK(parse_json("\"" + repeat("[\\\"{", 100) + "\"", "x").is_string());
  CHECK(parse_json("[" + repeat("[[]],", 100) + "1]", "x").size() == 101);
}

TEST_CASE("every mistake in JSON has one form, which names the file and the byte") {
  const struct {
    const char *text, *gist;
  } rows[] = {{"", "byte 1: unexpected end of input"},
              {"{\"a\":", "byte 6: unexpected end of input"},
              {"{\"a\" 1}", "byte 6: unexpected number literal"},
              {"[1] 2", "byte 5: unexpected number literal"},
              {"[1e999]", "byte 6: a number is too large"},
              {"[NaN]", "byte 2: invalid literal"},
              {"\"\xff\"", "byte 2: invalid string: ill-formed UTF-8 byte"},
              {"\"\\ud800\"", "byte 8: invalid string"}};
  for (const auto& row : rows) {
    INFO(row.text);
    CHECK_THROWS_AS(parse_json(row.text, "a/x.json"), UserError);
    CHECK_THROWS_WITH(parse_json(row.text, "a/x.json"),
                      Contains("a/x.json: not JSON at " + std::string(row.gist)));
  }
  // The message itself must be short.
  try {
    parse_json("[" + repeat("x", 1 << 20), "x");
    FAIL("taken");
  } catch (const UserError& e) {
    CHECK(std::string(e.what()).size() < 300);
  }
  CHECK_THROWS_WITH(parse_json("{\"m\":{\"v\":[{\"a\":1,\"b\":2,\"a\":3}]}}", "x"),
                    Contains("x: the key `m.v.a` is given twice"));
}

TEST_CASE("JSON of too many values is refused before it fills the memory") {
  CHECK_THROWS_WITH(parse_json("[" + repeat("[],", (1 << 22) + 1) + "1]", "x"),
                    Contains("x: it has more than 4194304 values"));
  int taken = 0;
  parse_json_objects("[" + repeat("{},", 1 << 18) + "{\"a\":{}}]", "x", [&](size_t depth, json& j) {
    CHECK(j.size() <= 1);
    taken += depth == 1;
    return depth == 1;
  });
  CHECK(taken == (1 << 18) + 1);
}

TEST_CASE("JSON gives the values that nlohmann's own parser gives") {
  for (const char* text :
       {"1", "-7", "1.5e3", "18446744073709551615", "\"a\\u00e9\\n\"", "null", "[]", "{}",
        "[true,false,null,[1,[2]],{\"b\":[{\"c\":1}],\"a\":{\"x\":\"y\"}}]", " {\"a\" : [ ] } \n",
        "\xEF\xBB\xBF{\"a\":1}"})
    CHECK(parse_json(text, "x") == json::parse(text));
}

TEST_CASE("files that are not regular are refused by name, and never block") {
  const TemporaryFolder folder;
  const fs::path pipe = folder / "pipe", socket = folder / "socket", link = folder / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, link);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(socket.string().size() < sizeof(address.sun_path));
  std::strcpy(address.sun_path, socket.c_str());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const struct {
    fs::path path;
    const char* kind;
  } rows[] = {{pipe, "a pipe"},          {link, "a pipe"},          {socket, "a socket"},
              {"/dev/zero", "a device"}, {"/dev/null", "a device"}, {folder.path, "a folder"}};
  for (const auto& [path, kind] : rows) {
    const auto refused = Contains(path.string() + " is not a regular file, but " + kind);
    CHECK_THROWS_AS(open_regular_file(path), UserError);
    CHECK_THROWS_WITH(read_regular_file(path, 100), refused);
    CHECK_THROWS_WITH(read_file(path), refused);
    CHECK_THROWS_WITH(read_json(path), refused);
    CHECK_THROWS_WITH(MappedFile(path), refused);
    CHECK_THROWS_WITH(RandomAccessFile(path), refused);
  }
  ::close(fd);
}

TEST_CASE("a file that is larger than its kind can be is refused before it is read") {
  const TemporaryFolder folder;
  const fs::path path = folder / "huge";
  write_file_atomic(path, "{}");
  CHECK(read_regular_file(path, 2) == "{}");
  CHECK_THROWS_WITH(read_regular_file(path, 1), Contains("huge has 2 B"));
  fs::resize_file(path, uint64_t{1} << 40);
  CHECK_THROWS_WITH(read_json(path), Contains("huge has 1.00 TiB") && Contains("128 MiB"));
  CHECK_THROWS_WITH(read_file(path), Contains("huge has 1.00 TiB"));
  CHECK_FALSE(read_regular_file("/proc/self/status", 1 << 20).empty());  // its reported size is 0
}

}  // namespace base_broken_input_test
