// Tests which GPUs of a host a process may use, by the values that CUDA_VISIBLE_DEVICES takes.
#include <catch2/catch.hpp>

#include "launch/host_gpus.h"

namespace launch_host_gpus_test {

using mtrain::launch::gpus_chosen_by;
using Names = std::vector<std::string>;

namespace {
const Names kHost{"NVIDIA H200", "NVIDIA A100", "NVIDIA H100"};
}

TEST_CASE("numbers choose GPUs in their order") {
  CHECK(gpus_chosen_by("2, 0", kHost) == Names{"NVIDIA H100", "NVIDIA H200"});
  CHECK(gpus_chosen_by("", kHost).empty());
}

TEST_CASE("a list of GPUs ends at the first that is not there") {
  CHECK(gpus_chosen_by("1,3,0", kHost) == Names{"NVIDIA A100"});
  CHECK(gpus_chosen_by("-1", kHost).empty());
  CHECK(gpus_chosen_by("0x1", kHost).empty());
}

TEST_CASE("a whole GPU that is named by its UUID has the name of the first") {
  CHECK(gpus_chosen_by("GPU-8932f937,GPU-1", kHost) == Names{"NVIDIA H200", "NVIDIA H200"});
}

TEST_CASE("a MIG slice is distinguished from its full GPU") {
  CHECK(gpus_chosen_by("MIG-GPU-8932f937/1/0", kHost) == Names{"NVIDIA H200 MIG"});
  CHECK(gpus_chosen_by("MIG-4a2b,1", kHost) == Names{"NVIDIA H200 MIG", "NVIDIA A100"});
}

TEST_CASE("no more GPUs are chosen than a host has") {
  CHECK(gpus_chosen_by("0,0,0,0", {"NVIDIA H200", ""}) == Names{"NVIDIA H200", "NVIDIA H200"});
  CHECK(gpus_chosen_by("GPU-1,MIG-2", {}).empty());
}

}  // namespace launch_host_gpus_test
