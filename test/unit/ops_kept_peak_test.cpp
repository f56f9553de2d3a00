// Tests the highest peak of a host, which is kept between runs.
#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "ops/kept_peak.h"
#include "test/support/temporary_folder.h"

namespace ops_kept_peak_test {

using namespace mtrain;
using namespace mtrain::ops;
namespace fs = std::filesystem;

namespace {

// Sets a variable of the environment, or unsets it, until the scope ends.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("kept peak: a higher measurement replaces the kept one, a lower one does not") {
  const TemporaryFolder folder;
  const fs::path file = folder.path / "cache" / "mtrain" / "cpu_peaks";
  CHECK(keep_peak(file, "a, f32", 2e11) == 2e11);
  CHECK(keep_peak(file, "a, f32", 1e11) == 2e11);
  CHECK(keep_peak(file, "a, bf16", 1e11) == 1e11);  // each key has its own
  CHECK(keep_peak(file, "a, f32", 3e11) == 3e11);
  CHECK(keep_peak(file, "a, f32", 1) == 3e11);
  CHECK(keep_peak(file, "a, bf16", 1) == 1e11);
  CHECK(keep_peak(file, "a, f32", 0) == 3e11);  // nothing was measured now
}

TEST_CASE("kept peak: a file that cannot be read or written is not an error") {
  const TemporaryFolder folder;
  CHECK(keep_peak(std::nullopt, "a", 5) == 5);
  // The parent is a file, and the path is a folder.
  std::ofstream(folder.path / "plain") << "x";
  CHECK(keep_peak(folder.path / "plain" / "cpu_peaks", "a", 5) == 5);
  fs::create_directories(folder.path / "taken" / "inside");
  CHECK(keep_peak(folder.path / "taken", "a", 5) == 5);
  // Invalid lines are skipped, and the others are read.
  const fs::path file = folder.path / "cpu_peaks";
  std::ofstream(file) << "\nnan a\ninf a\n-3 a\n1e99 a\nabc a\n12x a\n7\n9 b\n8 b\n";
  CHECK(keep_peak(file, "a", 5) == 5);
  CHECK(keep_peak(file, "b", 5) == 9);
  CHECK(read_file(file) == "5 a\n9 b\n");
}

TEST_CASE("kept peak: the file is in the user's cache folder") {
  {
    const Variable xdg("XDG_CACHE_HOME", "/x"), home("HOME", "/h");
    CHECK(kept_peaks_file() == "/x/mtrain/cpu_peaks");
  }
  {
    const Variable xdg("XDG_CACHE_HOME", "relative"), home("HOME", "/h");
    CHECK(kept_peaks_file() == "/h/.cache/mtrain/cpu_peaks");
  }
  const Variable xdg("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
  CHECK(!kept_peaks_file());
}

TEST_CASE("kept peak: the key distinguishes threads and types") {
  CHECK(peak_key(1, DType::f32) != peak_key(2, DType::f32));
  CHECK(peak_key(1, DType::f32) != peak_key(1, DType::bf16));
  CHECK(peak_key(1, DType::f32).find('\n') == std::string::npos);
}

}  // namespace ops_kept_peak_test
