// Tests the values of torchrun's options.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "launch/torchrun_options.h"

namespace launch_torchrun_options_test {

using namespace mtrain;
using namespace mtrain::launch;
using Catch::Matchers::Contains;

TEST_CASE("an endpoint is a host with or without a port") {
  struct Row {
    const char *text, *host;
    int port = -1;
  };
  for (const Row& row :
       {Row{.text = "node0:29500", .host = "node0", .port = 29500},
        Row{.text = "node0", .host = "node0"}, Row{.text = " node0:0 ", .host = "node0", .port = 0},
        Row{.text = "10.0.0.1:1", .host = "10.0.0.1", .port = 1},
        Row{.text = "[::1]:29400", .host = "::1", .port = 29400},
        Row{.text = "[fe80::1]", .host = "fe80::1"}}) {
    INFO(row.text);
    const Endpoint e = parse_endpoint(row.text);
    CHECK(e.host == row.host);
    CHECK((e.port ? int(*e.port) : -1) == row.port);
  }
  for (const char* text : {"", ":1", "a:", "a:65536", "a:-1", "a:b", "::1", "::1:29400", "[::1",
                           "[]:1", "[::1]29400"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_endpoint(text), UserError);
  }
}

TEST_CASE("the address of rank 0 has neither a port nor a path") {
  for (const char* text : {"node0", "10.0.0.1", "::1", "fe80::1%eth0", "node0.example.org"}) {
    INFO(text);
    CHECK(parse_host("--master_addr", text) == text);
  }
  CHECK(parse_host("--master_addr", "[::1]") == "::1");
  for (const char* text : {"10.0.0.1:29511", "http://10.0.0.1:29511", "tcp://10.0.0.1:29511/x"}) {
    INFO(text);
    CHECK_THROWS_WITH(parse_host("--master_addr", text),
                      Contains("takes a host without a port") &&
                          Contains("write --master_addr 10.0.0.1 --master_port 29511"));
  }
  CHECK_THROWS_WITH(parse_host("--master_addr", "[::1]:29511"),
                    Contains("write --master_addr ::1 --master_port 29511"));
  CHECK_THROWS_WITH(parse_host("--master_addr", "node0/x"), Contains("write --master_addr node0"));
  // The message names what holds the address.
  CHECK_THROWS_WITH(parse_host("--local_addr", "node0:1"),
                    Contains("--local_addr=node0:1 is not a host") &&
                        Contains("write --local_addr node0 --master_port 1"));
  CHECK_THROWS_WITH(parse_host("MASTER_ADDR", "node0:1"),
                    Contains("MASTER_ADDR=node0:1 is not a host") &&
                        Contains("write MASTER_ADDR=node0 MASTER_PORT=1"));
}

TEST_CASE("a number of hosts is fixed, or has bounds") {
  const auto range = [](const char* text) {
    const NodeRange nodes = parse_nodes(text);
    return std::pair(nodes.least, nodes.most);
  };
  CHECK(range("3") == std::pair(3, 3));
  CHECK(range("1:1") == std::pair(1, 1));
  CHECK(range("1:4") == std::pair(1, 4));
  CHECK_THROWS_WITH(parse_nodes("4:1"), Contains("write --nnodes=1:4"));
  for (const char* text : {"", "0", "-1", "2:", ":2", "two", "1:1:1", "100001"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_nodes(text), UserError);
  }
}

TEST_CASE("streams go into files for all ranks or for those named") {
  CHECK(parse_streams("--tee", "3").of(7) == 3);
  CHECK_FALSE(parse_streams("--tee", "0").any());
  const Streams named = parse_streams("--redirects", "0:3,2:1");
  CHECK(named.of(0) == 3);
  CHECK(named.of(1) == 0);
  CHECK(named.of(2) == 1);
  for (const char* text : {"", "4", "0:4", "0:", ":1", "a:1", "0:1,", "-1:1"}) {
    INFO(text);
    CHECK_THROWS_WITH(parse_streams("--redirects", text), Contains("--redirects"));
  }
}

TEST_CASE("a filter names ranks of the host") {
  CHECK(parse_local_ranks("").empty());
  CHECK(parse_local_ranks("0, 2") == std::set<int>{0, 2});
  for (const char* text : {"a", "0,", "-1", "0-2"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_local_ranks(text), UserError);
  }
}

TEST_CASE("each key of the rendezvous' configuration acts, has a reason not to, or is refused") {
  const RendezvousConfig c = parse_rendezvous_config("rank=1,timeout=900, is_host=true,");
  CHECK(c.node == 1);
  REQUIRE(c.warnings.size() == 2);
  CHECK_THAT(c.warnings[0], Contains("timeout has no effect") && Contains("comm.timeout_s"));
  CHECK_THAT(c.warnings[1], Contains("is_host has no effect"));
  CHECK_THROWS_WITH(parse_rendezvous_config("rnak=1"), Contains("there is no key rnak"));
  CHECK_THROWS_WITH(parse_rendezvous_config("rank=x"), Contains("rank=x"));
  CHECK_THROWS_WITH(parse_rendezvous_config("rank"), Contains("no value"));
}

}  // namespace launch_torchrun_options_test
