// A trace as text, and as data for pictures: who was at work when.
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "observe/chrome_trace.h"
#include "observe/timeline.h"
#include "test/support/temporary_folder.h"

namespace observe_timeline_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;

namespace {

// Two steps of 100 ms, and a save.
void write_steps(const std::filesystem::path& path) {
  ChromeTrace trace(3);
  const auto record = [&](const char* name, device::StreamId stream, int64_t begin, int64_t end) {
    trace.record({name, stream, begin * 1'000'000, end * 1'000'000, 0});
  };
  trace.set_origin(0);
  trace.record_step("step 1", 0, 100'000'000);
  trace.record_step("step 2", 100'000'000, 200'000'000);
  trace.record_step("save", 200'000'000, 300'000'000);  // not a step: it is not shown by default
  record("matmul_fc1_fwd", device::StreamKind::compute, 10, 90);
  record("matmul_fc1_fwd", device::StreamKind::compute, 100, 130);
  record("attention_fwd", device::StreamKind::compute, 130, 140);
  record("all_gather", device::StreamKind::tp, 120, 175);
  record("matmul_fc1_bwd", device::StreamKind::compute, 170, 200);
  trace.write(path);
}

// Passes of 100 ms, with a wait.
void write_passes(const std::filesystem::path& path) {
  ChromeTrace passes;
  const auto record = [&](const char* scope, int64_t begin, int64_t end) {
    passes.record({"matmul_fc1_fwd", device::StreamKind::compute, begin * 1'000'000,
                   end * 1'000'000, 0, 0, false, scope});
  };
  passes.set_origin(0);
  record("0F0", 0, 20), record("0F1", 20, 40), record("0B0", 50, 90);
  record("weights of 0B0", 90, 100);
  passes.waited({device::StreamKind::compute, device::StreamKind::pp_recv, 40'000'000, 50'000'000,
                 false, "0B0"});
  passes.write(path);
}

}  // namespace

TEST_CASE("a trace is shown as text: who was at work when") {
  const TemporaryFolder folder;
  const auto path = folder / "trace.json";
  write_steps(path);
  const Trace trace = read_trace(path);
  REQUIRE(trace.size() == 3);
  // 20 columns of 5 ms beside "rank 3 compute " and "  100 %".
  const auto lines = [&](TimelineOptions o) {
    o.columns = 42;
    return timeline_text(trace, o);
  };
  CHECK(lines({}) ==
        "100.000 ms from 100.000 ms on; a column is 5.000 ms\n"
        "rank 3 compute mmmmmmaa......mmmmmm   70 %\n"
        "            tp ....GGGGGGGGGGG.....   55 %\n"
        "m matmul 60.0 ms, G all_gather 55.0 ms\n"
        "a attention 10.0 ms\n");
  CHECK_THAT(lines({.step = 1}), Contains("rank 3 compute ..mmmmmmmmmmmmmmmm..   80 %\n"));
  CHECK_THAT(lines({.step = 1}), !Contains("tp"));  // nothing to show
  CHECK_THAT(lines({.from_ms = 0, .to_ms = 200}), Contains("200.000 ms from 0.000 ms on"));
  CHECK_THROWS_WITH(lines({.step = 3}), Contains("no step 3") && Contains("step 1 to step 2"));
  CHECK_THROWS_WITH(lines({.ranks = {0}}), Contains("no rank 0"));
  CHECK_THROWS_WITH(lines({.from_ms = 5, .to_ms = 5}), Contains("is not a time span"));

  // A rank's passes are above its streams, and a wait is not work.
  write_passes(path);
  const std::string of_passes = timeline_text(read_trace(path), {.columns = 42});
  CHECK_THAT(of_passes, Contains("rank 0  passes F0--F1--..B0------W0\n"
                                 "       compute mmmmmmmm--mmmmmmmmmm   90 %\n"));
  CHECK_THAT(of_passes, Contains("F3 forward of micro-batch 3") && Contains("- waits 10.0 ms"));

  write_file_atomic(path, "{\"traceEvents\":[");
  CHECK_THROWS_WITH(read_trace(path), Contains("not JSON at byte 17"));
  write_file_atomic(path, "[1, {\"a\": {\"ph\": 3}}]");
  CHECK_THROWS_WITH(read_trace(path), Contains("no events"));
  CHECK_THROWS_WITH(read_trace(folder / "none"), Contains("cannot open"));
}

TEST_CASE("the names in a trace cannot control the terminal") {
  const TemporaryFolder folder;
  const auto path = folder.path / "t.json";
  write_file_atomic(path, R"({"traceEvents":[
    {"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"\u001b[2Jmine"}},
    {"ph":"X","pid":0,"tid":1,"ts":0,"dur":10,"name":"\u001b]0;x\u0007",
     "args":{"pass":"\u001b[","stage":0,"micro_batch":0}},
    {"ph":"M","pid":0,"tid":2,"name":"thread_name","args":{"name":"steps"}},
    {"ph":"X","pid":0,"tid":2,"ts":0,"dur":10,"name":"step \u009b2J"}]})");
  const Trace trace = read_trace(path);
  const std::string text = timeline_text(trace, {});
  CHECK_THAT(text, Contains("?[2Jmine") && !Contains("\x1b"));
  CHECK_THROWS_WITH(timeline_text(trace, {.step = 7}), Contains("the trace has no step 7"));
  for (const TraceTrack& track : trace)
    for (const TraceSpan& span : track.spans)
      CHECK_THAT(span.name + span.pass, !Contains("\x1b") && !Contains("\xc2\x9b"));
}

TEST_CASE("pictures show a step of a trace, its passes, and the steps of each rank") {
  const TemporaryFolder folder;
  const auto path = folder / "trace.json";
  write_steps(path);
  const Trace trace = read_trace(path);
  const StepTimeline second = step_timeline(trace, {}, 20), first = step_timeline(trace, 1, 20);
  CHECK((second.name == "step 2" && first.name == "step 1"));
  REQUIRE((second.rows.size() == 2 && first.rows.size() == 1));
  CHECK((second.rows[1].stream == "tp" && second.rows[1].busy == Approx(0.55)));
  CHECK(first.rows[0].cells == "..mmmmmmmmmmmmmmmm..");
  CHECK_THROWS_WITH(step_timeline(trace, 3, 20), Contains("no step 3"));
  const auto steps = steps_by_rank(trace);
  REQUIRE(steps.size() == 1);
  CHECK((steps[0].rank == 3 && steps[0].steps == 2));
  CHECK((steps[0].mean_ms == 100 && steps[0].least_ms == 100 && steps[0].most_ms == 100));
  CHECK(steps[0].busy_ms == Approx((80 + 70) / 2.0));

  write_passes(path);
  const StepTimeline timeline = step_timeline(read_trace(path), {}, 20);
  REQUIRE(timeline.rows.size() == 1);
  CHECK(timeline.name.empty());
  CHECK(timeline.ms == 100);
  CHECK(timeline.rows[0].cells == "mmmmmmmm--mmmmmmmmmm");
  CHECK(timeline.legend == std::map<char, std::string>{{'m', "matmul"}, {'-', "waits"}});
  const std::vector<PassRun>& runs = timeline.passes.at(0);
  REQUIRE(runs.size() == 4);
  CHECK((runs[2].pass == "B" && runs[2].micro_batch == 0 && runs[2].begin_ms == 50));
  CHECK((runs[3].pass == "W" && runs[3].end_ms == 100 && runs[3].busy_ms == 10));
}

}  // namespace observe_timeline_test
