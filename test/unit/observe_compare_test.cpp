// Two runs are compared step by step.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "observe/compare_runs.h"
#include "test/support/temporary_folder.h"

namespace observe_compare_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;

namespace {

struct Written {
  TemporaryFolder folder;
  // Writes a run; `loss` gives the text of the loss of a step.
  template <class Loss>
  std::filesystem::path run(const std::string& name, int from, int to, const Loss& loss,
                            const std::string& more = "") const {
    std::ofstream out(folder / name);
    for (int step = from; step <= to; ++step)
      out << fmt::format("{{\"step\":{},\"loss\":{}{}}}\n", step, std::string(loss(step)), more);
    return folder / name;
  }
};

std::string falling(int step) { return fmt::format("{}", 4.0 / step); }

}  // namespace

TEST_CASE("equal runs agree in all steps that both have") {
  const Written w;
  const auto a = w.run("a", 1, 9, falling), b = w.run("b", 4, 12, falling);
  const RunComparison c = compare_runs(a, b, {}, 0);
  CHECK(c.within());
  CHECK(c.common_steps == 6);
  CHECK(c.first_step == 4);
  CHECK(c.last_step == 9);
  REQUIRE(c.keys.size() == 1);
  CHECK(c.keys[0].key == "loss");
  CHECK(c.keys[0].largest->difference == 0);
}

TEST_CASE("the first step beyond the tolerance is found, and the largest difference") {
  const Written w;
  const auto a = w.run("a", 1, 9, falling);
  const auto b = w.run("b", 1, 9, [](int step) {
    const double factor = step == 4 ? 1.0005 : step == 6 ? 1.01 : step == 8 ? 0.96 : 1;
    return fmt::format("{}", 4.0 / step * factor);
  });
  const KeyComparison key = compare_runs(a, b, {"loss"}, 1e-3).keys.at(0);
  REQUIRE(key.first);
  CHECK(key.first->step == 6);
  CHECK(key.first->a == Approx(4.0 / 6));
  CHECK(key.first->difference == Approx(0.01 / 1.01));
  CHECK(key.largest->step == 8);
  CHECK(key.largest->difference == Approx(0.04));
  CHECK(compare_runs(a, b, {"loss"}, 0.05).within());
}

TEST_CASE("a value that is not finite agrees with none, not even with itself") {
  const Written w;
  const auto nan_at_3 = [](int step) { return step == 3 ? "null" : falling(step); };
  const auto a = w.run("a", 1, 5, nan_at_3), b = w.run("b", 1, 5, falling);
  for (const auto& other : {a, b}) {
    const RunComparison c = compare_runs(a, other, {}, 1e9);
    CHECK_FALSE(c.within());
    CHECK(c.keys[0].first->step == 3);
    CHECK(c.keys[0].largest->difference == 0);
  }
}

TEST_CASE("the later record of a step counts, and a torn line does not") {
  const Written w;
  const auto a = w.run("a", 1, 5, falling), b = w.run("b", 1, 3, falling);
  std::ofstream(b, std::ios::app) << "{\"step\":2,\"loss\":7}\n{\"step\":3,\"lo";
  const KeyComparison key = compare_runs(a, b, {}, 1e-5).keys.at(0);
  CHECK(key.compared == 2);
  CHECK(key.first->step == 2);
  CHECK(key.first->b == 7);
}

TEST_CASE("speed is compared by medians of common steps, memory by peaks of the same ranks") {
  const Written w;
  const auto a = w.run("a", 1, 5, falling,
                       ",\"step_ms\":10,\"tokens_per_s\":200,\"memory_peak\":1073741824,"
                       "\"memory_peak.max\":4294967296"),
             b = w.run("b", 1, 5, falling,
                       ",\"step_ms\":20,\"tokens_per_s\":null,\"memory_peak\":2147483648");
  const auto figures = compare_runs(a, b, {}, 0).figures;
  REQUIRE(figures.size() == 3);
  CHECK(std::isnan(figures[0].ratio()));
  CHECK(figures[1].ratio() == 2);
  CHECK(figures[2].key == "memory_peak");  // b does not have that of all ranks
  CHECK(figures[2].a == 1);
  CHECK(figures[2].b == 2);
  CHECK(compare_runs(a, a, {}, 0).figures[2].a == 4);
}

TEST_CASE("validation losses are compared if there are any, and other keys by name") {
  const Written w;
  const auto a = w.run("a", 1, 3, falling), b = w.run("b", 1, 3, falling);
  std::ofstream(a, std::ios::app) << "{\"step\":3,\"validation_loss\":2}\n";
  const RunComparison one = compare_runs(a, b, {}, 0);
  REQUIRE(one.keys.size() == 2);
  CHECK(one.within());  // only a has evaluated
  CHECK((one.keys[1].in_a == 1 && one.keys[1].in_b == 0 && one.keys[1].compared == 0));
  std::ofstream(b, std::ios::app) << "{\"step\":3,\"validation_loss\":3}\n";
  CHECK(compare_runs(a, b, {}, 0).keys[1].first->step == 3);
  CHECK_THROWS_WITH(compare_runs(a, b, {"lss"}, 0), Contains("did you mean loss?"));
}

TEST_CASE("runs without a common step, and empty files, are errors") {
  const Written w;
  const auto a = w.run("a", 1, 3, falling, ",\"step_ms\":1"),
             b = w.run("b", 4, 6, falling, ",\"step_ms\":1");
  CHECK_THROWS_WITH(compare_runs(a, b, {}, 0), Contains("no step in common") &&
                                                   Contains("steps 1 to 3") &&
                                                   Contains("steps 4 to 6"));
  std::ofstream(w.folder / "empty");
  CHECK_THROWS_WITH(compare_runs(a, w.folder / "empty", {}, 0), Contains("is empty"));
}

}  // namespace observe_compare_test
