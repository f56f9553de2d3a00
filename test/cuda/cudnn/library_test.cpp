// Asks the installed cuDNN for plans for a GPU that is only described. Tests that it knows the
// numbers in kernels/cuda/cudnn/api.h, accepts the graphs, and finds engines that compile. Runs
// beside driver_stand_in.cpp; nothing is executed.
#include <catch2/catch.hpp>

#include <string_view>

#include <cudnn_graph.h>

#include "base/error.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/plan.h"

using namespace mtrain;
using namespace mtrain::kernels;
using namespace mtrain::kernels::cuda;

namespace {

#define MT_SAME(ours, theirs) static_assert(int(ours) == int(theirs))
MT_SAME(CudnnStatus::bad_param, CUDNN_STATUS_BAD_PARAM);
MT_SAME(CudnnStatus::not_supported, CUDNN_STATUS_NOT_SUPPORTED);
MT_SAME(CudnnStatus::internal_error, CUDNN_STATUS_INTERNAL_ERROR);
MT_SAME(CudnnStatus::execution_failed, CUDNN_STATUS_EXECUTION_FAILED);
MT_SAME(CudnnType::handle, CUDNN_TYPE_HANDLE);
MT_SAME(CudnnType::data_type, CUDNN_TYPE_DATA_TYPE);
MT_SAME(CudnnType::boolean, CUDNN_TYPE_BOOLEAN);
MT_SAME(CudnnType::int64, CUDNN_TYPE_INT64);
MT_SAME(CudnnType::float32, CUDNN_TYPE_FLOAT);
MT_SAME(CudnnType::void_ptr, CUDNN_TYPE_VOID_PTR);
MT_SAME(CudnnType::heuristic_mode, CUDNN_TYPE_HEUR_MODE);
MT_SAME(CudnnType::numerical_note, CUDNN_TYPE_NUMERICAL_NOTE);
MT_SAME(CudnnType::pointwise_mode, CUDNN_TYPE_POINTWISE_MODE);
MT_SAME(CudnnType::descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
MT_SAME(CudnnType::reduction_operator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
MT_SAME(CudnnType::characters, CUDNN_TYPE_CHAR);
MT_SAME(CudnnDescriptor::pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
MT_SAME(CudnnDescriptor::engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
MT_SAME(CudnnDescriptor::engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
MT_SAME(CudnnDescriptor::heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
MT_SAME(CudnnDescriptor::execution_plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
MT_SAME(CudnnDescriptor::operation_pointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
MT_SAME(CudnnDescriptor::operation_graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
MT_SAME(CudnnDescriptor::variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
MT_SAME(CudnnDescriptor::tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
MT_SAME(CudnnDescriptor::matmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
MT_SAME(CudnnDescriptor::operation_matmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
MT_SAME(CudnnDescriptor::reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
MT_SAME(CudnnDescriptor::operation_reduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
MT_SAME(CudnnDescriptor::operation_reshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
MT_SAME(CudnnDescriptor::device_properties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
MT_SAME(CudnnAttribute::pointwise_mode, CUDNN_ATTR_POINTWISE_MODE);
MT_SAME(CudnnAttribute::pointwise_math_precision, CUDNN_ATTR_POINTWISE_MATH_PREC);
MT_SAME(CudnnAttribute::pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS);
MT_SAME(CudnnAttribute::heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE);
MT_SAME(CudnnAttribute::heuristics_operation_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
MT_SAME(CudnnAttribute::heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS);
MT_SAME(CudnnAttribute::heuristics_device_properties, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
MT_SAME(CudnnAttribute::engine_config_engine, CUDNN_ATTR_ENGINECFG_ENGINE);
MT_SAME(CudnnAttribute::plan_engine_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
MT_SAME(CudnnAttribute::plan_workspace_size, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
MT_SAME(CudnnAttribute::operation_pointwise_descriptor,
        CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
MT_SAME(CudnnAttribute::operation_pointwise_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
MT_SAME(CudnnAttribute::operation_pointwise_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
MT_SAME(CudnnAttribute::operation_pointwise_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
MT_SAME(CudnnAttribute::operation_pointwise_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
// The name of this constant is deprecated, but not its number.
static_assert(int(CudnnAttribute::operation_graph_handle) == CUDNN_ATTR_OPERATIONGRAPH_OPS - 1);
MT_SAME(CudnnAttribute::operation_graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
MT_SAME(CudnnAttribute::tensor_byte_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
MT_SAME(CudnnAttribute::tensor_data_type, CUDNN_ATTR_TENSOR_DATA_TYPE);
MT_SAME(CudnnAttribute::tensor_dimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
MT_SAME(CudnnAttribute::tensor_strides, CUDNN_ATTR_TENSOR_STRIDES);
MT_SAME(CudnnAttribute::tensor_unique_id, CUDNN_ATTR_TENSOR_UNIQUE_ID);
MT_SAME(CudnnAttribute::tensor_is_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
MT_SAME(CudnnAttribute::tensor_is_by_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
MT_SAME(CudnnAttribute::tensor_ragged_offset, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
MT_SAME(CudnnAttribute::variant_pack_unique_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
MT_SAME(CudnnAttribute::variant_pack_data_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
MT_SAME(CudnnAttribute::variant_pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
MT_SAME(CudnnAttribute::engine_numerical_note, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
MT_SAME(CudnnAttribute::matmul_compute_type, CUDNN_ATTR_MATMUL_COMP_TYPE);
MT_SAME(CudnnAttribute::operation_matmul_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
MT_SAME(CudnnAttribute::operation_matmul_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
MT_SAME(CudnnAttribute::operation_matmul_c, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
MT_SAME(CudnnAttribute::operation_matmul_descriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
MT_SAME(CudnnAttribute::operation_matmul_m_override,
        CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
MT_SAME(CudnnAttribute::operation_matmul_n_override,
        CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
MT_SAME(CudnnAttribute::operation_matmul_k_override,
        CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
MT_SAME(CudnnAttribute::reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR);
MT_SAME(CudnnAttribute::reduction_compute_type, CUDNN_ATTR_REDUCTION_COMP_TYPE);
MT_SAME(CudnnAttribute::operation_reduction_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
MT_SAME(CudnnAttribute::operation_reduction_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
MT_SAME(CudnnAttribute::operation_reduction_descriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
MT_SAME(CudnnAttribute::operation_reshape_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
MT_SAME(CudnnAttribute::operation_reshape_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
MT_SAME(CudnnAttribute::device_properties_json, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
MT_SAME(CudnnDataType::float32, CUDNN_DATA_FLOAT);
MT_SAME(CudnnDataType::int32, CUDNN_DATA_INT32);
MT_SAME(CudnnDataType::float16, CUDNN_DATA_HALF);
MT_SAME(CudnnDataType::bfloat16, CUDNN_DATA_BFLOAT16);
MT_SAME(CudnnDataType::boolean, CUDNN_DATA_BOOLEAN);
MT_SAME(CudnnPointwise::add, CUDNN_POINTWISE_ADD);
MT_SAME(CudnnPointwise::mul, CUDNN_POINTWISE_MUL);
MT_SAME(CudnnPointwise::div, CUDNN_POINTWISE_DIV);
MT_SAME(CudnnPointwise::sub, CUDNN_POINTWISE_SUB);
MT_SAME(CudnnPointwise::exp, CUDNN_POINTWISE_EXP);
MT_SAME(CudnnPointwise::log, CUDNN_POINTWISE_LOG);
MT_SAME(CudnnPointwise::identity, CUDNN_POINTWISE_IDENTITY);
MT_SAME(CudnnPointwise::compare_greater, CUDNN_POINTWISE_CMP_GT);
MT_SAME(CudnnPointwise::compare_greater_equal, CUDNN_POINTWISE_CMP_GE);
MT_SAME(CudnnPointwise::compare_less, CUDNN_POINTWISE_CMP_LT);
MT_SAME(CudnnPointwise::logical_and, CUDNN_POINTWISE_LOGICAL_AND);
MT_SAME(CudnnPointwise::generate_index, CUDNN_POINTWISE_GEN_INDEX);
MT_SAME(CudnnPointwise::binary_select, CUDNN_POINTWISE_BINARY_SELECT);
MT_SAME(CudnnReduction::add, CUDNN_REDUCE_TENSOR_ADD);
MT_SAME(CudnnReduction::max, CUDNN_REDUCE_TENSOR_MAX);
MT_SAME(CudnnHeuristicMode::fallback, CUDNN_HEUR_MODE_FALLBACK);
MT_SAME(CudnnHeuristicMode::a, CUDNN_HEUR_MODE_A);
MT_SAME(CudnnNote::nondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
MT_SAME(kCudnnNotes, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);

constexpr std::string_view kH200 =
    R"({"deviceName":"NVIDIA H200","deviceVer":900,"driverVer":13000,"cudaDeviceId":0,)"
    R"("multiProcessorCount":132,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
    R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"warpSize":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"maxGridSize":[2147483647,65535,65535],)"
    R"("maxBlockSize":[1024,1024,64],"totalGlobalMem":150000000000,"l2CacheSize":62914560,)"
    R"("smClockRateKHz":1980000,"memClockRateKHz":3201000,"pciDeviceId":0,"isTccDriver":0,)"
    R"("supportCoopLaunch":1})";
constexpr std::string_view kA100 =
    R"({"deviceName":"NVIDIA A100","deviceVer":800,"driverVer":13000,"cudaDeviceId":0,)"
    R"("multiProcessorCount":108,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":166912,"reservedSharedMemoryPerBlock":1024,)"
    R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"warpSize":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"maxGridSize":[2147483647,65535,65535],)"
    R"("maxBlockSize":[1024,1024,64],"totalGlobalMem":80000000000,"l2CacheSize":41943040,)"
    R"("smClockRateKHz":1410000,"memClockRateKHz":1593000,"pciDeviceId":0,"isTccDriver":0,)"
    R"("supportCoopLaunch":1})";

// A finalized descriptor of a GPU.
class Described {
 public:
  explicit Described(std::string_view json) {
    const CudnnApi& api = cudnn_library().api;
    REQUIRE(api.create_descriptor(CudnnDescriptor::device_properties, &descriptor_) ==
            CudnnStatus::success);
    INFO("cuDNN's form of a GPU's description is its own, and may differ in another version");
    REQUIRE(api.set_attribute(descriptor_, CudnnAttribute::device_properties_json,
                              CudnnType::characters, int64_t(json.size()),
                              json.data()) == CudnnStatus::success);
    REQUIRE(api.finalize(descriptor_) == CudnnStatus::success);
  }
  ~Described() { cudnn_library().api.destroy_descriptor(descriptor_); }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;
  // Returns "" if there is a plan, else cuDNN's message.
  std::string plan(const CudnnAttentionKey& key, int64_t* workspace = nullptr) const {
    try {
      const CudnnPlan plan(cudnn_library().api, {.device_properties = descriptor_},
                           key.backward ? backward_graph(key) : forward_graph(key),
                           {.deterministic = key.deterministic});
      if (workspace) *workspace = plan.workspace();
      return "";
    } catch (const RunError& e) {
      return e.message();
    }
  }

 private:
  void* descriptor_ = nullptr;
};

struct Case {
  int64_t B, Sq, Skv, A, G, D;
  bool causal = true;
  int64_t window = 0;
};
// Keys of attention whose q, k and v, and their gradients, lie in one row of a token.
CudnnAttentionKey forward_of(const Case& c) {
  const AttentionShape shape{.B = c.B,
                             .Sq = c.Sq,
                             .Skv = c.Skv,
                             .A = c.A,
                             .G = c.G,
                             .D = c.D,
                             .causal = c.causal,
                             .window = c.window,
                             .scale = 0.125f};
  const int64_t row = (c.A + 2 * c.G) * c.D;
  return key_of(AttentionForward{
      .shape = shape, .q = {{}, row}, .k = {{}, row}, .v = {{}, row}, .out = {{}, c.A * c.D}});
}
CudnnAttentionKey backward_of(const Case& c, bool deterministic) {
  CudnnAttentionKey key = forward_of(c);
  key.backward = true, key.deterministic = deterministic;
  key.dout = key.out;
  key.dq = key.dk = key.dv = key.q;
  return key;
}

}  // namespace

TEST_CASE("cuDNN has plans for a described H200, forward and both backwards") {
  REQUIRE(cudnn_library().problem == "");
  const Described gpu(kH200);
  // A model of 1.5B, one of 8B, sequences off every tile, a head as wide as any, windows, no mask.
  for (const Case& c : {Case{8, 1024, 1024, 12, 2, 128}, Case{1, 4096, 4096, 32, 8, 128},
                        Case{2, 257, 257, 4, 2, 64, true, 40}, Case{1, 130, 130, 8, 2, 80},
                        Case{1, 512, 512, 8, 8, 256}, Case{2, 96, 320, 4, 4, 64, false}}) {
    CAPTURE(c.Sq, c.Skv, c.A, c.G, c.D);
    REQUIRE(gpu.plan(forward_of(c)) == "");
    for (bool deterministic : {false, true}) {
      CAPTURE(deterministic);
      int64_t workspace = 0;
      REQUIRE(gpu.plan(backward_of(c, deterministic), &workspace) == "");
      REQUIRE(workspace >= c.B * c.A * c.Sq * 4);  // the sums of out x dout at least
    }
  }
}

TEST_CASE(
    "cuDNN has plans for packed documents on a described H200, in memory of the tokens' size") {
  REQUIRE(cudnn_library().problem == "");
  const Described gpu(kH200);
  for (const Case& c : {Case{16, 4096, 4096, 12, 2, 128}, Case{8, 8192, 8192, 32, 8, 128},
                        Case{1, 300, 300, 4, 4, 64}, Case{4, 2048, 2048, 8, 2, 64, true, 300},
                        Case{2, 1024, 1024, 8, 4, 128, false}}) {
    CAPTURE(c.B, c.Sq, c.A, c.G, c.D);
    int64_t workspace = 0;
    CudnnAttentionKey forward = forward_of(c);
    forward.documents = true;
    REQUIRE(gpu.plan(forward, &workspace) == "");
    CudnnAttentionKey backward = backward_of(c, false);
    backward.documents = true;
    backward.dq = c.A * c.D, backward.dk = backward.dv = c.G * c.D;
    REQUIRE(gpu.plan(backward, &workspace) == "");
    CAPTURE(workspace);
    // Sums of dq in fp32, dk and dv of each query head, those of out x dout.
    const int64_t per_query_head = c.Sq * c.A * c.D;
    REQUIRE(workspace <= per_query_head * (4 + 2 + 2) + c.Sq * c.A * 4 + (1 << 20));
    // Four packs in one sequence.
    forward.rows = backward.rows = 4 * c.Sq;
    REQUIRE(gpu.plan(forward, &workspace) == "");
    REQUIRE(gpu.plan(backward, &workspace) == "");
    REQUIRE(workspace <= 4 * (per_query_head * (4 + 2 + 2) + c.Sq * c.A * 4) + (1 << 20));
  }
}

TEST_CASE("cuDNN takes the long backwards that need memory, and deterministic ones by some heads") {
  REQUIRE(cudnn_library().problem == "");
  const Described gpu(kH200);
  constexpr int64_t kGiB = int64_t(1) << 30;
  int64_t workspace = 0;
  REQUIRE(gpu.plan(backward_of({1, 131072, 131072, 32, 8, 128}, false), &workspace) == "");
  CHECK(workspace > 2 * kGiB);
  for (const bool documents : {false, true}) {
    CAPTURE(documents);
    CudnnAttentionKey key = backward_of({2, 8192, 8192, 32, 8, 128}, true);
    key.documents = documents;
    if (documents) key.dq = key.A * key.D, key.dk = key.dv = key.G * key.D;
    REQUIRE(gpu.plan(key, &workspace) == "");
    const int64_t whole = workspace;
    CHECK(whole > kGiB);
    key.A /= 8, key.G /= 8;
    REQUIRE(gpu.plan(key, &workspace) == "");
    CHECK(workspace < whole / 4);
  }
}

TEST_CASE("cuDNN has plans for a described A100") {
  REQUIRE(cudnn_library().problem == "");
  const Described gpu(kA100);
  const Case c{4, 1024, 1024, 12, 4, 64};
  REQUIRE(gpu.plan(forward_of(c)) == "");
  for (bool deterministic : {false, true}) REQUIRE(gpu.plan(backward_of(c, deterministic)) == "");
}

TEST_CASE("cuDNN refuses graphs that break its rules, with a message") {
  REQUIRE(cudnn_library().problem == "");
  const Described gpu(kH200);
  const std::string said = gpu.plan(forward_of({1, 64, 64, 2, 2, 12}));  // heads of 24 bytes
  CAPTURE(said);
  REQUIRE(said != "");
}
