// Where packed documents begin and how long they are, as cuDNN wants it told: filled on the GPU,
// where the documents' borders are.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace mtrain::kernels::cuda {

struct DocumentTable {
  static constexpr int64_t kMaxTensors = 9;

  const int32_t *begin, *end;    // rows of the documents, one behind the other
  int64_t documents, room;       // how many there are, and for how many there is room
  int64_t tensors;               // that hold them, row behind row
  int64_t strides[kMaxTensors];  // elements from a row to the next
  int32_t* lengths;              // (room): rows, 0 behind the last document
  // (tensors, room + 1): the element at which each begins; behind the last document the end.
  int32_t* offsets;
  int64_t pitch;  // from a tensor's offsets to the next one's
};

void run(const DocumentTable& t, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
