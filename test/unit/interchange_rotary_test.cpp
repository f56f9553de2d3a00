// Compares the tables of rotary positions with transformers' functions: test/golden/rope.json,
// which scripts/golden/rope.py has written from configurations of each type.
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "device/device.h"
#include "interchange/config/reader.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "interchange/model_source.h"
#include "model/rotary.h"
#include "recipe/model_spec.h"
#include "recipe/recipe.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"

namespace interchange_rotary_test {

using namespace mtrain;
using nlohmann::json;

namespace {

const spec::Rotary& rotary_of(const spec::ModelSpec& model) {
  return model.layer(0).grouped().rotary;
}

spec::Rotary rotary_of(const json& golden) {
  Diagnostics diagnostics;
  const recipe::Recipe r =
      interchange::read_config_json(golden.at("config").dump(), "config.json", diagnostics);
  INFO(diagnostics.text(recipe::Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return rotary_of(recipe::model_spec(r.model, r.model.vocab_size, golden.at("length")));
}

}  // namespace

TEST_CASE("rotary tables are those of transformers for each type of scaling") {
  const json file =
      json::parse(read_file(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/rope.json"));
  const auto device = Device::cpu(1, {});
  Stream& stream = device->stream(device::StreamKind::compute);
  for (const auto& [name, golden] : file.at("cases").items()) {
    DYNAMIC_SECTION(name) {
      const spec::Rotary rotary = rotary_of(golden);
      CHECK(rotary.scaling.attention_factor ==
            Approx(golden.at("attention_factor").get<double>()).epsilon(1e-14));
      const auto wanted = golden.at("frequencies").get<std::vector<double>>();
      const auto got = model::rotary_frequencies(rotary);
      REQUIRE(got.size() == wanted.size());
      // transformers computes in fp32: a power, a product, and a ramp between two of them.
      for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(wanted[i]).epsilon(2e-6));

      const auto positions = file.at("positions").get<std::vector<int64_t>>();
      const auto tables = model::rotary_tables(stream, rotary, positions.back() + 1);
      const auto R = int64_t(got.size());
      for (const auto& [key, table] : {std::pair{"cos", tables.cos_PR}, {"sin", tables.sin_PR}}) {
        REQUIRE(table.shape() == Shape{positions.back() + 1, R});
        const auto values = table.to_host<float>(stream);
        for (size_t p = 0; p < positions.size(); ++p)
          for (int64_t i = 0; i < R; ++i) {
            INFO(key << " at position " << positions[p] << " of lane " << i);
            // An angle errs by the frequency's error at each position.
            const double allowed = 3e-6 * (1 + double(positions[p]) * wanted[size_t(i)]);
            CHECK(std::abs(values[size_t(positions[p] * R + i)] -
                           golden.at(key).at(p).at(size_t(i)).get<double>()) < allowed);
          }
      }
    }
  }
}

TEST_CASE("an imported model has longrope's factors for sequences up to its original length") {
  const TemporaryFolder temporary;
  for (const auto& [name, length] :
       {std::pair{"phi3_longrope", int64_t{16}}, {"phi3_longrope_long", int64_t{4}}}) {
    INFO(name);
    const auto checkpoint =
        interchange::import_hf(interchange::open_hf_folder(golden_hf() / name), temporary / name);
    Diagnostics diagnostics;
    const auto r = recipe::read_recipe(interchange::model_source(),
                                       (checkpoint / "recipe.yaml").string(), {}, diagnostics);
    REQUIRE(r);
    REQUIRE_FALSE(diagnostics.has_errors());
    CHECK(sample_length(*r) == length);
    const spec::RopeScaling rope =
        rotary_of(recipe::model_spec(r->model, 64, sample_length(*r))).scaling;
    CHECK(rope.lane_factors == std::vector<double>{1, 1.1, 1.2, 1.4, 1.7, 2});
    CHECK(rope.valid_positions == length);
  }
}

}  // namespace interchange_rotary_test
