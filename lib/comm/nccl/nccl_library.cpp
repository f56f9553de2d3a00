#include "comm/nccl/nccl_library.h"

#include <cstring>
#include <string_view>
#include <utility>

#include <nccl.h>

#include "base/error.h"
#include "base/shared_library.h"

namespace mtrain::comm {

namespace {

constexpr const char* kFile = "libnccl.so.2";

struct Functions {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  // Null in libraries that are older than the function. A window is a pointer.
  ncclResult_t (*comm_split)(ncclComm_t, int color, int key, ncclComm_t* made, ncclConfig_t*);
  ncclResult_t (*mem_alloc)(void** memory, size_t bytes);
  ncclResult_t (*mem_free)(void* memory);
  ncclResult_t (*window_register)(ncclComm_t, void* memory, size_t bytes, void** window, int flags);
  ncclResult_t (*window_deregister)(ncclComm_t, void* window);
};

struct Library {
  Functions functions{};
  std::string problem;  // "" if it is loaded
};

// NCCL 2.14 and newer have all of these functions.
Library open() {
  SharedLibrary file(kFile);
  Functions f{};
  file.find(f.get_version, "ncclGetVersion");
  file.find(f.get_error_string, "ncclGetErrorString");
  file.find(f.get_last_error, "ncclGetLastError");
  file.find(f.get_unique_id, "ncclGetUniqueId");
  file.find(f.comm_init_rank_config, "ncclCommInitRankConfig");
  file.find(f.comm_get_async_error, "ncclCommGetAsyncError");
  file.find(f.comm_finalize, "ncclCommFinalize");
  file.find(f.comm_destroy, "ncclCommDestroy");
  file.find(f.comm_abort, "ncclCommAbort");
  file.find(f.group_start, "ncclGroupStart");
  file.find(f.group_end, "ncclGroupEnd");
  file.find(f.all_reduce, "ncclAllReduce");
  file.find(f.reduce_scatter, "ncclReduceScatter");
  file.find(f.all_gather, "ncclAllGather");
  file.find(f.broadcast, "ncclBroadcast");
  file.find(f.send, "ncclSend");
  file.find(f.recv, "ncclRecv");
  const std::string problem = file.problem();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
  file.find(f.comm_split, "ncclCommSplit");
#endif
  file.find(f.mem_alloc, "ncclMemAlloc");
  file.find(f.mem_free, "ncclMemFree");
  file.find(f.window_register, "ncclCommWindowRegister");
  file.find(f.window_deregister, "ncclCommWindowDeregister");
  return {f, problem};
}

const Library& library() {
  static const Library lib = open();  // loaded once in a process
  return lib;
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::f64: return ncclFloat64;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8:
    case DType::f8e4m3:  // 8-bit floats are moved, never reduced
    case DType::f8e5m2: return ncclUint8;
    default: break;
  }
  throw BugError("a dtype without a name in NCCL");
}

ncclRedOp_t nccl_op(Reduce op) {
  return op == Reduce::sum ? ncclSum : op == Reduce::max ? ncclMax : ncclAvg;
}

std::string_view name_of(std::string_view call) { return call.substr(0, call.find('(')); }

void check_cuda(cudaError_t status, const char* call, int line) {
  if (status != cudaSuccess)
    throw RunError(fmt::format("{} failed at nccl_library.cpp:{}: {} ({})", name_of(call), line,
                               cudaGetErrorString(status), cudaGetErrorName(status)));
}
#define MT_CUDA(call) check_cuda(call, #call, __LINE__)

class LoadedNccl : public NcclApi {
 public:
  explicit LoadedNccl(int device) : device_(device), f_(library().functions) {}

  void use_device() override { MT_CUDA(cudaSetDevice(device_)); }

// Makes the call and returns its result, with the line and NCCL's own text if it failed.
#define MT_NCCL(comm, call) answer(call, comm, #call, __LINE__)

  std::string make_id() override {
    ncclUniqueId id;
    const NcclAnswer got = MT_NCCL(nullptr, f_.get_unique_id(&id));
    if (got.state == NcclAnswer::State::failed)
      throw CommError(got.text,
                      "NCCL_DEBUG=INFO prints more, NCCL_SOCKET_IFNAME names the network");
    return {id.internal, sizeof id.internal};
  }

  NcclAnswer init(ncclComm*& comm, const std::string& id, int rank, int ranks,
                  const NcclConfig& options) override {
    ncclUniqueId unique;
    MT_CHECK(id.size() == sizeof unique.internal, "an id of {} bytes", id.size());
    std::memcpy(unique.internal, id.data(), id.size());
    ncclConfig_t config = config_of(options);
    return MT_NCCL(comm, f_.comm_init_rank_config(&comm, ranks, unique, rank, &config));
  }

  bool can_split() const override { return f_.comm_split != nullptr; }
  NcclAnswer split(ncclComm*& comm, ncclComm* parent, int color, int key,
                   const NcclConfig& options) override {
#ifdef NCCL_SPLIT_NOCOLOR
    static_assert(kNoColor == NCCL_SPLIT_NOCOLOR);
#endif
    ncclConfig_t config = config_of(options);
    return MT_NCCL(parent, f_.comm_split(parent, color, key, &comm, &config));
  }

  NcclAnswer state(ncclComm* comm) override {
    ncclResult_t result = ncclSuccess;
    const NcclAnswer asked = MT_NCCL(comm, f_.comm_get_async_error(comm, &result));
    if (asked.state == NcclAnswer::State::failed) return asked;
    return answer(result, comm, "asynchronous work", __LINE__);
  }

  NcclAnswer finalize(ncclComm* comm) override { return MT_NCCL(comm, f_.comm_finalize(comm)); }
  void destroy(ncclComm* comm) noexcept override { f_.comm_destroy(comm); }
  void abort(ncclComm* comm) noexcept override { f_.comm_abort(comm); }

  NcclAnswer group_start() override { return MT_NCCL(nullptr, f_.group_start()); }
  NcclAnswer group_end(ncclComm* comm) override { return MT_NCCL(comm, f_.group_end()); }

  NcclAnswer all_reduce(Span data, Reduce op, ncclComm* comm, CUstream_st* stream) override {
    return MT_NCCL(comm, f_.all_reduce(data.data, data.data, size_t(data.count),
                                       nccl_type(data.dtype), nccl_op(op), comm, stream));
  }
  NcclAnswer reduce_scatter(ConstSpan in, Span out, Reduce op, ncclComm* comm,
                            CUstream_st* stream) override {
    return MT_NCCL(comm, f_.reduce_scatter(in.data, out.data, size_t(out.count),
                                           nccl_type(in.dtype), nccl_op(op), comm, stream));
  }
  NcclAnswer all_gather(ConstSpan in, Span out, ncclComm* comm, CUstream_st* stream) override {
    return MT_NCCL(comm, f_.all_gather(in.data, out.data, size_t(in.count), nccl_type(in.dtype),
                                       comm, stream));
  }
  NcclAnswer broadcast(Span data, int root, ncclComm* comm, CUstream_st* stream) override {
    return MT_NCCL(comm, f_.broadcast(data.data, data.data, size_t(data.count),
                                      nccl_type(data.dtype), root, comm, stream));
  }
  NcclAnswer send(ConstSpan data, int to, ncclComm* comm, CUstream_st* stream) override {
    return MT_NCCL(comm,
                   f_.send(data.data, size_t(data.count), nccl_type(data.dtype), to, comm, stream));
  }
  NcclAnswer receive(Span data, int from, ncclComm* comm, CUstream_st* stream) override {
    return MT_NCCL(
        comm, f_.recv(data.data, size_t(data.count), nccl_type(data.dtype), from, comm, stream));
  }

  std::shared_ptr<void> allocate(int64_t bytes) override {
    void* memory = nullptr;
    MT_CUDA(cudaMalloc(&memory, size_t(bytes)));
    return {memory, [](void* p) { cudaFree(p); }};
  }

  bool has_windows() const override {
    return f_.mem_alloc && f_.mem_free && f_.window_register && f_.window_deregister;
  }
  std::shared_ptr<void> allocate_for_window(int64_t bytes) override {
    void* memory = nullptr;
    const NcclAnswer got = MT_NCCL(nullptr, f_.mem_alloc(&memory, size_t(bytes)));
    if (got.state == NcclAnswer::State::failed) throw RunError(got.text);
    return {memory, [free = f_.mem_free](void* p) { free(p); }};
  }
  NcclAnswer register_window(void*& window, void* memory, int64_t bytes, bool symmetric,
                             ncclComm* comm) override {
    constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
    return MT_NCCL(
        comm, f_.window_register(comm, memory, size_t(bytes), &window, symmetric ? kSymmetric : 0));
  }
  void deregister_window(ncclComm* comm, void* window) noexcept override {
    f_.window_deregister(comm, window);
  }

 private:
  ncclConfig_t config_of([[maybe_unused]] const NcclConfig& options) const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;  // otherwise NCCL starts a thread for every call, and the caller must poll
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
    if (options.most_blocks > 0) config.minCTAs = 1, config.maxCTAs = options.most_blocks;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
    config.splitShare = options.shares;
#endif
#ifdef NCCL_CTA_POLICY_ZERO
    int version = 0;  // of the library; an older one than the header refuses the policy
    if (options.copy_engines && f_.get_version(&version) == ncclSuccess &&
        version >= NCCL_VERSION(2, 28, 0))
      config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
    return config;
  }

  NcclAnswer answer(ncclResult_t result, ncclComm* comm, const char* call, int line) const {
    using State = NcclAnswer::State;
    if (result == ncclSuccess) return {State::done};
    if (result == ncclInProgress) return {State::under_way};
    return {State::failed,
            fmt::format("NCCL's {} failed at nccl_library.cpp:{}: {}: {}", name_of(call), line,
                        f_.get_error_string(result), f_.get_last_error(comm))};
  }

  const int device_;
  const Functions& f_;
};

}  // namespace

std::shared_ptr<NcclApi> load_nccl(int cuda_device) {
  if (const std::string& problem = library().problem; !problem.empty())
    throw UserError(
        "NCCL cannot be loaded: " + problem,
        fmt::format("install NCCL 2.14 or newer, and name the folder of {} in LD_LIBRARY_PATH",
                    kFile));
  return std::make_shared<LoadedNccl>(cuda_device);
}

std::string nccl_description() {
  int version = 0;
  if (!library().problem.empty() || library().functions.get_version(&version) != ncclSuccess)
    return "NCCL not found";
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace mtrain::comm
