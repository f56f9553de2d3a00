// The report is one page, of a bounded size, with values of metrics.jsonl alone.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "observe/envelope.h"
#include "observe/report.h"
#include "test/support/temporary_folder.h"

namespace observe_report_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Returns the data of a page, as its script reads them.
json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin);
  REQUIRE(at != std::string::npos);
  const size_t end = page.find("</script>", at);
  return json::parse(page.substr(at + begin.size(), end - at - begin.size()));
}

// Returns the points of a series of the page; null is NaN.
std::map<int64_t, double> points_of(const json& series) {
  std::map<int64_t, double> points;
  int64_t step = 0;
  for (size_t i = 0; i < series["x"].size(); ++i) {
    step += series["x"][i].get<int64_t>();
    points[step] = series["y"][i].is_null() ? kNan : series["y"][i].get<double>();
  }
  return points;
}

std::string page_of(const std::vector<RunFile>& runs) { return report_html({.runs = runs}); }

fs::path write(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST_CASE("a short curve keeps every point, and a long one its extremes and ends") {
  for (const int64_t count : {1, 7, 64, 65, 1000, 100000}) {
    CAPTURE(count);
    Envelope curve(64);
    const auto value = [&](int64_t step) {
      if (step == count / 3) return 1e6;
      if (step == count / 2) return -1e6;
      return double((step * 7919) % 1000);
    };
    for (int64_t step = 1; step <= count; ++step) curve.add(step, value(step));
    const Series points = curve.points();
    CHECK(points.steps.size() <= 2 * 64 + 2);
    CHECK(points.steps.front() == 1);
    CHECK(points.steps.back() == count);
    if (count <= 63) CHECK(points.steps.size() == size_t(count));
    for (size_t i = 0; i < points.steps.size(); ++i) {
      CHECK(points.values[i] == value(points.steps[i]));
      if (i > 0) CHECK(points.steps[i] > points.steps[i - 1]);
    }
    if (count < 7) continue;
    CHECK(std::ranges::count(points.values, 1e6) == 1);
    CHECK(std::ranges::count(points.values, -1e6) == 1);
    CHECK(curve.count() == count);
    curve.shrink_to(8);
    CHECK(curve.points().steps.size() <= 2 * 8 + 2);
    CHECK(std::ranges::count(curve.points().values, 1e6) == 1);
  }
}

TEST_CASE("a value that is not finite stays a gap of the curve") {
  Envelope curve(16);
  for (int64_t step = 1; step <= 5000; ++step) curve.add(step, step == 4321 ? kNan : 1.0);
  const Series points = curve.points();
  const auto gap = std::ranges::find(points.steps, 4321);
  REQUIRE(gap != points.steps.end());
  CHECK(std::isnan(points.values[size_t(gap - points.steps.begin())]));
  CHECK(curve.not_finite() == 1);
}

TEST_CASE("steps that a run repeats replace the earlier ones") {
  Envelope curve(1000);
  for (int64_t step = 1; step <= 50; ++step) curve.add(step, 1);
  curve.cut_from(31);
  CHECK(curve.points().steps.back() == 30);
  for (int64_t step = 31; step <= 40; ++step) curve.add(step, 2);
  const Series points = curve.points();
  REQUIRE(points.steps.size() == 40);
  CHECK(points.values[29] == 1);
  CHECK(points.values[30] == 2);
  CHECK(curve.count() == 40);
  curve.cut_from(1);
  CHECK(curve.empty());
  CHECK(curve.count() == 0);
  CHECK(curve.points().empty());
}

TEST_CASE("values that were cut are not counted, and gaps are not counted twice") {
  for (const size_t ranges : {1000, 16}) {
    Envelope curve(ranges);
    for (int repeat = 0; repeat < 3; ++repeat) {
      curve.cut_from(11);
      for (int64_t step = repeat == 0 ? 1 : 11; step <= 100; ++step)
        curve.add(step, step == 5 || step == 50 ? NAN : 1);
    }
    CAPTURE(ranges);
    CHECK(curve.count() == 100);
    CHECK(curve.not_finite() == 2);
  }
}

TEST_CASE("a page has the values of metrics.jsonl, and NaN as gaps") {
  const TemporaryFolder folder;
  std::string text;
  for (int step = 1; step <= 300; ++step) {
    text += fmt::format(
        "{{\"step\":{},\"loss\":{},\"step_ms\":{},\"total_steps\":400,\"tokens\":5,"
        "\"comm.tp.exposed_ms\":1.5,\"compute.busy_ms.max_rank\":{}}}\n",
        step, step == 9 ? "null" : fmt::format("{}", 1.0 / step), 0.1 * step, step % 3);
    if (step % 100 == 0) text += fmt::format("{{\"step\":{},\"validation_loss\":2.5}}\n", step);
  }
  write(folder / "a", text + "{\"step\":301,\"lo");
  const json data = data_of(page_of({{.name = "runs/a", .path = folder / "a"}}));
  const json& run = data["runs"][0];
  CHECK(run["name"] == "runs/a");
  CHECK(run["last_step"] == 300);
  CHECK(run["total_steps"] == 400);
  CHECK(run["last"]["loss"] == 1.0 / 300);
  const auto loss = points_of(run["series"]["loss"]);
  REQUIRE(loss.size() == 300);
  for (const auto& [step, value] : loss)
    CHECK((step == 9 ? std::isnan(value) : value == 1.0 / double(step)));
  CHECK(run["series"]["loss"]["nan"] == 1);
  CHECK(points_of(run["series"]["step_ms"]).at(7) == 0.1 * 7);
  CHECK(points_of(run["series"]["validation_loss"]).size() == 3);
  CHECK(points_of(run["series"]["comm.tp.exposed_ms"]).at(300) == 1.5);
  CHECK_FALSE(run["series"].contains("tokens"));
  CHECK(run["slowest"] == json::parse(R"([{"rank":0,"steps":100},{"rank":1,"steps":100},
                                          {"rank":2,"steps":100}])"));
}

TEST_CASE("a report shows at which steps a run was started, and what was lost") {
  const TemporaryFolder folder;
  std::string text;
  const auto record = [&](int step, double time, double elapsed) {
    text += fmt::format("{{\"step\":{},\"loss\":1,\"time\":{},\"elapsed_s\":{}}}\n", step, time,
                        elapsed);
  };
  for (int step = 1; step <= 10; ++step) record(step, 1000 + step, step);
  for (int step = 11; step <= 20; ++step) record(step, 1090 + step, step - 10);
  record(21, 2000, 300);  // its process has not written a record before
  const fs::path file = write(folder / "a", text);
  const json starts = data_of(page_of({{.name = "a", .path = file}}))["runs"][0]["starts"];
  REQUIRE(starts.size() == 3);
  CHECK(starts[0] == json{{"step", 1}, {"time", 1000}, {"gap_s", nullptr}});
  CHECK(starts[1] == json{{"step", 11}, {"time", 1100}, {"gap_s", 91}});
  CHECK(starts[2] == json{{"step", 21}, {"time", 1700}, {"gap_s", 890}});
}

TEST_CASE("texts of runs and recipes cannot end the script that holds them") {
  const TemporaryFolder folder;
  const std::string evil = "</script><script>alert(\"'&\")</script><!--\xff\u2028";
  const fs::path file = write(folder / "a", "{\"step\":1,\"loss\":1}\n");
  const std::string page =
      report_html({.runs = {{.name = evil, .path = file}, {.name = "b", .path = file}},
                   .settings = {{.setting = evil, .values = {evil, "b"}}},
                   .settings_note = evil});
  CHECK(page.find("<script>alert") == std::string::npos);
  CHECK(page.find("<!--\xff") == std::string::npos);
  const json data = data_of(page);
  CHECK_THAT(data["runs"][0]["name"].get<std::string>(), Catch::StartsWith("</script><script>"));
  CHECK_THAT(data["settings"][0]["values"][0].get<std::string>(), Contains("\"'&\""));
  // Two scripts, and the data.
  size_t scripts = 0;
  for (size_t at = 0; (at = page.find("</script", at)) != std::string::npos; ++at) ++scripts;
  CHECK(scripts == 3);
  CHECK(for_script("{\"a\":\"<b></b>\"}") == "{\"a\":\"\\u003cb>\\u003c/b>\"}");
}

TEST_CASE("a page has the lanes and bars that it is given, and stays small") {
  const TemporaryFolder folder;
  const RunFile run{.name = "a", .path = write(folder / "a", "{\"step\":1,\"loss\":1}\n")};
  ReportLanes lanes{.title = "Streams", .note = "</script>", .ms = 12.5};
  lanes.lanes.push_back({.name = "0 compute", .cells = "mm-.", .boxes = {}});
  lanes.lanes.push_back({.name = "rank 1",
                         .cells = "",
                         .boxes = {{.begin_ms = 0.25, .end_ms = kNan, .kind = "F", .text = "3"}}});
  lanes.legend = {{"m", "matmul"}};
  ReportBars bars{
      .title = "Steps", .axis = "rank", .unit = "ms", .note = "", .labels = {"0"}, .sets = {}};
  bars.sets = {{"mean", {1.5}}};
  const std::string page = report_html({.runs = {run}, .lanes = {lanes}, .bars = {bars}});
  const json data = data_of(page);
  CHECK(data["lanes"][0]["title"] == "Streams");
  CHECK(data["lanes"][0]["note"] == "</script>");
  CHECK(data["lanes"][0]["ms"] == 12.5);
  CHECK(data["lanes"][0]["legend"] == json::parse(R"([["m", "matmul"]])"));
  CHECK(data["lanes"][0]["lanes"][0]["cells"] == "mm-.");
  CHECK(data["lanes"][0]["lanes"][1]["boxes"] == json::parse(R"([[0.25, null, "F", "3"]])"));
  CHECK(data["bars"][0]["sets"] == json::parse(R"([{"name": "mean", "values": [1.5]}])"));
  CHECK(data_of(page_of({run}))["lanes"].empty());
}

TEST_CASE("a page loads nothing") {
  const TemporaryFolder folder;
  const std::string page =
      page_of({{.name = "a", .path = write(folder / "a", "{\"step\":1,\"loss\":1}\n")}});
  CHECK_THAT(page, Catch::StartsWith("<!DOCTYPE html>"));
  CHECK_THAT(page, Contains("default-src 'none'"));
  for (const char* loads : {" src=", "<link", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    CAPTURE(loads);
    CHECK(page.find(loads) == std::string::npos);
  }
}

TEST_CASE("a report of several runs has one without steps, but not only such runs") {
  const TemporaryFolder folder;
  const RunFile full{.name = "a", .path = write(folder / "a", "{\"step\":1,\"loss\":1}\n")},
      empty{.name = "b", .path = write(folder / "b", "")},
      torn{.name = "c",
           .path = write(folder / "c", "{\"step\":1,\"loss\":1}\nx\n{\"step\":2}\n{\"step\":3")};
  const json data = data_of(page_of({empty, full, torn}));
  CHECK(data["runs"][0]["notes"][0] == "no step yet");
  CHECK(data["runs"][1]["notes"].empty());
  REQUIRE(data["runs"][2]["notes"].size() == 1);
  CHECK(data["runs"][2]["notes"][0] == "damaged lines: 1");
  CHECK_THROWS_WITH(page_of({empty}), Contains("is empty"));
}

TEST_CASE("the page of many long curves is below 3 MB") {
  const TemporaryFolder folder;
  std::ofstream out(folder / "a");
  for (int64_t step = 1; step <= 20000; ++step) {
    out << fmt::format("{{\"step\":{}", step);
    for (int key = 0; key < 40; ++key)
      out << fmt::format(",\"moe.k{}\":{}", key, std::sin(double(step * (key + 1))));
    out << "}\n";
  }
  out.close();
  const RunFile run{.name = "a", .path = folder / "a"};
  CHECK(page_of({run}).size() < 3'000'000);
  CHECK(page_of({run, run, run, run, run, run}).size() < 3'000'000);
}

TEST_CASE("the page of many starts, keys and ranks is below 3 MB, and counts them") {
  const TemporaryFolder folder;
  std::ofstream out(folder / "a");
  for (int64_t step = 1; step <= 20000; ++step)
    out << fmt::format(
        "{{\"step\":{0},\"time\":{1},\"elapsed_s\":{2},\"moe.k{3}\":1,\"loss\":2,"
        "\"compute.busy_ms.max_rank\":{0}}}\n",
        step, 1000 + step, (step + 1) % 2, step % 1000);
  out.close();
  const RunFile run{.name = "a", .path = folder / "a"};
  const std::string page = page_of({run, run, run, run, run, run});
  CHECK(page.size() < 3'000'000);
  const json data = data_of(page)["runs"][0];
  CHECK(data["starts"].size() == 200);
  CHECK(data["starts"][0]["step"] == 1);
  CHECK(data["starts"][199]["step"].get<int64_t>() > 19990);
  CHECK(data["series"].size() <= 200);
  CHECK(data["slowest"].size() == 256);
  CHECK_THAT(data["notes"].dump(), Contains("starts, the first and last 100 shown") &&
                                       Contains("only 200 curves are drawn"));
}

TEST_CASE("pictures of many passes leave a page of long curves below 3 MB") {
  const TemporaryFolder folder;
  std::ofstream out(folder / "a");
  for (int64_t step = 1; step <= 20000; ++step) {
    out << fmt::format("{{\"step\":{}", step);
    for (int key = 0; key < 10; ++key)
      out << fmt::format(",\"moe.k{}\":{}", key, std::sin(double(step * (key + 1))));
    out << "}\n";
  }
  out.close();
  ReportLanes lanes{.title = "passes", .note = "", .ms = 1e5};
  for (int lane = 0; lane < 64; ++lane) {
    lanes.lanes.push_back({.name = "lane"});
    for (int box = 0; box < 312; ++box)
      lanes.lanes.back().boxes.push_back({.begin_ms = 300 * box + 1e3 / 7,
                                          .end_ms = 300 * box + 1e3 / 3,
                                          .kind = "F",
                                          .text = "7:1234"});
  }
  ReportInput input{.settings_note = "", .lanes = {lanes, lanes}};
  for (int i = 0; i < 6; ++i) input.runs.push_back({.name = "a", .path = folder / "a"});
  CHECK(report_html(input).size() < 3'000'000);
}

}  // namespace observe_report_test
