#include "kernels/cuda/cudnn/attention.h"

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int64_t kFloat = sizeof(float);

std::string describe(const CudnnAttentionKey& key) {
  return fmt::format("attention {} of {} {} {} rows, {} keys, {} and {} heads of {} and {}",
                     key.backward ? "backward" : "forward", key.B,
                     key.documents ? "documents in" : "x", key.Sq, key.Skv, key.A, key.G, key.D,
                     key.Dv);
}

// Returns whether `calls` calls can each compute an equal number of the heads.
bool divides_heads(const CudnnAttentionKey& key, int64_t calls) {
  if (key.G % calls != 0) return false;
  // cuDNN is promised that each call's lse begins on a border of 16 bytes.
  return calls == 1 || key.A / calls * (key.documents ? 1 : key.Sq) % 4 == 0;
}
CudnnAttentionKey key_of_call(CudnnAttentionKey key, int64_t calls) {
  key.A /= calls, key.G /= calls;
  if (!key.documents) key.lse_heads = key.A;
  return key;
}

// Some heads of every sequence's lse, (B, heads, Sq), from (B, all, Sq).
SpreadRows lse_of_heads(const CudnnAttentionKey& call, const void* from, void* to, int64_t all) {
  return {.from = from,
          .to = to,
          .from_type = DType::f32,
          .to_type = DType::f32,
          .from_stride = all * call.Sq,
          .to_stride = call.A * call.Sq,
          .rows = call.B,
          .columns = call.A * call.Sq};
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
          .plan = make_plan_(
              call, CudnnPlace{.handle = handle_, .architecture = target_.architecture},
              CudnnPlanOptions{.max_workspace = key.deterministic ? max_workspace_ : INT64_MAX,
                               .first_engine = first_engine}),
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
      engine = fmt::format("cuDNN, engine {}", entry->plan->engine());
  });
  return engine;
}
std::string CudnnAttention::engine_of(const AttentionForward& f) const {
  return why_not_cudnn(f, target_).empty() ? engine_of(key_of(f)) : "";
}
std::string CudnnAttention::engine_of(const AttentionBackward& b) const {
  return why_not_cudnn(b, target_).empty() ? engine_of(key_of(b, target_)) : "";
}

bool CudnnAttention::execute(const CudnnAttentionKey& key, const CudnnAddresses& memory,
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
                            entry->plan->engine(), refusal));
      return make(key, entry->calls, entry->plan->engine() + 1);
    });
  }
  return false;
}

std::string CudnnAttention::execute_calls(const Chosen& chosen, const CudnnAttentionKey& key,
                                          const CudnnAddresses& memory, CUstream_st* stream) {
  if (chosen.calls == 1) return execute_one(*chosen.plan, memory, stream);
  const CudnnAttentionKey call = key_of_call(key, chosen.calls);
  // cuDNN before 9.26 reads an lse without gaps alone.
  const bool has_gaps = !key.documents && key.B > 1;
  const Scratch lse(device_, has_gaps ? call.B * call.A * call.Sq * kFloat : 0, stream);
  for (int64_t i = 0; i < chosen.calls; ++i) {
    CudnnAddresses heads = memory;
    const auto move = [&](int64_t tensor, int64_t elements, int64_t size) {
      if (const auto found = heads.find(tensor); found != heads.end())
        found->second = static_cast<const char*>(found->second) + elements * size;
    };
    const int64_t A = i * call.A, G = i * call.G, type = dtype_size(key.type),
                  dkv = dtype_size(key.dkv_type);
    move(kQuery, A * key.D, type);
    for (const int64_t tensor : {kOut, kOutGradient}) move(tensor, A * key.Dv, type);
    move(kKey, G * key.D, type);
    move(kValue, G * key.Dv, type);
    move(kQueryGradient, A * key.D, dtype_size(key.dq_type));
    move(kKeyGradient, G * key.D, dkv);
    move(kValueGradient, G * key.Dv, dkv);
    move(kLse, i * call.A * (key.documents ? 1 : key.Sq), kFloat);
    if (has_gaps) {
      device_.spread(lse_of_heads(call, heads.at(kLse), lse.get(), key.A), stream);
      heads[kLse] = lse.get();
    }
    if (std::string refusal = execute_one(*chosen.plan, heads, stream); !refusal.empty())
      return refusal;
  }
  return "";
}

std::string CudnnAttention::execute_one(const CudnnAttentionPlan& plan,
                                        const CudnnAddresses& memory, CUstream_st* stream) {
  const Scratch workspace(device_, plan.workspace(), stream);
  std::lock_guard lock(executing_);
  if (const int status = api_.set_stream(handle_, stream); status != 0)
    throw RunError(fmt::format("cudnnSetStream failed: {}", api_.error_string(status)));
  return plan.execute(handle_, memory, workspace.get());
}

// The tables of packed documents for cuDNN.
class CudnnAttention::Documents {
 public:
  Documents(const Device& device, const AttentionShape& s, const CudnnAttentionKey& key,
            CudnnAddresses& memory, CUstream_st* stream)
      : pitch_(round_up(key.B + 1, kBorder)),
        table_(device, (1 + DocumentTable::kMaxTensors) * pitch_ * int64_t(sizeof(int32_t)),
               stream) {
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
    memory[kQueryLengths] = memory[kKeyLengths] = lengths;
    for (const auto& [tensor, stride] : tensors) {
      if (stride == 0) continue;  // gradients, in a forward
      memory[offsets_of(tensor)] = t.offsets + t.tensors * pitch_;
      t.strides[t.tensors++] = stride;
    }
    device.fill(t, stream);
  }

 private:
  static constexpr int64_t kBorder = 4;  // elements: we promise cuDNN an alignment of 16 bytes
  int64_t pitch_;
  Scratch table_;
};

// The lse in the form that cuDNN writes and reads: without gaps between the rows of heads, and with
// the heads of a token together if documents are packed. It is the caller's memory if that has this
// form.
class CudnnAttention::OwnLse {
 public:
  OwnLse(const Device& device, const AttentionShape& s, const CudnnAttentionKey& key,
         CUstream_st* stream)
      : device_(device),
        shape_(s),
        stream_(stream),
        by_token_(key.documents),
        stride_(s.lse_stride != 0 ? s.lse_stride : s.Sq),
        memory_(device, by_token_ || stride_ != s.Sq ? s.B * s.A * s.Sq * kFloat : 0, stream) {}
  void* get() const { return memory_.get(); }  // null: the caller's

  void read(const ConstSpan& lse) const {
    if (by_token_) return transpose(lse, own(), false);
    if (get()) device_.spread(rows(lse.data, get(), stride_, shape_.Sq), stream_);
  }
  void write(const Span& lse) const {
    if (by_token_) return transpose(own(), lse, true);
    if (get()) device_.spread(rows(get(), lse.data, shape_.Sq, stride_), stream_);
  }

 private:
  Span own() const { return {get(), shape_.A * shape_.Sq, DType::f32}; }
  SpreadRows rows(const void* from, void* to, int64_t from_stride, int64_t to_stride) const {
    return {.from = from,
            .to = to,
            .from_type = DType::f32,
            .to_type = DType::f32,
            .from_stride = from_stride,
            .to_stride = to_stride,
            .rows = shape_.B * shape_.A,
            .columns = shape_.Sq};
  }
  // Between (A, Sq) and (Sq, A).
  void transpose(const ConstSpan& from, const Span& to, bool to_heads) const {
    const int64_t A = shape_.A, S = shape_.Sq;
    CopyBlocks copy{.from = from,
                    .to = to,
                    .from_width = to_heads ? A : 1,
                    .to_width = to_heads ? 1 : A,
                    .blocks = {}};
    for (int64_t a = 0; a < A; ++a)
      copy.blocks.push_back(to_heads ? CopyBlock{0, a, a * S, 0, S, 1}
                                     : CopyBlock{a * S, 0, 0, a, S, 1});
    device_.copy(copy, stream_);
  }

  const Device& device_;
  const AttentionShape& shape_;
  CUstream_st* stream_;
  bool by_token_;
  int64_t stride_;
  Scratch memory_;
};

// A gradient as the plan writes it: in the caller's rows, or in own rows that are then copied or
// added to them.
class CudnnAttention::OwnGradient {
 public:
  OwnGradient(const Device& device, const HeadSpan& to, bool add, DType type, int64_t width,
              const CudnnAttentionKey& key, int64_t rows, CUstream_st* stream)
      : device_(device),
        to_(to),
        stream_(stream),
        spread_{.from = nullptr,
                .to = to.data.data,
                .from_type = type,
                .to_type = to.data.dtype,
                .from_stride = width,
                .to_stride = to.token_stride,
                .rows = rows,
                .columns = width,
                .add = add},
        memory_(device,
                add || key.documents || type != to.data.dtype ? rows * width * dtype_size(type) : 0,
                stream) {
    spread_.from = memory_.get();
  }
  const void* get() const { return memory_.get() ? memory_.get() : to_.data.data; }
  void finish() const {
    if (memory_.get()) device_.spread(spread_, stream_);
  }

 private:
  const Device& device_;
  const HeadSpan& to_;
  CUstream_st* stream_;
  SpreadRows spread_;
  Scratch memory_;
};

bool CudnnAttention::run(const AttentionForward& f, CUstream_st* stream) {
  if (!is_asked("forward", why_not_cudnn(f, target_))) return false;
  const CudnnAttentionKey key = key_of(f);
  if (!plan_for(key)) return false;
  const OwnLse lse(device_, f.shape, key, stream);
  CudnnAddresses memory{{kQuery, f.q.data.data},
                        {kKey, f.k.data.data},
                        {kValue, f.v.data.data},
                        {kOut, f.out.data.data},
                        {kLse, lse.get() ? lse.get() : f.lse.data}};
  std::optional<Documents> documents;
  if (key.documents) documents.emplace(device_, f.shape, key, memory, stream);
  if (!execute(key, memory, stream)) return false;
  lse.write(f.lse);
  return true;
}

bool CudnnAttention::run(const AttentionBackward& b, CUstream_st* stream) {
  if (!is_asked("backward", why_not_cudnn(b, target_))) return false;
  const CudnnAttentionKey key = key_of(b, target_);
  if (!plan_for(key)) return false;
  const OwnLse lse(device_, b.shape, key, stream);
  const int64_t rows = key.documents ? key.Sq : key.B * key.Sq,
                keys = key.documents ? key.Skv : key.B * key.Skv;
  const OwnGradient dq(device_, b.dq, b.add_dq, key.dq_type, key.A * key.D, key, rows, stream),
      dk(device_, b.dk, b.add_dkv, key.dkv_type, key.G * key.D, key, keys, stream),
      dv(device_, b.dv, b.add_dkv, key.dkv_type, key.G * key.Dv, key, keys, stream);
  CudnnAddresses memory{{kQuery, b.q.data.data},
                        {kKey, b.k.data.data},
                        {kValue, b.v.data.data},
                        {kOut, b.out.data.data},
                        {kLse, lse.get() ? lse.get() : b.lse.data},
                        {kOutGradient, b.dout.data.data},
                        {kQueryGradient, dq.get()},
                        {kKeyGradient, dk.get()},
                        {kValueGradient, dv.get()}};
  std::optional<Documents> documents;
  if (key.documents) documents.emplace(device_, b.shape, key, memory, stream);
  lse.read(b.lse);
  if (!execute(key, memory, stream)) return false;
  for (const OwnGradient* gradient : {&dq, &dk, &dv}) gradient->finish();
  return true;
}

}  // namespace mtrain::kernels::cuda
