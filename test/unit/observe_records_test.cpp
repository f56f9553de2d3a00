#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "device/device.h"
#include "observe/chrome_trace.h"
#include "observe/exposure.h"
#include "observe/metric_keys.h"
#include "observe/metrics.h"
#include "observe/profile.h"
#include "test/support/temporary_folder.h"

namespace observe_records_test {

using namespace mtrain;
using namespace mtrain::observe;
using Catch::Contains;
using nlohmann::json;

namespace {

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> found;
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == phase) found.push_back(e);
  return found;
}

json trace_of(const ChromeTrace& trace) {
  const TemporaryFolder folder;
  trace.write(folder / "trace.json");
  return json::parse(read_file(folder / "trace.json"));
}

std::vector<json> lines_of(const std::filesystem::path& path) {
  std::vector<json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("a trace of two streams has their launches on their tracks") {
  ChromeTrace trace(3);
  {
    const auto device = Device::cpu(1);
    device->set_timing_sink(&trace);
    Stream &compute = device->stream(device::StreamKind::compute),
           &dp = device->stream(device::StreamKind::dp_grad);
    // The last one lasts until the other stream waits, however busy the machine is.
    for (int i = 0; i < 5; ++i)
      compute.launch({.name = "matmul_fwd"},
                     [i](const device::LaunchContext&) { ::usleep(i < 4 ? 200 : 50'000); });
    dp.wait(compute.record());
    dp.launch({.name = "reduce"}, [](const device::LaunchContext&) {});
    device->synchronize();
  }  // the streams' names are gone; the trace has its own
  trace.record_step("step \"1\"", 1, 2);
  trace.record_bytes("memory", 2, 4096);

  const json parsed = trace_of(trace);
  std::map<int, std::string> track;
  std::string process;
  for (const auto& m : events_of(parsed, "M")) {
    CHECK(m.at("pid") == 3);
    if (m.at("name") == "thread_name") track[m.at("tid")] = m.at("args").at("name");
    if (m.at("name") == "process_name") process = m.at("args").at("name");
  }
  CHECK(process == "rank 3");
  CHECK(track.size() == 3);
  std::map<std::string, int> launches;
  double end_of_matmuls = 0;
  for (const auto& e : events_of(parsed, "X")) {
    ++launches[track.at(e.at("tid")) + "/" + e.at("name").get<std::string>()];
    CHECK(e.at("ts").get<double>() >= 0);
    if (e.at("name") == "matmul_fwd") {
      CHECK(e.at("dur").get<double>() >= 200);  // microseconds
      CHECK(e.at("ts").get<double>() >= end_of_matmuls);
      end_of_matmuls = e.at("ts").get<double>() + e.at("dur").get<double>();
    }
    if (e.at("name") == "reduce") CHECK(e.at("ts").get<double>() >= end_of_matmuls - 0.001);
  }
  CHECK(launches == std::map<std::string, int>{{"compute/matmul_fwd", 5},
                                               {"dp_grad/reduce", 1},
                                               {"dp_grad/wait for compute", 1},
                                               {"steps/step \"1\"", 1}});
  const auto counters = events_of(parsed, "C");
  REQUIRE(counters.size() == 1);
  CHECK(counters[0].at("name") == "memory");
  CHECK(counters[0].at("pid") == 3);
  CHECK(counters[0].at("args").at("bytes") == 4096);
}

TEST_CASE("spans of a trace carry their pass, stage, micro-batch and bytes, and waits are spans") {
  ChromeTrace trace;
  const auto record = [&](const char* name, device::StreamId stream, std::string_view scope,
                          int64_t bytes = 0, int64_t idle_ns = 0) {
    trace.record({name, stream, 0, 9000, bytes, idle_ns, false, scope});
  };
  const device::StreamKind compute = device::StreamKind::compute;
  record("a", compute, "step 1 > 3F12 > layers.3.attention");
  record("b", compute, "weights of 3B12");
  record("c", device::StreamId{device::StreamKind::pp_send, 1}, "0SEND_F7", 4096, 2000);
  record("d", compute, "1UNSHARD");
  for (const char* other : {"", "layers.3", "F12", "3F", "3F12x", "validation"})
    record("other", compute, other);
  trace.waited({compute, device::StreamKind::tp, 9000, 12000, false, "3F12"});
  trace.waited({compute, device::StreamKind::tp, 12000, 12999});  // too short to be seen

  std::map<std::string, json> args;
  for (const json& e : events_of(trace_of(trace), "X")) {
    const std::string name = e.at("name");
    CHECK(e.contains("cat") == name.starts_with("wait"));
    if (name == "other") {
      CHECK_FALSE((e.contains("args") && e.at("args").contains("micro_batch")));
      continue;
    }
    args[name] = e.at("args");
    if (name == "wait for tp") CHECK((e.at("ts") == 9 && e.at("dur") == 3));
    if (name == "wait for another rank") CHECK((e.at("ts") == 0 && e.at("dur") == 2));
    if (name == "c") CHECK((e.at("ts") == 2 && e.at("dur") == 7));
  }
  const auto of = [](const char* pass, int stage, int micro_batch) {
    return json{{"pass", pass}, {"stage", stage}, {"micro_batch", micro_batch}};
  };
  json sent = of("SEND_F", 0, 7);
  CHECK(args.at("a") == of("F", 3, 12));
  CHECK(args.at("b") == of("W", 3, 12));
  CHECK(args.at("wait for another rank") == sent);
  sent["bytes"] = 4096;
  CHECK(args.at("c") == sent);
  CHECK(args.at("d") == json{{"pass", "UNSHARD"}, {"stage", 1}});
  CHECK(args.at("wait for tp") == of("F", 3, 12));
}

TEST_CASE("arrows lead from the begin of a send to the last moment of its receive") {
  const TemporaryFolder folder;
  const auto ends = [](std::vector<device::MessageEnd> list) {
    return std::make_shared<const device::MessageEnds>(std::move(list));
  };
  const device::StreamKind pp = device::StreamKind::pp;
  ChromeTrace first(0), second(1);
  first.set_origin(0);
  second.set_origin(0);
  first.record({"send", pp, 1000, 5000, 64, 1500, false, "", ends({{7, true}})});
  first.record({"exchange", pp, 6000, 8000, 64, 0, false, "", ends({{8, true}, {9, false}})});
  second.record({"receive", pp, 2000, 6000, 0, 0, false, "", ends({{7, false}})});
  second.record({"receive", pp, 7000, 7000, 0, 0, false, "", ends({{8, false}})});
  second.record({"send", pp, 8000, 8500, 64, 0, false, "", ends({{10, true}})});
  first.write(folder / "0");
  second.write(folder / "1");
  merge_traces(folder / "all.json", {folder / "0", folder / "1"});
  const json all = json::parse(read_file(folder / "all.json"));
  std::map<std::string, json> sent, received;
  for (const json& e : events_of(all, "s")) sent[e.at("id")] = e;
  for (const json& e : events_of(all, "f")) received[e.at("id")] = e;
  // The messages 9 and 10 have only one end in these parts.
  REQUIRE((sent.size() == 2 && received.size() == 2));
  const auto check = [&](const std::string& id, double from, double to) {
    CAPTURE(id);
    CHECK(sent.at(id).at("ts") == from);
    CHECK(sent.at(id).at("pid") == 0);
    CHECK(received.at(id).at("ts") == to);
    CHECK(received.at(id).at("pid") == 1);
    CHECK(received.at(id).at("bp") == "e");
  };
  check("0x0000000000000007", 2.5, 5.999);
  check("0x0000000000000008", 6, 7);
  CHECK(events_of(all, "X").size() == 6);
}

TEST_CASE("a trace ignores what happens while it does not record") {
  ChromeTrace trace;
  trace.set_recording(false);
  trace.record({"a", device::StreamKind::compute, 0, 5});
  trace.waited({device::StreamKind::compute, device::StreamKind::tp, 9000, 12000});
  trace.record_step("step 1", 0, 9);
  trace.record_bytes("memory", 2, 4096);
  CHECK(trace.events() == 0);
  trace.set_recording(true);
  trace.record({"a", device::StreamKind::compute, 0, 5});
  CHECK(trace.events() == 1);
}

TEST_CASE("times in a trace are exact to the nanosecond") {
  ChromeTrace trace;
  trace.record({"a", device::StreamKind::compute, 9'007'199'254'740'993, 9'007'199'254'741'000});
  trace.record({"b", device::StreamKind::compute, 9'007'199'254'742'994, 9'007'199'254'742'994});
  const auto events = events_of(trace_of(trace), "X");
  CHECK(events[0].at("ts") == 0);
  CHECK(events[0].at("dur") == 0.007);
  CHECK(events[1].at("ts") == 2.001);
  CHECK(events[1].at("dur") == 0);
}

TEST_CASE("a full trace keeps its bound and says so") {
  ChromeTrace trace(0, 10);
  for (int i = 0; i < 25; ++i) trace.record({"a", device::StreamKind::compute, i * 10, i * 10 + 5});
  CHECK(trace.events() == 10);
  CHECK(trace.dropped() == 15);
  const json parsed = trace_of(trace);
  CHECK(events_of(parsed, "X").size() == 10);
  CHECK_THAT(parsed.at("otherData").at("note").get<std::string>(), Contains("15 later events"));
  CHECK_THAT(events_of(parsed, "i").at(0).at("name").get<std::string>(),
             Contains("trace full: 15"));
  CHECK(events_of(parsed, "i").at(0).at("ts") == 0.1);
  CHECK(trace_of(ChromeTrace()).at("traceEvents").size() == 2);  // nothing but metadata
}

TEST_CASE("traces of several ranks become one, on one time axis") {
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> parts;
  for (int rank = 0; rank < 3; ++rank) {
    ChromeTrace trace(rank);
    trace.set_origin(1000 * rank);
    trace.record({"a", device::StreamKind::compute, 1000 * rank + 500 - 1000 * (rank == 2), 4000});
    trace.record({"b", device::StreamKind::dp_grad, 5000, 6000});
    parts.push_back(folder / std::to_string(rank));
    trace.write(parts.back());
  }
  merge_traces(folder / "all.json", parts);
  const json all = json::parse(read_file(folder / "all.json"));
  std::map<int, double> first;
  for (const auto& e : events_of(all, "X"))
    if (e.at("name") == "a") first[e.at("pid")] = e.at("ts");
  CHECK(first == std::map<int, double>{{0, 0.5}, {1, 0.5}, {2, -0.5}});
  CHECK(events_of(all, "X").size() == 6);
}

TEST_CASE("a long trace shows that it is being written and merged") {
  const TemporaryFolder folder;
  ChromeTrace trace(0);
  for (int i = 0; i < 30000; ++i)
    trace.record({"matmul_fc1_fwd", device::StreamKind::compute, 10 * i, 10 * i + 5, 0});
  int64_t wrote = 0;
  trace.write(folder.path / "0", [&] { ++wrote; });
  const auto mib = int64_t(std::filesystem::file_size(folder.path / "0") >> 20);
  REQUIRE(mib >= 2);
  CHECK(wrote == Approx(mib).margin(1));
  wrote = 0;
  merge_traces(folder.path / "all.json", {folder.path / "0"}, [&] { ++wrote; });
  CHECK(wrote == Approx(2 * mib).margin(2));  // it is read twice
}

TEST_CASE("a trace is safe to fill from several threads while it is written") {
  const TemporaryFolder folder;
  ChromeTrace trace;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&trace, t] {
      const device::StreamId stream{device::StreamKind::pp_send, t};
      for (int i = 0; i < 2000; ++i) trace.record({"launch", stream, i, i + 1});
    });
  for (int i = 0; i < 3; ++i) trace.write(folder / "early.json");
  for (auto& t : threads) t.join();
  CHECK(json::parse(read_file(folder / "early.json")).is_object());
  std::map<int, int> per_track;
  for (const auto& e : events_of(trace_of(trace), "X")) ++per_track[e.at("tid")];
  REQUIRE(per_track.size() == 4);
  for (const auto& [track, count] : per_track) CHECK(count == 2000);
}

TEST_CASE("a profile sums by name, and shares are of the compute stream's busy time") {
  Profile profile;
  TeeSink tee({&profile});
  const auto record = [&](const char* name, device::StreamId stream, int64_t ns) {
    tee.record({name, stream, 1000, 1000 + ns});
  };
  record("matmul_fwd", device::StreamKind::compute, 3'000'000);
  record("matmul_fwd", device::StreamKind::compute, 1'000'000);
  record("matmul_dgrad", device::StreamKind::compute, 2'000'000);
  record("rmsnorm_fwd", device::StreamKind::compute, 2'000'000);
  record("reduce", device::StreamKind::tp, 9'000'000);
  const auto rows = profile.rows();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].name == "reduce");
  CHECK(rows[0].share == 0);
  CHECK(rows[1].name == "matmul_fwd");
  CHECK(rows[1].count == 2);
  CHECK(rows[1].total_ns == 4'000'000);
  CHECK(rows[1].share == 0.5);
  CHECK(profile.compute_busy_ns() == 8'000'000);
  CHECK(profile.table() ==
        "operation        count     total ms     mean us    share\n"
        "reduce (tp)          1        9.000      9000.0        -\n"
        "matmul_fwd           2        4.000      2000.0   50.0 %\n"
        "matmul_dgrad         1        2.000      2000.0   25.0 %\n"
        "rmsnorm_fwd          1        2.000      2000.0   25.0 %\n"
        "compute was busy for 8.000 ms: matmul 75.0 %, rmsnorm 25.0 %\n");
  profile.reset();
  CHECK(profile.rows().empty());
  CHECK_THAT(profile.table(), Contains("0.000 ms"));
}

TEST_CASE("two sinks see the same launches of several streams") {
  Profile profile;
  ChromeTrace trace;
  TeeSink tee({&profile, &trace});
  {
    const auto device = Device::cpu(2);
    device->set_timing_sink(&tee);
    for (int i = 0; i < 100; ++i)
      for (const device::StreamKind stream :
           {device::StreamKind::compute, device::StreamKind::tp, device::StreamKind::dp_grad})
        device->stream(stream).launch({.name = "work"}, [](const device::LaunchContext&) {});
    device->synchronize();
  }
  const auto rows = profile.rows();
  REQUIRE(rows.size() == 3);
  for (const auto& r : rows) CHECK(r.count == 100);
  CHECK(trace.events() == 300);
}

TEST_CASE("metrics are one object per line, in the order given") {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  MetricsWriter metrics(path, 0);
  metrics.write(1, {{"loss", 2.5},
                    {"tokens", 1024},
                    {"grad_norm", INFINITY},
                    {"mfu", NAN},
                    {"lr", 0.1f},
                    {"memory_peak", int64_t(1) << 40}});
  // Written at once, for readers that follow the file.
  CHECK_THAT(read_file(path), Contains(R"({"step":1,"loss":2.5,"tokens":1024,"grad_norm":null,)"
                                       R"("mfu":null,"lr":0.10000000149011612,)"
                                       R"("memory_peak":1099511627776,"time":)"));
  CHECK(read_file(path).ends_with("}\n"));
  metrics.write(2, {});
  CHECK(lines_of(path).size() == 2);
}

TEST_CASE("every record has the wall time, and the time since its process began") {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const double before = now();
  MetricsWriter metrics(path, 0);
  metrics.write(1, {{"loss", 2.5}});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  metrics.write(1, {{"validation_loss", 2.5}});
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  for (const json& line : lines) {
    CHECK(line.at("time").get<double>() >= before - 0.001);
    CHECK(line.at("time").get<double>() <= now() + 0.001);
  }
  const double first = lines[0].at("elapsed_s"), second = lines[1].at("elapsed_s");
  CHECK(first >= 0);
  CHECK(second >= first + 0.019);
  CHECK(second <= now() - before + 0.001);
}

TEST_CASE("a record has no key that the page of keys lacks") {
  const TemporaryFolder folder;
  MetricsWriter metrics(folder / "metrics.jsonl", 0);
  for (const char* name : {"note", "comm.tpp.bytes", "comm..bytes", "comm.tp.", "time", "step"})
    CHECK_THROWS_AS(metrics.write(1, {{name, 1.0}}), BugError);
  CHECK_THROWS_AS(metrics.write(1, {{"loss", 1.0}, {"validation_loss", 1.0}}), BugError);
  metrics.write(1, {{"comm.tp.bytes", 1.0}, {"comm.ep_counts.idle_ms", 1.0}});
  CHECK(lines_of(folder / "metrics.jsonl").size() == 1);
  const std::string page = metrics_markdown();
  for (const MetricKey& key : metric_keys()) {
    CHECK_THAT(page, Contains(fmt::format("| `{}` | {} | {} |", key.name, key.unit, key.meaning)));
    CHECK(find_metric_key(key.name) == (key.name.find('<') == key.name.npos ? &key : nullptr));
  }
}

TEST_CASE("a resumed run drops the steps it makes again, and a torn line") {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  const auto steps = [&] {
    std::vector<int> found;
    for (const auto& line : lines_of(path)) found.push_back(line.at("step"));
    return found;
  };
  {
    MetricsWriter metrics(path, 0);
    for (int64_t step = 1; step <= 5; ++step) metrics.write(step, {{"loss", double(step)}});
    metrics.write(3, {{"validation_loss", 1.0}});
  }
  std::ofstream(path, std::ios::app) << R"({"step":6,"lo)";
  SECTION("from step 5") {
    MetricsWriter metrics(path, 5);
    metrics.write(6, {{"loss", 6.0}});
    CHECK(steps() == std::vector<int>{1, 2, 3, 4, 5, 3, 6});
  }
  SECTION("from step 3") {
    MetricsWriter metrics(path, 3);
    metrics.write(4, {{"loss", 44.0}});
    CHECK(steps() == std::vector<int>{1, 2, 3, 3, 4});
    CHECK(lines_of(path).back().at("loss") == 44.0);
  }
  SECTION("from the start") {
    MetricsWriter metrics(path, 0);
    CHECK(steps().empty());
  }
  SECTION("damaged lines between the records that stay are left alone") {
    std::ofstream(path) << R"({"step":1,"loss":1}
damaged
{"step":2,"loss":1}
{"note":1}
damaged, too
{"step":2,"validation_loss":1}
{"step":3,"loss":1}
)";
    { MetricsWriter metrics(path, 2); }
    CHECK(read_file(path) == R"({"step":1,"loss":1}
damaged
{"step":2,"loss":1}
{"note":1}
{"step":2,"validation_loss":1}
)");
  }
  SECTION("a file that loses nothing is not written again") {
    std::ofstream(path) << R"({"step":1,"loss":1}
{"step":2,"loss":1}
{"step":2,"validation_loss":1}
)";
    struct stat before {
    }, after{};
    REQUIRE(::stat(path.c_str(), &before) == 0);
    { MetricsWriter metrics(path, 2); }
    REQUIRE(::stat(path.c_str(), &after) == 0);
    CHECK(before.st_ino == after.st_ino);
  }
  SECTION("a whole last line without its newline is torn as well") {
    std::ofstream(path) << "{\"step\":1}\n{\"step\":2}";
    MetricsWriter metrics(path, 9);
    metrics.write(3, {});
    CHECK(steps() == std::vector<int>{1, 3});
  }
  SECTION("lines that are not JSON go from the end") {
    std::ofstream(path) << "{\"step\":1}\n{\"step\":2}\nxyz\n\n{\"step\":11}\n";
    MetricsWriter metrics(path, 9);
    CHECK(steps() == std::vector<int>{1, 2});
  }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a disk that fills up costs metrics lines, never a torn one, nor the training") {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    if (!std::freopen("/dev/null", "w", stderr)) ::_exit(1);  // hides the warning
    MetricsWriter metrics(path, 0);
    const rlimit limit{500, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    for (int64_t step = 1; step <= 50; ++step) metrics.write(step, {{"loss", 1.25}});
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &none);
    metrics.write(51, {{"loss", 1.25}});
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  const auto lines = lines_of(path);  // throws on a torn line
  // The lines of about 60 bytes that fit into 500, and the first one after there was room again.
  CHECK(lines.size() > 5);
  CHECK(lines.size() < 12);
  CHECK(lines.back().at("step") == 51);
}

TEST_CASE("communication is timed in the first steps, and then in those that are logged") {
  for (int64_t n = 1; n <= 10; ++n) CHECK(samples_step(n, 100, {}));
  CHECK_FALSE(samples_step(11, 100, {}));
  CHECK(samples_step(200, 100, {}));
  CHECK(samples_step(11, 1, {}));
}

TEST_CASE("a recipe can have communication timed in every n-th step alone") {
  for (int64_t n = 1; n <= 40; ++n) CHECK(samples_step(n, 1, 10) == (n % 10 == 0));
  CHECK(samples_step(1, 100, 1));
}

TEST_CASE("exposed is the time in which compute stood still for a communication") {
  Exposure e;
  e.record({"all_reduce", device::StreamKind::dp_grad, 0, 1000, 640});
  e.record({"all_gather", device::StreamKind::dp_grad, 2000, 2500, 60});
  e.record({"matmul", device::StreamKind::compute, 0, 9000});
  e.waited({device::StreamKind::compute, device::StreamKind::dp_grad, 600, 1000});
  e.waited({device::StreamKind::dp_grad, device::StreamKind::compute, 0,
            300});  // the opposite order hides nothing
  e.waited(
      {device::StreamKind::compute, device::StreamKind::copy, 5000, 6000});  // not communication
  const auto first = e.take();
  REQUIRE(first.size() == 1);
  CHECK(first.at(device::StreamKind::dp_grad).busy_ns == 1500);
  CHECK(first.at(device::StreamKind::dp_grad).exposed_ns == 400);
  CHECK(first.at(device::StreamKind::dp_grad).bytes == 700);
  CHECK(e.take().empty());

  // A receive is posted at 100, and its sender is ready at 400. Compute waits from 200 on.
  e.record({"receive", device::StreamId{device::StreamKind::pp_recv, 0}, 100, 500, 0, 300});
  e.waited(
      {device::StreamKind::compute, device::StreamId{device::StreamKind::pp_recv, 0}, 200, 510});
  e.record({"send", device::StreamId{device::StreamKind::pp_send, 2}, 500, 600, 80});
  e.waited(
      {device::StreamKind::compute, device::StreamId{device::StreamKind::pp_send, 2}, 510, 600});
  const auto pipeline = e.take();
  REQUIRE(pipeline.size() == 1);
  CHECK(pipeline.at(device::StreamKind::pp).busy_ns == 200);
  CHECK(pipeline.at(device::StreamKind::pp).exposed_ns == 110 + 90);
  CHECK(pipeline.at(device::StreamKind::pp).bytes == 80);
  CHECK(exposure_text(first).find("(27 %)") != std::string::npos);
}

TEST_CASE("a wait for collectives is idle before their last rank came, and exposed afterwards") {
  Exposure e;
  // The last rank of the first collective arrived at 300, that of the second at 1250; compute waits
  // for both.
  e.record({"all_to_all", device::StreamKind::ep, 100, 1000, 64, 200});
  e.record({"all_gather", device::StreamKind::ep, 1000, 1500, 8, 250});
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 200, 1500});
  // A hidden collective: nothing waits for it, however late its last rank arrives.
  e.record({"all_to_all", device::StreamKind::ep, 2000, 3000, 0, 600});
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 3000, 3000});
  const Communication c = e.take().at(device::StreamKind::ep);
  CHECK(c.busy_ns == 700 + 250 + 400);
  CHECK(c.idle_ns == 100 + 250);
  CHECK(c.exposed_ns == 1300 - 350);
  CHECK(c.bytes == 72);
  CHECK_FALSE(c.paired());

  // A wait for one stream is independent of the idle times of another.
  e.record({"all_reduce", device::StreamKind::tp, 4000, 5000, 0, 1000});
  e.record({"all_to_all", device::StreamKind::ep, 4000, 5000, 0, 0});
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 4000, 5000});
  const auto both = e.take();
  CHECK(both.at(device::StreamKind::ep).exposed_ns == 1000);
  CHECK(both.at(device::StreamKind::ep).idle_ns == 0);
  CHECK(both.at(device::StreamKind::tp).busy_ns == 0);
  CHECK(both.at(device::StreamKind::tp).idle_ns == 0);
}

TEST_CASE("where ranks do not know when others came, idle time is unknown and not 0") {
  Exposure e;
  e.record({"all_to_all", device::StreamKind::ep, 0, 1000, 64, std::nullopt});
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 400, 1000});
  e.record({"all_reduce", device::StreamKind::tp, 0, 1000, 64, 300});
  auto first = e.take();
  CHECK_FALSE(first.at(device::StreamKind::ep).idle_ns.has_value());
  CHECK(first.at(device::StreamKind::ep).busy_ns == 1000);
  CHECK(first.at(device::StreamKind::ep).exposed_ns == 600);
  CHECK(first.at(device::StreamKind::tp).idle_ns.has_value());
  CHECK_THAT(exposure_text(first),
             Contains("ep: 1e-06 s at work, 6e-07 s exposed (60 %), idle unknown, 64 ") &&
                 Contains("tp: 7e-07 s at work, 0 s exposed (0 %), 0 s idle, 64 "));
  // The wait may fall into the step after that of the launch.
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 1000, 1100});
  const Communication later = e.take().at(device::StreamKind::ep);
  CHECK_FALSE(later.idle_ns.has_value());
  Communication sum{.idle_ns = 5};
  sum += later;
  CHECK_FALSE(sum.idle_ns.has_value());
}

TEST_CASE("the last line gives communication as shares of a step, by parallelism") {
  using enum device::StreamKind;
  const Communication none{};
  CHECK(exposure_summary({{dp_grad, {.exposed_ns = 30, .idle_ns = 0}},
                          {dp_param, {.exposed_ns = 20, .idle_ns = 0}},
                          {tp, {.exposed_ns = 20, .idle_ns = 0}},
                          {pp, {.exposed_ns = 1, .idle_ns = 30}}},
                         1000, 10) ==
        "communication: 7 % of a step exposed (dp 5, tp 2), 3 % idle (pp), 10 steps timed");
  CHECK(exposure_summary({{dp_grad, {.exposed_ns = 300}}, {control, none}}, 1000, 1) ==
        "communication: 30 % of a step exposed (dp), 0 % idle, 1 step timed");
  CHECK(exposure_summary({{tp, {.exposed_ns = 2, .idle_ns = std::nullopt}}}, 1000, 3) ==
        "communication: 0.2 % of a step exposed, idle unknown, 3 steps timed");
}

TEST_CASE("compute is starved where it neither computes nor waits") {
  using enum device::StreamKind;
  Exposure e;
  e.record({"matmul", compute, 100, 200});
  e.record({"matmul", compute, 230, 300});
  e.waited({compute, ep, 310, 400});
  e.waited({compute, dp_grad, 400, 400});
  e.record({"all_to_all", ep, 300, 700});
  e.waited({compute, copy, 405, 450});
  e.record({"matmul", compute, 450, 500});
  CHECK(e.take_starved_ns() == 30 + 10 + 5);
  CHECK(e.take_compute_ns() == 100 + 70 + 50);  // without waits
  CHECK(e.take_compute_ns() == 0);
  // Neither call counts the time between them.
  e.record({"matmul", compute, 900, 1000});
  CHECK(e.take_starved_ns() == 0);
}

TEST_CASE("communication of pairs is also summed by itself") {
  Exposure e;
  e.record({"all_to_all", device::StreamKind::ep, 0, 1000, 64, 100, true});
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 50, 190, true});
  e.record({"all_to_all", device::StreamKind::ep, 1000, 2000, 64, 0, false});
  e.waited({device::StreamKind::compute, device::StreamKind::ep, 1200, 2000, false});
  const auto sums = e.take();
  const Communication& c = sums.at(device::StreamKind::ep);
  CHECK(c.busy_ns == 1900);
  CHECK(c.exposed_ns == 90 + 800);
  CHECK(c.idle_ns == 50);
  CHECK(c.paired());
  CHECK(c.paired_busy_ns == 900);
  CHECK(c.paired_exposed_ns == 90);
  CHECK(exposure_text(sums) ==
        "ep: 1.9e-06 s at work, 9e-07 s of it in pairs, 8.9e-07 s exposed (47 %), 9e-08 s of it in "
        "pairs, 5e-08 s idle, 128 B");
}

}  // namespace observe_records_test
