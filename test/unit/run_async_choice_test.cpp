// Whether checkpoints are written while training continues.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "run/async_choice.h"
#include "run/dry_run.h"
#include "test/support/train_testing.h"

namespace run_async_choice_test {

using namespace mtrain;
using namespace mtrain::run;
using Async = plan::CheckpointOptions::Async;
using Catch::Contains;

TEST_CASE("checkpoints are written in the background where all hosts have the memory") {
  constexpr int64_t kGiB = 1ll << 30;
  const HostNeed rich{.host = "h0", .ranks = 2, .needs = 4 * kGiB, .available = 10 * kGiB},
      unknown{.host = "h1", .ranks = 1, .needs = 4 * kGiB},
      poor{.host = "h2", .ranks = 8, .needs = 8 * kGiB, .comes = 2 * kGiB, .available = 11 * kGiB};
  for (const Async asked : {Async::automatic, Async::on}) {
    const AsyncChoice choice = choose_async(asked, {rich, unknown});
    CHECK(choice.on);
    CHECK_THAT(choice.text, Contains("4.00 GiB of host memory for 2 ranks"));
  }
  CHECK_FALSE(choose_async(Async::off, {rich}).on);
  const AsyncChoice refused = choose_async(Async::automatic, {rich, poor});
  CHECK_FALSE(refused.on);
  CHECK_THAT(refused.text, Contains("8.00 GiB for 8 ranks") && Contains("another 2.00 GiB") &&
                               Contains("h2 has 11.0 GiB left"));
  CHECK_THROWS_WITH(choose_async(Async::on, {rich, poor}),
                    Contains("checkpoint.async: ") && Contains("8.00 GiB for 8 ranks") &&
                        Contains("h2 has 11.0 GiB left") && Contains("hint"));
  CHECK_THROWS_AS(choose_async(Async::on, {poor}), UserError);
  HostNeed writes_form = poor;
  writes_form.writes_form = true;
  CHECK_THAT(choose_async(Async::automatic, {writes_form}).text,
             Contains("training with the Hugging Face form of a checkpoint another 2.00 GiB"));
  writes_form.available = 20 * kGiB;
  CHECK_THAT(choose_async(Async::automatic, {writes_form}).text,
             Contains("8.00 GiB of host memory for 8 ranks, and the Hugging Face form of a "
                      "checkpoint another 1.00 GiB while it is written"));
}

TEST_CASE("a dry run names the memory in which Hugging Face forms are written during training") {
  using train_testing::tiny;
  const auto report = [](const char* form, const char* async) {
    return run::dry_run_report(
        plan::make_plan(tiny({"checkpoint.every_steps=1", form, async}), 1, 300), {.width = 400});
  };
  const auto memory = Contains("and the Hugging Face form of a checkpoint another 128 MiB");
  CHECK_THAT(report("checkpoint.save_consolidated=every", "checkpoint.async=auto"), memory);
  CHECK_THAT(report("checkpoint.save_consolidated=every", "checkpoint.async=false"), !memory);
  CHECK_THAT(report("checkpoint.save_consolidated=final", "checkpoint.async=auto"), !memory);
}

}  // namespace run_async_choice_test
