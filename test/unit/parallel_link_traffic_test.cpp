// Tests that a recipe's names of communication (comm.link.only) are those of streams: an emulated
// link finds the streams that it slows by their names.
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "device/stream_id.h"
#include "plan/options/recipe_options.h"
#include "recipe/recipe.h"

namespace parallel_link_traffic_test {

using namespace mtrain;

TEST_CASE("each kind of communication takes an emulated link by the names of its streams") {
  using device::StreamKind;
  recipe::Recipe r;
  std::set<std::string> slowed;
  for (const auto& traffic : enum_names(recipe::LinkTraffic{})) {
    r.comm.link.only = {traffic.value};
    const auto streams = plan::comm_options(r).link_streams;
    CHECK_FALSE(streams.empty());
    for (const std::string& stream : streams) {
      INFO(traffic.name << " takes the stream " << stream);
      CHECK(slowed.insert(stream).second);  // no stream serves two kinds
    }
  }
  std::set<std::string> communicate;
  for (int kind = 0; kind <= int(StreamKind::tp); ++kind)
    communicate.insert(std::string(stream_kind_name(StreamKind(kind))));
  for (const char* other : {"compute", "control", "copy"}) CHECK(communicate.erase(other) == 1);
  CHECK(slowed == communicate);
}

}  // namespace parallel_link_traffic_test
