// The part of cuDNN 9's backend API that mtrain uses, as a table of functions: loaded at run time,
// or replaced by a test's fake. It needs no header of cuDNN or CUDA. The numbers are cuDNN's;
// test/cuda/cudnn/library_test.cpp compares them with its header.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;
struct cudnnContext;

namespace mtrain::kernels::cuda {

enum class CudnnStatus : int {
  success = 0,
  bad_param = 2000,
  not_supported = 3000,
  internal_error = 4000,
  execution_failed = 5000
};

// Returns whether the library has refused the request before it began: the categories "bad
// parameter" (for example too little workspace) and "not supported". In the library's numbers the
// thousands are the category, and the rest is the cause.
constexpr bool is_refusal(CudnnStatus status) {
  const int category = int(status) / 1000 * 1000;
  return category == int(CudnnStatus::bad_param) || category == int(CudnnStatus::not_supported);
}

enum class CudnnType : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  float32 = 4,
  void_ptr = 6,
  heuristic_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  characters = 24
};

enum class CudnnDescriptor : int {
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  execution_plan = 5,
  operation_pointwise = 13,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  operation_matmul = 19,
  reduction = 21,
  operation_reduction = 22,
  operation_reshape = 31,
  device_properties = 38
};

enum class CudnnAttribute : int {
  pointwise_mode = 0,
  pointwise_math_precision = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_operation_graph = 201,
  heuristics_results = 202,
  heuristics_device_properties = 204,
  engine_config_engine = 300,
  plan_engine_config = 401,
  plan_workspace_size = 402,
  operation_pointwise_descriptor = 750,
  operation_pointwise_x = 751,
  operation_pointwise_b = 752,
  operation_pointwise_y = 753,
  operation_pointwise_t = 758,
  operation_graph_handle = 800,
  operation_graph_operations = 801,
  tensor_byte_alignment = 900,
  tensor_data_type = 901,
  tensor_dimensions = 902,
  tensor_strides = 903,
  tensor_unique_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  tensor_ragged_offset = 913,
  variant_pack_unique_ids = 1000,
  variant_pack_data_pointers = 1001,
  variant_pack_workspace = 1003,
  engine_numerical_note = 1303,
  matmul_compute_type = 1500,
  operation_matmul_a = 1520,
  operation_matmul_b = 1521,
  operation_matmul_c = 1522,
  operation_matmul_descriptor = 1523,
  operation_matmul_m_override = 1525,
  operation_matmul_n_override = 1526,
  operation_matmul_k_override = 1527,
  reduction_operator = 1600,
  reduction_compute_type = 1601,
  operation_reduction_x = 1610,
  operation_reduction_y = 1611,
  operation_reduction_descriptor = 1612,
  operation_reshape_x = 2200,
  operation_reshape_y = 2201,
  device_properties_json = 2702
};

enum class CudnnDataType : int { float32 = 0, float16 = 2, int32 = 4, bfloat16 = 9, boolean = 11 };

enum class CudnnPointwise : int {
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  identity = 21,
  compare_greater = 302,
  compare_greater_equal = 303,
  compare_less = 304,
  logical_and = 400,
  generate_index = 501,
  binary_select = 601
};

enum class CudnnReduction : int { add = 0, max = 3 };
enum class CudnnHeuristicMode : int { fallback = 2, a = 3 };
enum class CudnnNote : int { nondeterministic = 4 };
constexpr int64_t kCudnnNotes = 10;  // the number of kinds of notes

// cuDNN's functions, with the enums above instead of cuDNN's.
struct CudnnApi {
  CudnnStatus (*create)(cudnnContext** handle);
  CudnnStatus (*destroy)(cudnnContext* handle);
  CudnnStatus (*set_stream)(cudnnContext* handle, CUstream_st* stream);
  size_t (*version)();
  const char* (*error_string)(CudnnStatus status);
  void (*last_error_string)(char* message, size_t most);
  CudnnStatus (*create_descriptor)(CudnnDescriptor kind, void** descriptor);
  CudnnStatus (*destroy_descriptor)(void* descriptor);
  CudnnStatus (*set_attribute)(void* descriptor, CudnnAttribute name, CudnnType type, int64_t count,
                               const void* values);
  // values: room for `room` values; count: their actual number. Descriptors among the values must
  // already exist.
  CudnnStatus (*get_attribute)(void* descriptor, CudnnAttribute name, CudnnType type, int64_t room,
                               int64_t* count, void* values);
  CudnnStatus (*finalize)(void* descriptor);
  CudnnStatus (*execute)(cudnnContext* handle, void* plan, void* variant_pack);
};

struct CudnnLibrary {
  CudnnApi api{};
  std::string problem;  // why it is not loaded; "" if it is
};

// libcudnn.so.9, loaded at the first call.
const CudnnLibrary& cudnn_library();

// Returns "cuDNN 9.19.0", or why there is none.
std::string cudnn_description();

}  // namespace mtrain::kernels::cuda
