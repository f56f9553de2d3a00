// Texts and numbers of all ranks on the host.
#include <catch2/catch.hpp>

#include "comm/host_collectives.h"
#include "test/support/comm_testing.h"

namespace comm_host_collectives_test {

using namespace mtrain;

namespace {

// The texts have different lengths; that of rank 1 is empty.
std::string text_of(int rank) {
  return rank == 1 ? "" : std::string(size_t(7 + 100 * rank), char('a' + rank)) + '\0';
}

}  // namespace

TEST_CASE("every rank gets the texts of all, or rank 0 alone does") {
  for (const std::string& backend : comm_backends())
    for (const int ranks : {1, 2, 5}) {
      CAPTURE(backend, ranks);
      std::vector<std::vector<std::string>> all(static_cast<size_t>(ranks)), first = all;
      run_ranks(ranks, backend, [&](TestRank& rank) {
        const comm::HostCollectives control(rank.world, rank.device);
        const auto own = size_t(rank.rank());
        all[own] = control.texts(text_of(rank.rank()));
        first[own] = control.texts_on_first(text_of(rank.rank()));
        control.texts_on_first("");  // of all ranks
      });
      std::vector<std::string> expected;
      for (int r = 0; r < ranks; ++r) expected.push_back(text_of(r));
      for (int r = 0; r < ranks; ++r) {
        CHECK(all[size_t(r)] == expected);
        CHECK(first[size_t(r)] == (r == 0 ? expected : std::vector<std::string>()));
      }
    }
}

TEST_CASE("every rank gets the largest value of all, and the first rank that has it") {
  for (const std::string& backend : comm_backends())
    for (const int ranks : {1, 2, 5}) {
      CAPTURE(backend, ranks);
      run_ranks(ranks, backend, [&](TestRank& rank) {
        const comm::HostCollectives control(rank.world, rank.device);
        const int64_t own = rank.rank(), huge = int64_t{1} << 57;
        const auto all = control.largest({own, 10 - own, 7, huge + own % 2, 0});
        REQUIRE(all.size() == 5);
        CHECK((all[0].value == ranks - 1 && all[0].rank == ranks - 1));
        CHECK((all[1].value == 10 && all[1].rank == 0));
        CHECK((all[2].value == 7 && all[2].rank == 0));  // all ranks have it
        const int odd = ranks > 1 ? 1 : 0;
        CHECK((all[3].value == huge + odd && all[3].rank == odd));
        CHECK((all[4].value == 0 && all[4].rank == 0));
      });
    }
}

}  // namespace comm_host_collectives_test
