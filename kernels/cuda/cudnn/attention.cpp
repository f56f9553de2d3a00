#include "kernels/cuda/cudnn/attention.h"

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"

namespace mtrain::kernels::cuda {
namespace {

std::string describe(const CudnnAttentionKey& key) {
  return fmt::format("attention {} of {} {} {} rows, {} keys, {} and {} heads of {}",
                     key.backward ? "backward" : "forward", key.B,
                     key.documents ? "documents in" : "x", key.Sq, key.Skv, key.A, key.G, key.D);
}

// Returns whether `calls` calls can each compute an equal number of the heads.
bool divides_heads(const CudnnAttentionKey& key, int64_t calls) {
  if (key.G % calls != 0) return false;
  // cuDNN is promised that each call's lse begins on a border of 16 bytes.
  return calls == 1 || key.A / calls * (key.documents ? 1 : key.Sq) % 4 == 0;
}
CudnnAttentionKey key_of_call(CudnnAttentionKey key, int64_t calls) {
  key.A /= calls, key.G /= calls;
  return key;
}

}  // namespace

CudnnAttention::Entry CudnnAttention::make(const CudnnAttentionKey& key, int64_t calls,
                                           int first_engine) const {
  std::string why;
  for (; calls <= key.G; ++calls, first_engine = 0) {
    if (!divides_heads(key, calls)) continue;
    const CudnnAttentionKey call = key_of_call(key, calls);
    try {
      return Entry(new Chosen{
          .plan = {api_, CudnnPlace{.handle = handle_},
                   key.backward ? backward_graph(call) : forward_graph(call),
                   CudnnPlanOptions{.deterministic = key.deterministic,
                                    .max_workspace = key.deterministic ? max_workspace_ : INT64_MAX,
                                    .first_engine = first_engine}},
          .calls = calls});
    } catch (const CudnnWorkspaceError& e) {
      why = e.message();
      if (!key.backward) break;
    } catch (const RunError& e) {
      why = e.message();
      break;
    }
  }
  log::info(fmt::format("{}: mtrain's own kernels, since {}", describe(key), why));
  return {};
}

bool CudnnAttention::is_asked(const char* direction, const std::string& why_not) {
  if (why_not.empty()) return true;
  const std::lock_guard lock(telling_);
  const std::string text =
      fmt::format("attention {}: mtrain's own kernels: {}", direction, why_not);
  if (reported_.insert(text).second) log::info(text);
  return false;
}

CudnnAttention::Entry CudnnAttention::plan_for(const CudnnAttentionKey& key) {
  return plans_.get(key, [&] { return make(key); });
}

// Memory until the end of a scope.
class CudnnAttention::Scratch {
 public:
  Scratch(const Device& device, int64_t bytes, CUstream_st* stream)
      : device_(device),
        stream_(stream),
        address_(bytes > 0 ? device.take(size_t(bytes), stream) : nullptr) {}
  ~Scratch() {
    if (address_) device_.give(address_, stream_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return address_; }

 private:
  const Device& device_;
  CUstream_st* stream_;
  void* address_;
};

std::string CudnnAttention::engine_of(const CudnnAttentionKey& key) const {
  std::string engine;
  plans_.each([&](const CudnnAttentionKey& k, const Entry& entry) {
    if (k == key && entry && entry->executed)
      engine = fmt::format("cuDNN, engine {}", entry->plan.engine());
  });
  return engine;
}
std::string CudnnAttention::engine_of(const AttentionForward& f) const {
  return why_not_cudnn(f, target_).empty() ? engine_of(key_of(f)) : "";
}
std::string CudnnAttention::engine_of(const AttentionBackward& b) const {
  return why_not_cudnn(b, target_).empty() ? engine_of(key_of(b)) : "";
}

bool CudnnAttention::execute(const CudnnAttentionKey& key, const Addresses& memory,
                             CUstream_st* stream) {
  for (Entry entry = plan_for(key); entry;) {
    if (!entry->executed && device_.capturing(stream))
      throw RunError(describe(key) + " was not computed before the capture of a graph");
    const std::string refusal = execute_calls(*entry, key, memory, stream);
    if (refusal.empty()) {
      entry->executed = true;
      return true;
    }
    if (device_.capturing(stream))
      throw RunError(fmt::format("{}: in the capture of a graph {}", describe(key), refusal));
    device_.require_healthy(stream);
    // Another thread may have replaced the plan already.
    entry = plans_.change(key, [&](const Entry& now) {
      if (now != entry) return now;
      log::info(fmt::format("{}: not engine {} of cuDNN, since {}", describe(key),
                            entry->plan.engine(), refusal));
      return make(key, entry->calls, entry->plan.engine() + 1);
    });
  }
  return false;
}

std::string CudnnAttention::execute_calls(const Chosen& chosen, const CudnnAttentionKey& key,
                                          const Addresses& memory, CUstream_st* stream) {
  const CudnnAttentionKey call = key_of_call(key, chosen.calls);
  const int64_t lse_head = key.documents ? 1 : key.Sq;
  for (int64_t i = 0; i < chosen.calls; ++i) {
    Addresses heads = memory;
    const auto move = [&](int64_t tensor, int64_t bytes) {
      if (const auto found = heads.find(tensor); found != heads.end())
        found->second = static_cast<const char*>(found->second) + bytes;
    };
    for (const int64_t tensor : {kQuery, kOut, kOutGradient, kQueryGradient})
      move(tensor, i * call.A * key.D * int64_t(sizeof(bf16)));
    for (const int64_t tensor : {kKey, kValue, kKeyGradient, kValueGradient})
      move(tensor, i * call.G * key.D * int64_t(sizeof(bf16)));
    move(kLse, i * call.A * lse_head * int64_t(sizeof(float)));
    if (std::string refusal = execute_one(chosen.plan, heads, stream); !refusal.empty())
      return refusal;
  }
  return "";
}

std::string CudnnAttention::execute_one(const CudnnPlan& plan, const Addresses& memory,
                                        CUstream_st* stream) {
  const Scratch workspace(device_, plan.workspace(), stream);
  std::lock_guard lock(executing_);
  if (const auto status = api_.set_stream(handle_, stream); status != CudnnStatus::success)
    throw RunError(fmt::format("cudnnSetStream failed: {}", api_.error_string(status)));
  return plan.execute(handle_, memory, workspace.get());
}

// The tables of packed documents for cuDNN, and its form of the lse: in cuDNN's, the heads of a
// token are contiguous; in ours, the rows of a head.
class CudnnAttention::Documents {
 public:
  Documents(const Device& device, const AttentionShape& s, const CudnnAttentionKey& key,
            CUstream_st* stream)
      : device_(device),
        shape_(s),
        stream_(stream),
        pitch_(round_up(key.B + 1, kBorder)),
        table_(device, (1 + DocumentTable::kMaxTensors) * pitch_ * int64_t(sizeof(int32_t)),
               stream),
        lse_(device, key.A * key.rows * int64_t(sizeof(float)), stream) {
    const std::pair<int64_t, int64_t> tensors[] = {
        {kQuery, key.q},          {kKey, key.k},          {kValue, key.v},
        {kOut, key.out},          {kLse, key.A},          {kOutGradient, key.dout},
        {kQueryGradient, key.dq}, {kKeyGradient, key.dk}, {kValueGradient, key.dv}};
    auto* const lengths = static_cast<int32_t*>(table_.get());
    DocumentTable t{.begin = s.q_documents.begin.as<int32_t>(),
                    .end = s.q_documents.end.as<int32_t>(),
                    .documents = s.q_documents.begin.count,
                    .room = key.B,
                    .tensors = 0,
                    .strides = {},
                    .lengths = lengths,
                    .offsets = lengths + pitch_,
                    .pitch = pitch_};
    addresses_[kQueryLengths] = addresses_[kKeyLengths] = lengths;
    for (const auto& [tensor, stride] : tensors) {
      if (stride == 0) continue;  // gradients, in a forward
      addresses_[offsets_of(tensor)] = t.offsets + t.tensors * pitch_;
      t.strides[t.tensors++] = stride;
    }
    addresses_[kLse] = lse_.get();
    device.fill(t, stream);
  }
  const Addresses& addresses() const { return addresses_; }

  void read_lse(const ConstSpan& lse) const {
    CopyBlocks copy{
        .from = lse, .to = lse_span(), .from_width = 1, .to_width = shape_.A, .blocks = {}};
    for (int64_t a = 0; a < shape_.A; ++a)
      copy.blocks.push_back({a * shape_.Sq, 0, 0, a, shape_.Sq, 1});
    device_.copy(copy, stream_);
  }
  void write_lse(const Span& lse) const {
    CopyBlocks copy{
        .from = lse_span(), .to = lse, .from_width = shape_.A, .to_width = 1, .blocks = {}};
    for (int64_t a = 0; a < shape_.A; ++a)
      copy.blocks.push_back({0, a, a * shape_.Sq, 0, shape_.Sq, 1});
    device_.copy(copy, stream_);
  }
  // Copies (T, columns) into the caller's rows.
  void spread(const Scratch& from, const HeadSpan& to, int64_t columns) const {
    const int64_t T = shape_.Sq;
    device_.copy({.from = {from.get(), T * columns, to.data.dtype},
                  .to = to.data,
                  .from_width = columns,
                  .to_width = to.token_stride,
                  .blocks = {{0, 0, 0, 0, T, columns}}},
                 stream_);
  }

 private:
  static constexpr int64_t kBorder = 4;  // elements: we promise cuDNN an alignment of 16 bytes

  Span lse_span() const { return {lse_.get(), shape_.A * shape_.Sq, DType::f32}; }

  const Device& device_;
  const AttentionShape& shape_;
  CUstream_st* stream_;
  int64_t pitch_;
  Scratch table_, lse_;
  Addresses addresses_;
};

bool CudnnAttention::run(const AttentionForward& f, CUstream_st* stream) {
  if (!is_asked("forward", why_not_cudnn(f, target_))) return false;
  const CudnnAttentionKey key = key_of(f);
  if (!plan_for(key)) return false;
  const Addresses memory{{kQuery, f.q.data.data},
                         {kKey, f.k.data.data},
                         {kValue, f.v.data.data},
                         {kOut, f.out.data.data},
                         {kLse, f.lse.data}};
  if (!key.documents) return execute(key, memory, stream);
  const Documents documents(device_, f.shape, key, stream);
  Addresses all = documents.addresses();  // its lse has precedence
  all.insert(memory.begin(), memory.end());
  if (!execute(key, all, stream)) return false;
  documents.write_lse(f.lse);
  return true;
}

bool CudnnAttention::run(const AttentionBackward& b, CUstream_st* stream) {
  if (!is_asked("backward", why_not_cudnn(b, target_))) return false;
  const CudnnAttentionKey key = key_of(b);
  if (!plan_for(key)) return false;
  Addresses memory{{kQuery, b.q.data.data},
                   {kKey, b.k.data.data},
                   {kValue, b.v.data.data},
                   {kOut, b.out.data.data},
                   {kLse, b.lse.data},
                   {kOutGradient, b.dout.data.data},
                   {kQueryGradient, b.dq.data.data},
                   {kKeyGradient, b.dk.data.data},
                   {kValueGradient, b.dv.data.data}};
  if (!key.documents) return execute(key, memory, stream);
  const Documents documents(device_, b.shape, key, stream);
  documents.read_lse(b.lse);
  const auto room = [&](int64_t columns) {
    return key.rows * columns * dtype_size(b.q.data.dtype);
  };
  const Scratch dq(device_, room(key.dq), stream), dk(device_, room(key.dk), stream),
      dv(device_, room(key.dv), stream);
  Addresses all = documents.addresses();
  all[kQueryGradient] = dq.get(), all[kKeyGradient] = dk.get(), all[kValueGradient] = dv.get();
  all.insert(memory.begin(), memory.end());
  if (!execute(key, all, stream)) return false;
  documents.spread(dq, b.dq, key.dq);
  documents.spread(dk, b.dk, key.dk);
  documents.spread(dv, b.dv, key.dv);
  return true;
}

}  // namespace mtrain::kernels::cuda
