// Tests what the graphs of cuDNN's C++ frontend compute, with a stand-in for cuDNN that executes
// them (backend_stand_in.cpp). Runs beside driver_stand_in.cpp.
#include <catch2/catch.hpp>

#include "backend_stand_in.h"
#include "test/support/cudnn_testing.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::test;
using namespace mtrain::test::cudnn_testing;
using Status = cudnnStatus_t;

namespace {

// Attention through the stand-in, on an H200.
struct Bench {
  CudnnBackendStandIn& library = CudnnBackendStandIn::it();
  cuda::CudnnAttention attention{cuda::cudnn_library().api,
                                 reinterpret_cast<cudnnContext*>(&library),
                                 {.version = 91900, .architecture = 90},
                                 kDevice};
  Bench() {
    REQUIRE(cuda::cudnn_library().problem == "");
    library.engines = {{}};
    library.fallback_engines = {};
    library.narrowest_row.clear();
    library.plans = library.executions = 0;
  }
};

}  // namespace

TEST_CASE("the graphs compute attention and its gradients, as the CPU kernels do") {
  for (const auto* cases : {&kCases, &kBlocks})
    for (const Case& c : *cases)
      for (bool deterministic : {true, false}) {
        CAPTURE(c.name, deterministic);
        for (const DType type : {DType::bf16, DType::f16}) {
          Bench bench;
          compare(bench.attention, c, deterministic, type);
          CHECK(bench.library.executions == 2);
        }
      }
}

TEST_CASE("the graphs keep packed documents apart, as the CPU kernels do") {
  for (const Case& c : kPacks) {
    CAPTURE(c.name);
    Bench bench;
    compare(bench.attention, c, c.window > 0);
  }
}

TEST_CASE("plans leave no descriptor behind") {
  const int before = CudnnBackendStandIn::it().alive;
  {
    Bench bench;
    Operands o(kCases[0]);
    REQUIRE(bench.attention.run(o.forward(), nullptr));
    REQUIRE(bench.library.alive > before);
  }
  CHECK(CudnnBackendStandIn::it().alive == before);
}

TEST_CASE("engines are tried in the heuristics' order, then the fallback mode's") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.plan = CUDNN_STATUS_NOT_SUPPORTED}};
  bench.library.fallback_engines = {{.workspace = 1000}};
  most_taken = 0;
  REQUIRE(bench.attention.run(o.forward(), nullptr));
  CHECK(most_taken == 1000);
  CHECK(bench.attention.engine_of(o.forward()) == "cuDNN, engine 1");
}

TEST_CASE("where the order of sums is fixed, engines without one are passed over") {
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.deterministic = false}};
  REQUIRE(bench.attention.run(o.forward(), nullptr) == false);
  REQUIRE(!bench.attention.run(o.backward(), nullptr));
  REQUIRE(bench.attention.run(o.backward(false), nullptr));
  bench.library.engines = {{.deterministic = false}, {.deterministic = true}};
  Operands longer({"", 2, 24, 24, 2, 2, 8});
  REQUIRE(bench.attention.run(longer.backward(), nullptr));
}

TEST_CASE("a refusal to execute takes the next engine, and a failure is an error") {
  for (const Status refusal : {CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_BAD_PARAM,
                               CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN}) {
    CAPTURE(int(refusal));
    Bench bench;
    Operands o(kCases[0]);
    bench.library.engines = {{.executing = refusal}, {}};
    REQUIRE(bench.attention.run(o.forward(), nullptr));
    CHECK(bench.attention.engine_of(o.forward()) == "cuDNN, engine 1");
  }
  Bench bench;
  Operands o(kCases[0]);
  bench.library.engines = {{.executing = CUDNN_STATUS_EXECUTION_FAILED}};
  REQUIRE_THROWS_WITH(
      bench.attention.run(o.forward(), nullptr),
      Catch::Contains("CUDNN_STATUS_EXECUTION_FAILED") && Catch::Contains("the stand-in's why"));
}
