// Tests the text for Prometheus: the newest records of a file, and what a rank's page adds.
#include <cmath>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "observe/prometheus.h"
#include "test/support/temporary_folder.h"

namespace observe_prometheus_test {

using namespace mtrain;
using Catch::Contains;
using observe::JobSample;

TEST_CASE("the newest records are found at the end of a long file") {
  const TemporaryFolder folder;
  const auto path = folder.path / "metrics.jsonl";
  CHECK_FALSE(observe::newest_records(path).step);  // there is no file yet
  {
    std::ofstream file(path);
    for (int step = 1; step <= 30000; ++step) {
      file << R"({"step":)" << step << R"(,"time":1.5,"loss":)" << 1.0 / step << "}\n";
      if (step == 29999)
        file << R"({"step":29999,"validation_loss":0.25})"
             << "\n";
    }
    file << R"({"step":30001,"time":1.5,"lo)";  // it is being written
  }
  const auto newest = observe::newest_records(path);
  REQUIRE(newest.step);
  CHECK(newest.step->step == 30000);
  CHECK(newest.step->values.at("loss") == Approx(1.0 / 30000));
  REQUIRE(newest.evaluation);
  CHECK(newest.evaluation->values.at("validation_loss") == 0.25);
  std::ofstream(path, std::ios::app) << "damaged\n\n";
  CHECK(observe::newest_records(path).step->step == 30000);
}

TEST_CASE("values of timed steps are those of the last timed step of the same start") {
  const TemporaryFolder folder;
  const auto path = folder.path / "metrics.jsonl";
  std::ofstream(path) << R"({"step":1,"elapsed_s":90,"loss":5,"comm.pp.exposed_ms":9}
{"step":2,"elapsed_s":1,"loss":4,"step_ms.max":7,"comm.tp.exposed_ms":2}
{"step":2,"validation_loss":3}
{"step":3,"elapsed_s":2,"loss":3,"step_ms.max":8}
{"step":4,"elapsed_s":3,"loss":null}
)";
  const auto newest = observe::newest_records(path);
  REQUIRE(newest.step);
  const auto& values = newest.step->values;
  CHECK(newest.step->step == 4);
  CHECK(values.at("step") == 4);
  CHECK(std::isnan(values.at("loss")));  // the newest step has it, though it is unknown
  CHECK(values.at("step_ms.max") == 8);
  CHECK(values.at("comm.tp.exposed_ms") == 2);
  CHECK_FALSE(values.contains("comm.pp.exposed_ms"));  // of the start before
  REQUIRE(newest.evaluation);
  CHECK(newest.evaluation->step == 2);
}

TEST_CASE("values that are unknown are left out, and those that are not finite have their words") {
  JobSample job{.restarts = 2};
  PulseState rank;
  rank.rank = 3;
  rank.phase = PulsePhase::save;
  rank.step = 7;
  rank.began = 90;
  job.ranks = {rank};
  job.records.step = observe::MetricsRecord{.step = 7};
  job.records.step->values = {{"step", 7}, {"loss", std::nan("")}, {"time", 95}};
  job.records.step->values["comm.tp.exposed_ms"] = 250;
  const std::string text = observe::prometheus_text(job, 100);
  CHECK_THAT(text, Contains("\nmtrain_restarts_total 2\n"));
  CHECK_THAT(text, Contains("\nmtrain_loss NaN\n"));
  CHECK_THAT(text, Contains("\nmtrain_record_age_seconds 5\n"));
  CHECK_THAT(text, Contains("\nmtrain_exposed_communication_seconds{kind=\"tp\"} 0.25\n"));
  CHECK_THAT(text, Contains("\nmtrain_rank_phase_seconds{rank=\"3\"} 10\n"));
  CHECK_THAT(text, Contains("\nmtrain_rank_phase{rank=\"3\",phase=\"save\"} 1\n"));
  CHECK_THAT(text, Contains("\nmtrain_rank_phase{rank=\"3\",phase=\"step\"} 0\n"));
  CHECK_THAT(text, !Contains("\nmtrain_rank_step_seconds{"));  // no step has ended yet
  CHECK_THAT(text, !Contains("\nmtrain_rank_exposed_seconds{"));
  CHECK_THAT(text, !Contains("mtrain_mfu_ratio"));
  CHECK_THAT(text, !Contains("mtrain_checkpoint"));
}

}  // namespace observe_prometheus_test
