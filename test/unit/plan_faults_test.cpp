// Tests which faults on purpose (debug.fault) a recipe can ask for.
#include "base/step_range.h"
#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_faults_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

std::vector<FaultOptions> faults_of(const std::vector<std::string>& overrides) {
  Diagnostics diagnostics;
  std::vector<std::string> all{"dataset.train=x", "train.run_dir=r"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  const Recipe r =
      load_recipe_text(interchange::model_source(), "model: {}\n", "test", all, diagnostics, 2);
  diagnostics.throw_if_errors();
  return make_plan(r, 2, 100).debug.faults;
}

void refused(const char* fault, const char* gist) {
  CAPTURE(fault);
  expect_error({.what = fault, .world = 2, .set = {fmt::format("debug.fault={}", fault)}},
               "debug.fault", gist);
}

}  // namespace

TEST_CASE("a fault is a mapping, a list of them, or single keys") {
  const auto one = faults_of({"debug.fault={kind: segfault, phase: backward, rank: 1, step: 5}"});
  REQUIRE(one.size() == 1);
  CHECK(one[0].kind == FaultKind::segfault);
  CHECK(one[0].phase == FaultPhase::backward);
  CHECK((one[0].rank == 1 && one[0].step == 5));
  const auto list = faults_of(
      {"debug.fault=[{kind: slow, factor: 1.5, rank: 1}, {kind: nan, phase: forward, step: 3}]"});
  REQUIRE(list.size() == 2);
  CHECK(list[0].kind == FaultKind::slow);
  CHECK(list[0].factor == 1.5);
  CHECK_FALSE(list[0].phase);
  CHECK(list[1].phase == FaultPhase::forward);
  for (const std::vector<std::string>& as : std::vector<std::vector<std::string>>{
           {"debug.fault={at: 'save:block 3', rank: 1, step: 4, kill: false}"},
           {"debug.fault.at='save:block 3'", "debug.fault.rank=1", "debug.fault.step=4",
            "debug.fault.kill=false"}}) {
    const auto faults = faults_of(as);
    REQUIRE(faults.size() == 1);
    CHECK(faults[0].kind == FaultKind::stop);
    CHECK(faults[0].moment == FaultOptions::Moment::save);
    CHECK(faults[0].of_save == "block 3");
    CHECK((faults[0].rank == 1 && faults[0].step == 4));
  }
  // A key alone means the only fault.
  const std::string two = "debug.fault=[{at: adamw, step: 3}, {kind: kill, phase: forward}]";
  const auto changed = faults_of({"debug.fault=[{at: adamw, step: 3}]", "debug.fault.rank=1"});
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].launch == "adamw");
  CHECK((changed[0].rank == 1 && changed[0].step == 3));
  expect_error({.what = "two", .world = 2, .set = {two, "debug.fault.rank=1"}}, "debug.fault",
               "`debug.fault.rank` may mean each of 2 items");
  CHECK(faults_of({two, "debug.fault={at: adamw}"}).size() == 1);  // a mapping replaces the list
  CHECK(
      faults_of({"debug.fault={at: none, rank: 0, step: 1, kill: true}"}).empty());  // none at all
  CHECK(faults_of({"debug.fault=[]"}).empty());
}

TEST_CASE("faults that cannot be are refused with what can") {
  refused("{kind: kill}", "needs a phase");
  refused("{kind: slow, factor: 2, phase: forward}", "has no phase");
  refused("{kind: slow}", "needs a factor");
  refused("{kind: kill, phase: forward, factor: 2}", "has no factor");
  refused("{kind: nan, phase: write}", "cannot be in phase write");
  refused("{kind: io_error, phase: forward}", "`io_error` cannot be in phase forward");
  refused("{kind: stuck_stream, phase: staging}", "cannot be in phase staging");
  refused("{kind: disconnect, phase: rendezvous}", "cannot be in phase rendezvous");
  refused("{kind: abort, at: adamw}", "names a moment for kill and stop");
  refused("{phase: forward, at: adamw}", "in two ways");
  refused("{kind: kill, phase: forward, rank: 9}", "rank 9 of");
  refused("{kind: kill, phase: load, step: 3}", "no step in phase load");
  refused("{kind: kill, phase: forward, step: 1000000}", "after the last one");
  refused("{kind: kill, phase: evaluation}", "without validation data");
  refused("{kind: kill, phase: forward, kill: false}", "contradict");
  refused("{kind: kil, phase: forward}", "kind: the text `kil` is not one");
  refused("{kind: kill, phse: forward}", "there is no key `phse`");
  refused("[forward]", "each a mapping");
  // All mistakes at once.
  const Diagnostics all = check(2, {"debug.fault=[{kind: kill}, {kind: slow}]"});
  CHECK(count(all, Severity::error) == 2);
  CHECK_THAT(listed(all), Catch::Contains("fault 1: `kill` needs a phase") &&
                              Catch::Contains("fault 2: `slow` needs a factor"));
}

TEST_CASE("the steps of a trace are a range of steps, and need a trace") {
  CHECK(parse_step_range("10:20") == StepRange{10, 20});
  CHECK(parse_step_range("10") == StepRange{10, 10});
  CHECK(parse_step_range("10:") == StepRange{.first = 10});
  CHECK(parse_step_range(":20") == StepRange{1, 20});
  CHECK_FALSE(parse_step_range(""));
  CHECK((StepRange{10, 20}.contains(10) && StepRange{10, 20}.contains(20)));
  CHECK_FALSE((StepRange{10, 20}.contains(9) || StepRange{10, 20}.contains(21)));
  for (const char* wrong : {":", "0:3", "-1:3", "20:10", "a", "3:b", "1:2:3", " 1", "1 ", "1.5",
                            "+3", "1e3", "99999999999999999999", "1:99999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_step_range(wrong));
    expect_error({.what = wrong,
                  .set = {"debug.trace=t.json", fmt::format("debug.trace_steps=\"{}\"", wrong)}},
                 "debug.trace_steps", "is not a range of steps");
  }
  expect_error({.what = "no trace", .set = {"debug.trace_steps=2:3"}}, "debug.trace_steps",
               "no trace is written");
}

}  // namespace plan_faults_test
