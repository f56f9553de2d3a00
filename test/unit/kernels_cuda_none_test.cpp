#include <catch2/catch.hpp>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"

namespace kernels_cuda_none_test {

using namespace mtrain;
using namespace mtrain::kernels;

TEST_CASE("without CUDA its kernels say so and name the way out") {
  REQUIRE_THROWS_AS(cuda::run(AttentionForward{}, nullptr), UserError);
  REQUIRE_THROWS_WITH(cuda::run(Matmul{}, nullptr),
                      Catch::Contains("no CUDA kernels") && Catch::Contains("CPU device"));
}

}  // namespace kernels_cuda_none_test
