// Tests the files of ranks' output: their lines, and which files are kept.
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "launch/log_file.h"
#include "test/support/temporary_folder.h"

namespace launch_log_file_test {

using namespace mtrain;
namespace fs = std::filesystem;
using launch::LogFile;

TEST_CASE("a file of output is changed at the end of a line, and the last five are kept") {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "stdout.log";
  std::string all;
  {
    LogFile file(path, 1000);
    // Pieces that end within lines, as a pipe gives them.
    std::string text;
    for (int i = 0; i < 1000; ++i) text += fmt::format("line {}\n", i);
    for (size_t at = 0; at < text.size(); at += 37) CHECK(file.write(text.substr(at, 37)).empty());
    all = text;
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path))
    names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"stdout.log", "stdout.log.1", "stdout.log.2", "stdout.log.3",
                                       "stdout.log.4"});
  std::string kept;
  for (const char* suffix : {".4", ".3", ".2", ".1", ""}) {
    const std::string text = read_file(path.string() + suffix);
    CHECK(text.size() <= 1010);
    CHECK((text.empty() || text.ends_with('\n')));
    CHECK((text.empty() || text.starts_with("line ")));
    kept += text;
  }
  CHECK(all.ends_with(kept));
  CHECK(kept.size() > 4000);
}

TEST_CASE("a short output is one file, and a file that exists is refused") {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "stderr.log";
  {
    LogFile file(path, 1000);
    CHECK(file.write("a\n").empty());
    CHECK(file.write("b").empty());
  }
  CHECK(read_file(path.string()) == "a\nb");
  CHECK_FALSE(fs::exists(path.string() + ".1"));
  CHECK_THROWS_AS(LogFile(path), UserError);
}

TEST_CASE("a file that cannot be written any more is reported once") {
  const TemporaryFolder folder;
  LogFile file(folder.path / "x.log", 10);
  CHECK(file.write("0123456789\n").empty());
  fs::remove_all(folder.path);
  const std::string why = file.write("0123456789\n");
  CHECK_FALSE(why.empty());
  CHECK(file.write("0123456789\n").empty());
}

}  // namespace launch_log_file_test
