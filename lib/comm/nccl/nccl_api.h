// What communicators need of NCCL and of the GPU it runs on: NCCL itself, or what stands in for it
// in tests. No header of NCCL or CUDA.
#pragma once
#include <memory>
#include <string>

#include "base/span.h"
#include "comm/communicator.h"

struct ncclComm;  // as nccl.h has it

namespace mtrain {

// Communicators are non-blocking: what a call begins may go on behind it, and state() tells when it
// has ended.
struct NcclAnswer {
  enum class State { done, under_way, failed } state = State::done;
  std::string text{};  // of a failure: NCCL's words
};

// A communicator is used by one thread at a time. Calls between group_start and group_end run
// together; their data is on the GPU, and their work goes on `stream`.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual void use_device() = 0;  // for the calling thread, before its other calls

  virtual std::string make_id() = 0;  // of a communicator to come: by one of its ranks, for all
  virtual NcclAnswer init(ncclComm*& comm, const std::string& id, int rank, int ranks) = 0;
  virtual NcclAnswer state(ncclComm* comm) = 0;  // of what was begun last; failures of peers too
  virtual NcclAnswer finalize(ncclComm* comm) = 0;
  virtual void destroy(ncclComm* comm) noexcept = 0;  // once finalize() is done
  virtual void abort(ncclComm* comm) noexcept = 0;    // ends its work on the GPU; frees it

  virtual NcclAnswer group_start() = 0;
  virtual NcclAnswer group_end(ncclComm* comm) = 0;
  virtual NcclAnswer all_reduce(Span data, Reduce op, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer reduce_scatter(ConstSpan in, Span out, Reduce op, ncclComm* comm,
                                    CUstream_st* stream) = 0;
  virtual NcclAnswer all_gather(ConstSpan in, Span out, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer broadcast(Span data, int root, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer send(ConstSpan data, int to, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer receive(Span data, int from, ncclComm* comm, CUstream_st* stream) = 0;

  virtual std::unique_ptr<EventBackend> record(CUstream_st* stream) = 0;
  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;  // on the GPU
};

}  // namespace mtrain
