// Tests that lines of metrics which are parsed quickly give what the full parser gives.
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "observe/metrics_reader.h"

namespace observe_parser_test {

using namespace mtrain;
using namespace mtrain::observe;

namespace {

// The record as text, or "error".
std::string text_of(const MetricsRecord& record) {
  std::string text = fmt::format("{} {}", record.step, record.evaluation);
  for (const auto& [key, value] : record.values)
    text += fmt::format(" {}={}", key, std::isnan(value) ? "nan" : fmt::format("{}", value));
  return text;
}
template <class Parse>
std::string result_of(const Parse& parse, const std::string& line) {
  try {
    return text_of(parse(line));
  } catch (const UserError&) {
    return "error";
  }
}

}  // namespace

TEST_CASE("a parser that knows the line before gives the same records as one that does not") {
  const std::vector<std::string> values{
      "1",      "-1",    "0",    "0.5",   "1e5",   "-2.5E-3", "null",  "123456789012345678",
      "1e-400", "1e400", "01",   "1.",    ".5",    "+1",      "1.e5",  "nan",
      "inf",    "-",     "true", "\"x\"", "[1,2]", "{}",      "1 ",    " 1",
      "--1",    "0x10",  "1e",   "",      "-0",    "1.5,",    "null,", "nullx"};
  const std::vector<std::string> shapes{R"({"step":@,"loss":@,"a.b":@})",
                                        R"({"loss":@,"step":@,"a.b":@})",
                                        R"({"step":@,"validation_loss":@})",
                                        R"({"step":@})",
                                        R"({"step":@,"loss":@,"loss":@})",
                                        R"({"step":@,"l\u006fss":@})",
                                        R"({"step":@,"loss":@)",
                                        R"({"step":@,"loss":@}})"};
  RecordParser parser;
  int64_t valid = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    // Mostly the same shape with a valid number, as files have it.
    const bool usual = uniform_below(1, i, 3) > 0;
    std::string line = shapes[usual ? 0 : uniform_below(2, i, shapes.size())];
    for (uint64_t n = 0; line.find('@') != std::string::npos; ++n) {
      const uint64_t most = usual && uniform_below(3, i, 4) > 0 ? 7 : values.size();
      line.replace(line.find('@'), 1,
                   n == 0 && usual ? std::to_string(i) : values[uniform_below(4 + n, i, most)]);
    }
    INFO(line);
    const std::string want =
        result_of([](const std::string& l) { return parse_metrics_record(l); }, line);
    REQUIRE(result_of([&](const std::string& l) { return parser.parse(l); }, line) == want);
    valid += want != "error";
  }
  CHECK(valid > 8000);
}

}  // namespace observe_parser_test
