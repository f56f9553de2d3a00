#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/file.h"
#include "base/terminal.h"
#include "observe/curves.h"
#include "observe/metrics_csv.h"
#include "observe/metrics_reader.h"
#include "observe/watch.h"
#include "test/support/temporary_folder.h"

namespace observe_watch_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

// A run of `steps` steps whose loss falls from 6 towards `end`.
void write_run(const fs::path& path, int steps, double end, int evaluate_every) {
  std::string text;
  for (int step = 1; step <= steps; ++step) {
    const double loss = end + (6 - end) * 8 / (7 + step);
    text += fmt::format(
        "{{\"step\":{},\"loss\":{},\"step_ms\":500,\"tokens_per_s\":2048,\"total_steps\":200}}\n",
        step, loss);
    if (step % evaluate_every == 0)
      text += fmt::format("{{\"step\":{},\"validation_loss\":{}}}\n", step, loss + 0.25);
  }
  append(path, text);
}

std::string picture(const RunMetrics& run, CurveOptions options, const std::string& key = "loss",
                    bool live = false) {
  return watch_text({{.name = "runs/a", .metrics = &run, .live = live}}, key, options);
}

std::string csv_of(const std::vector<RunFile>& runs, const CsvOptions& options = {}) {
  std::string out;
  write_metrics_csv(runs, options, [&](std::string_view text) { out += text; });
  return out;
}

template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

int widest(const std::string& text) {
  int most = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    most = std::max(most, display_width(text.substr(at, end - at)));
    at = end + 1;
  }
  return most;
}

}  // namespace

TEST_CASE("the picture of a run has its curve, validation losses, axes and last figures") {
  const TemporaryFolder folder;
  write_run(folder / "m", 120, 2, 40);
  RunMetrics run(folder / "m", watched_keys("loss"));
  run.poll();
  CHECK(picture(run, {.columns = 60, .rows = 8}, "loss", true) == R"(loss and validation loss (o)
6.00 ┤⢱
     │⠈⡆
     │ ⠘⡄
     │  ⠣⡀
3.86 ┤   ⠘⠤⡀
     │     ⠈⠱⠤⣀
     │         ⠉⠑⠒⠤⠤⠤⣀⣀o
2.25 ┤                  ⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠒⠢⠤⠤⠤⠤⠤o⠤⠤⠤⠤⠤⠤⢤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀o
     └┬──────────────────────────┬─────────────────────────┬
   step 1                       60                       120
runs/a, training: step 120 of 200, loss 2.2520, best
  validation loss 2.5020 at step 120, 2.05K tok/s, ETA 40 s
)");
  CHECK(picture(run, {.columns = 80, .rows = 6, .braille = false}) ==
        R"(loss (*) and validation loss (o)
6.00 +*
     | **
     |  ***
     |     *****
     |          **************o**
2.25 +                           *********************o************************o
     ++-----------------------+------------------------+-----------------------+
   step 1                    41                       80                     120
runs/a: step 120 of 200, loss 2.2520, best validation loss 2.5020 at step 120,
  2.05K tok/s
)");
  const std::string wide = picture(run, {.columns = 200, .rows = 5});
  CHECK(wide == R"(loss and validation loss (o)
6.00 ┤⠑⠢⣀
     │   ⠉⠒⠤⣀⡀
     │       ⠈⠉⠒⠒⠒⠢⠤⣀⣀⣀⡀
     │                 ⠈⠉⠉⠑⠒⠒⠒⠒⠢⠤⠤⠤⠤⠤⠤⠤⢄⣀⣀⣀⣀⣀⣀⣀⡀
2.25 ┤                                         ⠈⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠒o⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠢⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤o⠤⠤⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀o
     └┬───────────────────────┬───────────────────────┬───────────────────────┬────────────────────────┬───────────────────────┬───────────────────────┬───────────────────────┬───────────────────────┬
   step 1                    16                      31                      46                       60                      75                      90                      105                    120
runs/a: step 120 of 200, loss 2.2520, best validation loss 2.5020 at step 120, 2.05K tok/s
)");
  CHECK(widest(wide) == 200);
}

TEST_CASE("two runs differ without color, and a color is only added") {
  const TemporaryFolder folder;
  write_run(folder / "a", 120, 2, 60);
  write_run(folder / "b", 80, 3, 40);
  RunMetrics a(folder / "a", watched_keys("loss")), b(folder / "b", watched_keys("loss"));
  a.poll();
  b.poll();
  const std::vector<WatchedRun> runs{{.name = "runs/a", .metrics = &a},
                                     {.name = "runs/b", .metrics = &b}};
  CurveOptions options{.columns = 60, .rows = 6};
  const std::string dots = watch_text(runs, "loss", options);
  CHECK(dots == R"(loss (A B) and validation loss (a b)
6.00 ┤⢱⡀
     │ ⢳⡄
     │  ⢫A⠤⣀⡀
     │   ⠈⠢⢄⡈⠑⠒⠒B⠤⠤⢄⣀⣀⣀b⣀⡀               b
     │      ⠈⠑⠒⠤⠤⣄⣀⣀     ⠈⠉⠉⠉B⠉⠉⠉⠉⠉⠉⠉⠑⠒⠒⠒B
2.25 ┤              ⠉⠉A⠉⠑⠒⠒⠒⠒⠒⠒⠢a⠤⠤⠤A⠤⠤⠤⠤⠤⠤⠤⠤⢄⣀⣀⣀A⣀⣀⣀⣀⣀⣀⣀⣀⣀a
     └┬──────────────────────────┬─────────────────────────┬
   step 1                       60                       120
A runs/a: step 120 of 200, loss 2.2520, best validation loss
  2.5020 at step 120, 2.05K tok/s
B runs/b: step 80 of 200, loss 3.2759, best validation loss
  3.5259 at step 80, 2.05K tok/s
)");
  options.braille = false;
  CHECK(watch_text(runs, "loss", options) == R"(loss (A B) and validation loss (a b)
6.00 +B
     |ABB
     |  BBBBB
     |    AABBBBBBBBBBBbBBBBBBB          b
     |       AAAAAAAAAAAAA     BaBBBBBBBBB
2.25 +                    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAa
     ++--------------------------+-------------------------+
   step 1                       60                       120
A runs/a: step 120 of 200, loss 2.2520, best validation loss
  2.5020 at step 120, 2.05K tok/s
B runs/b: step 80 of 200, loss 3.2759, best validation loss
  3.5259 at step 80, 2.05K tok/s
)");
  options.braille = true;
  options.color = true;
  std::string colored = watch_text(runs, "loss", options);
  CHECK_THAT(colored, Contains("\x1b[36m") && Contains("\x1b[33m"));
  for (size_t at; (at = colored.find('\x1b')) != std::string::npos;)
    colored.erase(at, colored.find('m', at) + 1 - at);
  CHECK(colored == dots);
}

TEST_CASE("a spike stays visible among a hundred thousand steps") {
  Series line;
  for (int step = 1; step <= 100'000; ++step) {
    line.steps.push_back(step);
    line.values.push_back(step == 50'000 ? 9 : 1);
  }
  const CurveOptions options{.columns = 60, .rows = 5, .braille = false};
  const std::string text = draw_curves({{.line = &line}}, options);
  CHECK_THAT(text.substr(0, text.find('\n')), Contains("9.00 +") && Contains("*"));
  CurveOptions last = options;
  last.last = 1000;
  CHECK_THAT(draw_curves({{.line = &line}}, last), Contains("step 99001") && Contains("100000"));
  CurveOptions smooth = options;
  smooth.smooth = 8;
  CHECK_THAT(draw_curves({{.line = &line}}, smooth), Contains("2.00 +"));  // (7 + 9) / 8
}

TEST_CASE("pictures of few, equal, huge and missing values are drawn") {
  const CurveOptions options{.columns = 40, .rows = 3, .braille = false};
  const auto draw = [&](std::vector<double> values, bool log = false) {
    Series line;
    for (size_t i = 0; i < values.size(); ++i) line.steps.push_back(int64_t(i));
    line.values = std::move(values);
    CurveOptions o = options;
    o.log = log;
    const std::string text = draw_curves({{.line = &line}}, o);
    CHECK(widest(text) <= 40);
    return text;
  };
  CHECK(draw({}) == "there is no value to draw\n");
  CHECK(draw({kNan, INFINITY}) == "there is no value to draw\n");
  CHECK(draw({-1, 0}, true) == "there is no value to draw\n");
  CHECK_THAT(draw({3}), Contains("*"));
  CHECK_THAT(draw({0, 0, 0}), Contains("*********"));
  CHECK_THAT(draw({1e299, -1e299}), Contains("1.000e+299"));
  CHECK_THAT(draw({1e-9, 2e-9}), Contains("2.000e-09"));
  CHECK_THAT(draw({1, 10, 100}, true), Contains("1 +") && Contains("100 +"));
  // No line crosses a gap.
  CHECK_THAT(draw({1, 1, kNan, 1, 1}), Contains("*********               *********"));
}

TEST_CASE("values that cannot be drawn are counted") {
  const TemporaryFolder folder;
  append(folder / "m",
         "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":0}\n");
  RunMetrics run(folder / "m", watched_keys("loss"));
  run.poll();
  CHECK_THAT(picture(run, {}), Contains("NaN: 1 of 3 values") && !Contains("up to 0"));
  CHECK_THAT(picture(run, {.columns = 100, .log = true}),
             Contains("not drawn, since not above 0: 1"));
  CHECK_THAT(picture(run, {}, "loss", true), Contains("runs/a, training: step 3, loss 0.0000"));
}

TEST_CASE("where a step stands twice, the later record wins") {
  const TemporaryFolder folder;
  for (int step = 1; step <= 6; ++step)
    append(folder / "m", fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step));
  append(folder / "m", "{\"step\":6,\"validation_loss\":1}\n{\"step\":4,\"validation_loss\":5}\n");
  append(folder / "m", "{\"step\":4,\"loss\":44}\n{\"step\":5,\"loss\":55}\n");
  RunMetrics run(folder / "m", watched_keys("loss"));
  run.poll();
  CHECK(run.series("loss").steps == std::vector<int64_t>{1, 2, 3, 4, 5});
  CHECK(run.series("loss").values == std::vector<double>{1, 2, 3, 44, 55});
  CHECK(run.series("validation_loss").empty());
  CHECK(run.last_step() == 5);
  CHECK(csv_of({{"m", folder / "m"}}) ==
        "step,loss,validation_loss\n1,1,\n2,2,\n3,3,\n4,44,\n5,55,\n");
}

TEST_CASE("a file that grows is read further, and a replaced file from its beginning") {
  const TemporaryFolder folder;
  const fs::path path = folder / "m";
  append(path, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"lo");
  RunMetrics run(path, {"loss"});
  const auto values = [&] {
    run.poll();
    return run.series("loss").values;
  };
  CHECK(values() == std::vector<double>{1});
  append(path, "ss\":2}\n\n{\"step\":3,\"loss\":3}");  // no newline yet
  CHECK(values() == std::vector<double>{1, 2, 3});
  append(path, "\n{\"step\":4,\"loss\":4}\n");
  CHECK(values() == std::vector<double>{1, 2, 3, 4});
  CHECK(run.stream().damaged_count() == 0);
  write_file_atomic(path, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":22}\n");
  CHECK(values() == std::vector<double>{1, 22});
  std::ofstream(path) << "{\"step\":1,\"loss\":7}\n";
  CHECK(values() == std::vector<double>{7});
  CHECK(run.last_step() == 1);
}

TEST_CASE("damaged lines are passed over by number, the last one silently") {
  const TemporaryFolder folder;
  const fs::path path = folder / "m";
  append(path, "{\"step\":1,\"loss\":1}\n{\"step\":2,\n[3]\n{\"loss\":4}\n" +
                   std::string(3 << 20, 'x') + "\n{\"step\":6,\"loss\":6}\n\"last\"\n");
  std::vector<double> parts;
  RunMetrics run(path, {"loss"}, [&](double part) { parts.push_back(part); });
  run.poll();
  REQUIRE(parts.size() == 3);  // the file has four blocks
  CHECK(parts[0] == Approx(1 / 3.0).epsilon(0.01));
  CHECK(run.series("loss").steps == std::vector<int64_t>{1, 6});
  CHECK(run.stream().damaged_count() == 4);
  REQUIRE(run.stream().damaged().size() == 3);
  CHECK(run.stream().damaged()[0].line == 2);
  CHECK_THAT(run.stream().damaged()[0].why, Contains("not JSON at byte") && !Contains(": :"));
  CHECK(run.stream().damaged()[1].why == "not an object");
  CHECK(run.stream().damaged()[2].line == 4);
  CHECK(run.stream().damaged()[2].why == "it has no step");
  append(path, "{\"step\":7,\"loss\":7}\n");
  run.poll();
  CHECK(run.stream().damaged_count() == 5);  // that line was not the last
  CHECK(run.series("loss").steps.back() == 7);
}

TEST_CASE("CSV has a row per step, and text is quoted") {
  const TemporaryFolder folder;
  append(folder / "a",
         "{\"step\":1,\"loss\":2.5,\"grad_norm\":null,\"time\":1795673747.125,\"a,\\\"b\":1}\n"
         "{\"step\":1,\"validation_loss\":3,\"time\":1795673748}\nnonsense\n"
         "{\"step\":2,\"loss\":0.1,\"tokens\":1099511627776,\"note\":\"text\"}");
  append(folder / "b", "{\"step\":5,\"validation_loss\":4}\n");
  const RunFile a{"runs/a,\"x\"", folder / "a"}, b{"b", folder / "b"};
  CHECK(csv_of({a}) ==
        "step,time,loss,grad_norm,tokens,validation_loss,\"a,\"\"b\"\n"
        "1,1795673747.125,2.5,,,3,1\n"
        "2,,0.1,,1099511627776,,\n");
  CHECK(csv_of({a, b}, {.keys = {"validation_loss", "loss"}}) ==
        "run,step,time,validation_loss,loss\n"
        "\"runs/a,\"\"x\"\"\",1,1795673747.125,3,2.5\n"
        "\"runs/a,\"\"x\"\"\",2,,,0.1\n"
        "b,5,,4,\n");
  CHECK(csv_of({a}, {.keys = {"loss"}, .last = 1}) == "step,time,loss\n2,,0.1\n");
  CHECK(csv_of({a}, {.keys = {"loss"}, .from = 3}) == "step,time,loss\n");
  CHECK_THAT(error_of([&] { csv_of({a}, {.keys = {"los"}}); }),
             Contains("--key los: no record has this key") && Contains("did you mean loss?"));
}

TEST_CASE("a key that no record has gets the reason, or the keys") {
  const std::set<std::string, std::less<>> known{"loss", "lr", "step"};
  const auto text = [&](const char* key) { return std::string(unknown_key(key, known).what()); };
  CHECK_THAT(text("lss"), Contains("did you mean loss?"));
  CHECK_THAT(text("nothing_like_it"), Contains("the keys are loss, lr, step"));
  CHECK_THAT(text("moe.dropped"), Contains("only if: `model.moe` sets a capacity factor"));
  CHECK_THAT(text("validation_loss"), Contains("no evaluation has been made yet"));
}

TEST_CASE("a run is found by its folder, its checkpoints and its file, and nothing else is one") {
  const TemporaryFolder folder;
  const fs::path run = folder / "quick", step = run / "checkpoints" / "step-00000001";
  fs::create_directories(step);
  const auto error = [&](const fs::path& path) { return error_of([&] { locate_metrics(path); }); };
  CHECK_THAT(error(run), Contains("there is no metrics.jsonl in this folder"));
  append(run / "metrics.jsonl", "");
  append(step / "manifest.json", "{}");
  append(run / "checkpoints" / "latest", "step-00000001");
  for (const fs::path& path : {run, run / "", run / "metrics.jsonl", run / "checkpoints", step})
    CHECK(fs::equivalent(locate_metrics(path), run / "metrics.jsonl"));
  CHECK_THAT(error(folder.path), Contains("the runs in it are " + run.string()));
  CHECK_THAT(error(folder / "quikc"),
             Contains("no such file") && Contains("did you mean " + run.string()));
  CHECK_THAT(error(folder / "nothing_like_it"), Contains("give the folder of a run"));
  CHECK_THAT(no_records(run / "metrics.jsonl").what(),
             Contains("is empty: the run has not finished its first step"));
  append(run / "metrics.jsonl", "text\n");
  CHECK_THAT(no_records(run / "metrics.jsonl").what(), Contains("has no record of a step"));
  RunMetrics pipe("/dev/null", {});
  CHECK_THAT(error_of([&] { pipe.poll(); }), Contains("/dev/null is not a regular file"));
}

}  // namespace observe_watch_test
