// Tables of where packed documents begin and how long they are, in cuDNN's form. They are filled on
// the GPU, where the documents' borders are.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace mtrain::kernels::cuda {

struct DocumentTable {
  static constexpr int64_t kMaxTensors = 9;

  const int32_t *begin, *end;    // rows of the documents, one behind the other
  int64_t documents, room;       // how many there are, and how many the tables have room for
  int64_t tensors;               // how many tensors hold the documents
  int64_t strides[kMaxTensors];  // elements from a row to the next
  int32_t* lengths;              // (room): rows, 0 behind the last document
  // (tensors, room + 1): the element at which each document begins; behind the last one, the end.
  int32_t* offsets;
  int64_t pitch;  // from a tensor's offsets to the next one's
};

void run(const DocumentTable& t, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
