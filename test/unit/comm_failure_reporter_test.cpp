// Tests which ranks a failing group names, from the reports of its ranks.
#include "comm/failure_reporter.h"

#include <thread>

#include <catch2/catch.hpp>

namespace comm_failure_reporter_test {

using namespace mtrain;
using namespace mtrain::comm;
using namespace mtrain::store;

namespace {

struct Rank {
  uint64_t call;  // the number of the collective in which the rank ran into its timeout
  bool answers = true;
};

// Returns the message of rank `asked` after every rank that answers has run into its timeout.
std::string verdict_of(const std::vector<Rank>& ranks, int asked) {
  const StoreServer server({"127.0.0.1", 0, Token::random()});
  const auto timeout = std::chrono::seconds(5);
  const auto store = [&] { return std::make_shared<Store>(server.address(), timeout); };
  std::vector<std::unique_ptr<FailureReporter>> calls;
  for (int r = 0; r < int(ranks.size()); ++r)
    calls.push_back(
        std::make_unique<FailureReporter>(store(), "dp_cp", r, int(ranks.size()), timeout));
  const CollectiveFailure failure{-1, false, true, ""};
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].answers) calls[r]->report({ranks[r].call, "all_reduce", false}, failure);
  return calls[size_t(asked)]
      ->explain({ranks[size_t(asked)].call, "all_reduce", false}, failure)
      .message();
}

}  // namespace

TEST_CASE("a rank that does not answer is named, not one that waits for it in an earlier call") {
  // Rank 1 stopped when rank 2 had all of call 13 and rank 0 had not.
  CHECK(verdict_of({{13}, {13, false}, {14}}, 2) == "rank 1 of the group did not arrive after 5 s");
  CHECK(verdict_of({{13}, {13, false}, {14}}, 0) == "rank 1 of the group did not arrive after 5 s");
}

TEST_CASE("of ranks that all answer, the one at the earliest call is named") {
  CHECK(verdict_of({{13}, {14}, {15}}, 2) == "rank 0 of the group did not arrive after 5 s");
  CHECK(verdict_of({{14}, {13}, {15}, {13}}, 2) ==
        "rank 1, 3 of the group did not arrive after 5 s");
  CHECK(verdict_of({{14}, {14}}, 0) == "all ranks arrived, but the call did not end after 5 s");
}

}  // namespace comm_failure_reporter_test
