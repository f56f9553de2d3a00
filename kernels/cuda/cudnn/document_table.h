// Tables of the offsets and lengths of packed documents, in cuDNN's form. They are filled on the
// GPU, since the documents' bounds are in its memory.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace mtrain::kernels::cuda {

struct DocumentTable {
  static constexpr int64_t kMaxTensors = 9;

  const int32_t *begin, *end;  // rows of the documents, one after the other
  int64_t documents, room;     // the number of documents, and the number that fits into the tables
  int64_t tensors;             // how many tensors hold the documents
  int64_t strides[kMaxTensors];  // elements from one row to the next
  int32_t* lengths;              // (room): rows; 0 after the last document
  // (tensors, room + 1): the element at which each document begins; after the last one, the end.
  int32_t* offsets;
  int64_t pitch;  // from a tensor's offsets to the next one's
};

void run(const DocumentTable& t, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
