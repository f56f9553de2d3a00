#include "base/dtype.h"

#include "base/error.h"

namespace mtrain {

int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::f64: return 8;
    case DType::i32: return 4;
    case DType::i64: return 8;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: return 1;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::f64: return "fp64";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::u8: return "uint8";
    case DType::f8e4m3: return "fp8 e4m3";
    case DType::f8e5m2: return "fp8 e5m2";
  }
  return "?";
}

void throw_not_float(DType dtype) {
  throw BugError(
      fmt::format("an operation for fp32, bf16 or fp16 was given {}", dtype_name(dtype)));
}
void throw_not_float8(DType dtype) {
  throw BugError(fmt::format("an operation for 8-bit floats was given {}", dtype_name(dtype)));
}

}  // namespace mtrain
