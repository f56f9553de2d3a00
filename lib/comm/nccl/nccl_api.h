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

// How a communicator is made.
struct NcclConfig {
  int most_blocks = 0;  // of one of its kernels; 0: NCCL decides
  // Communicators that are split from it use its buffers and connections. NCCL then runs the calls
  // of all of them one after the other, in the order of the host's calls, whatever their streams;
  // and an abort of one aborts all.
  bool shares = false;
  // Copy engines move gathers whose memory is in symmetric windows, if NCCL can do that (2.28);
  // their kernels would take multiprocessors.
  bool copy_engines = false;
};

// Only one thread at a time may use a communicator, except for abort(). Calls between group_start
// and group_end run together. Their data is on the GPU, and their work is enqueued on `stream`.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual void use_device() = 0;  // a thread calls this before its other calls

  virtual std::string make_id() = 0;  // one rank makes the id of a communicator, for all its ranks
  virtual NcclAnswer init(ncclComm*& comm, const std::string& id, int rank, int ranks,
                          const NcclConfig& config) = 0;
  virtual bool can_split() const = 0;  // from NCCL 2.18 on
  // All ranks of `parent` call it, in the same order. Ranks of one color become a communicator, in
  // the order of their keys. A rank of the color kNoColor gets none: `comm` is then null.
  static constexpr int kNoColor = -1;  // as NCCL_SPLIT_NOCOLOR
  virtual NcclAnswer split(ncclComm*& comm, ncclComm* parent, int color, int key,
                           const NcclConfig& config) = 0;
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

  // Windows are memory that the communicator's ranks may access directly. Each rank registers as
  // many bytes as the others, in the same order. A window is deregistered before its communicator
  // ends and before its memory is freed; after an abort it need not be.
  virtual bool has_windows() const = 0;  // from NCCL 2.27 on
  virtual std::shared_ptr<void> allocate_for_window(int64_t bytes) = 0;
  // `symmetric`: a call has the window's memory at the same offset on every rank.
  virtual NcclAnswer register_window(void*& window, void* memory, int64_t bytes, bool symmetric,
                                     ncclComm* comm) = 0;
  virtual void deregister_window(ncclComm* comm, void* window) noexcept = 0;
};

}  // namespace mtrain::comm
