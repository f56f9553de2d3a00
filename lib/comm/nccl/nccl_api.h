// The functions of NCCL and of CUDA that communicators need. It includes no header of NCCL or CUDA,
// since tests implement this interface without a GPU.
#pragma once
#include <memory>
#include <string>

#include "base/span.h"
#include "comm/communicator.h"

struct ncclComm;  // declared as in nccl.h

namespace mtrain::comm {

// The result of a call. A call may block until its peers arrive; abort() from another thread then
// ends it. Or it may return before it is complete (under_way); state() reports when it is done.
struct NcclAnswer {
  enum class State { done, under_way, failed } state = State::done;
  std::string text{};  // NCCL's own message about a failure
};

// Only one thread at a time may use a communicator, except for abort(). Calls between group_start
// and group_end run together. Their data is on the GPU, and their work is enqueued on `stream`.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual void use_device() = 0;  // a thread calls this before its other calls

  virtual std::string make_id() = 0;  // one rank makes the id of a communicator, for all its ranks
  // `max_ctas`: the most blocks that one of its kernels has; 0: NCCL decides.
  virtual NcclAnswer init(ncclComm*& comm, const std::string& id, int rank, int ranks,
                          int max_ctas) = 0;
  virtual NcclAnswer state(ncclComm* comm) = 0;  // of the last call; also reports peers' failures
  virtual NcclAnswer finalize(ncclComm* comm) = 0;
  virtual void destroy(ncclComm* comm) noexcept = 0;  // may be called when finalize() is done
  // Ends its work on the GPU and frees it. A blocked call of another thread returns.
  virtual void abort(ncclComm* comm) noexcept = 0;

  virtual NcclAnswer group_start() = 0;
  virtual NcclAnswer group_end(ncclComm* comm) = 0;
  virtual NcclAnswer all_reduce(Span data, Reduce op, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer reduce_scatter(ConstSpan in, Span out, Reduce op, ncclComm* comm,
                                    CUstream_st* stream) = 0;
  virtual NcclAnswer all_gather(ConstSpan in, Span out, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer broadcast(Span data, int root, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer send(ConstSpan data, int to, ncclComm* comm, CUstream_st* stream) = 0;
  virtual NcclAnswer receive(Span data, int from, ncclComm* comm, CUstream_st* stream) = 0;

  virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;  // on the GPU
};

}  // namespace mtrain::comm
