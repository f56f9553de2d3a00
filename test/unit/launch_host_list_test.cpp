// Tests Slurm's lists of hosts.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "launch/host_list.h"

namespace launch_host_list_test {

using namespace mtrain;
using launch::expand_hosts;

TEST_CASE("every form of a list of hosts is expanded in Slurm's order") {
  struct Case {
    const char* list;
    std::vector<std::string> hosts;
  };
  const std::vector<Case> cases{
      {"n1", {"n1"}},
      {"login", {"login"}},
      {"n1,n2,gpu-a", {"n1", "n2", "gpu-a"}},
      {"n[1-3,7]", {"n1", "n2", "n3", "n7"}},
      {"n[7,1-2]", {"n7", "n1", "n2"}},
      {"n[5]", {"n5"}},
      {"n[001-003]", {"n001", "n002", "n003"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[9-11]", {"n9", "n10", "n11"}},
      {"n[099-101,7]", {"n099", "n100", "n101", "n7"}},
      {"node[1-2]-ib,x[3]", {"node1-ib", "node2-ib", "x3"}},
      {"m[01-03]x[1-2]", {"m01x1", "m01x2", "m02x1", "m02x2", "m03x1", "m03x2"}},
      {"n[1-2,5],m[01-02]x[1,3]", {"n1", "n2", "n5", "m01x1", "m01x3", "m02x1", "m02x3"}},
      {"rack[0-1][00-01]", {"rack000", "rack001", "rack100", "rack101"}},
      {"a[1-2]b[3]c[4-5].example.org",
       {"a1b3c4.example.org", "a1b3c5.example.org", "a2b3c4.example.org", "a2b3c5.example.org"}},
      {"[1-2]", {"1", "2"}}};
  for (const Case& c : cases) {
    INFO(c.list);
    CHECK(expand_hosts(c.list) == c.hosts);
    CHECK(expand_hosts(c.list, 1) == std::vector{c.hosts.front()});
  }
}

TEST_CASE("a text that is not a list of hosts is refused, and a long list is bounded") {
  for (const char* list : {"",
                           ",",
                           "n1,",
                           ",n1",
                           "n[",
                           "n]",
                           "n[1",
                           "n[1-]",
                           "n[-1]",
                           "n[a-b]",
                           "n[]",
                           "n[2-1]",
                           "n[1-2",
                           "n1]",
                           "n[1-99999999]",
                           "n[1-60000]x[1-60000]",
                           "n[[1]]",
                           "n[1,,2]",
                           "n[99999999999999999999]",
                           "n[1-2]]"}) {
    INFO(list);
    CHECK_THROWS_AS(expand_hosts(list), UserError);
  }
  CHECK(expand_hosts("n[1-65536]").size() == launch::kMostHosts);
  CHECK(expand_hosts("n[1-65536],m[1-65536]").size() == launch::kMostHosts);
}

}  // namespace launch_host_list_test
