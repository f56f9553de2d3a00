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

}  // namespace comm_host_collectives_test
