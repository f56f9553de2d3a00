// A stand-in for cuDNN's backend API. It records descriptors, refuses those that a test names, and
// executes plans: it computes their operations one after another, in float64 except for tensors
// that the graph rounds. In batches of unequal length, elements after the end of a sequence read as
// NaN, and writes to them are dropped.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/cudnn/attention_graph.h"

namespace mtrain::test {

struct CudnnStandIn {
  using Attribute = kernels::cuda::CudnnAttribute;
  using Kind = kernels::cuda::CudnnDescriptor;
  using Status = kernels::cuda::CudnnStatus;
  using Type = kernels::cuda::CudnnType;

  struct Descriptor {
    Kind kind;
    bool finalized = false;
    std::map<Attribute, std::vector<char>> values;
    int engine = -1;              // for a configuration or an engine
    Descriptor* graph = nullptr;  // for a configuration

    template <class T>
    std::vector<T> all(Attribute name) const {
      const auto& bytes = values.at(name);
      std::vector<T> v(bytes.size() / sizeof(T));
      std::memcpy(v.data(), bytes.data(), v.size() * sizeof(T));
      return v;
    }
    template <class T>
    T one(Attribute name) const {
      T value{};
      std::memcpy(&value, values.at(name).data(), sizeof value);
      return value;
    }
    Descriptor& at(Attribute name) const { return *one<Descriptor*>(name); }
  };
  struct Engine {
    bool deterministic = true;
    int64_t workspace = 0, workspace_per_head = 0;  // bytes
    Status plan = Status::success;                  // the status of finalizing its plan
    Status executing = Status::success;             // the status of executing its plan
  };

  // --- members that a test sets ---
  std::vector<Engine> engines{Engine{}};  // engines of heuristic mode a
  std::vector<Engine> fallback_engines;   // engines of the fallback mode
  std::map<Kind, Status> refuse;          // the status of finalizing such a descriptor
  Status executing = Status::success;
  bool computes = true;  // false: executions are only counted
  // --- members that a test reads ---
  int alive = 0, plans = 0, tries = 0, executions = 0, max_workspace_used = 0;
  std::map<int64_t, std::vector<int64_t>> dims, strides;  // by the tensor's id
  std::map<int64_t, int64_t> narrowest_row;               // of the tensors with the same offsets
  std::vector<std::pair<int64_t, float>> numbers;         // the arguments of the last execution
  CUstream_st* stream = nullptr;

  static CudnnStandIn& it() {
    static CudnnStandIn one;
    return one;
  }
  static const kernels::cuda::CudnnApi& api();
  void* handle() { return this; }
};

// Computes the operations of an operation graph.
class GraphRun {
 public:
  using D = CudnnStandIn::Descriptor;
  using Attribute = CudnnStandIn::Attribute;
  using DataType = kernels::cuda::CudnnDataType;
  using Sizes = std::vector<int64_t>;

  GraphRun(const D& graph, const D& pack) {
    const auto ids = pack.all<int64_t>(Attribute::variant_pack_unique_ids);
    const auto addresses = pack.all<void*>(Attribute::variant_pack_data_pointers);
    for (size_t i = 0; i < ids.size(); ++i) addresses_[ids[i]] = addresses[i];
    for (D* operation : graph.all<D*>(Attribute::operation_graph_operations)) run(*operation);
  }

 private:
  struct Tensor {
    int64_t id;
    Sizes dims, strides;
    DataType type;
    bool inside, value;
    const D* offsets = nullptr;
    explicit Tensor(const D& d)
        : id(d.one<int64_t>(Attribute::tensor_unique_id)),
          dims(d.all<int64_t>(Attribute::tensor_dimensions)),
          strides(d.all<int64_t>(Attribute::tensor_strides)),
          type(d.one<DataType>(Attribute::tensor_data_type)),
          inside(d.one<bool>(Attribute::tensor_is_virtual)),
          value(d.one<bool>(Attribute::tensor_is_by_value)) {
      if (d.values.count(Attribute::tensor_ragged_offset))
        offsets = &d.at(Attribute::tensor_ragged_offset);
    }
    // Returns the dim of the rows of a batch: the third, or the last if the tensor is transposed.
    size_t row_dim() const { return strides[3] > strides[2] ? 3 : 2; }
  };
  static constexpr int64_t kNowhere = -1;

  // Returns the offset in `t` of position `at` of a tensor with dims `of`; elements repeat along
  // dims that divide those of `of`.
  int64_t place(const Tensor& t, const Sizes& at, const Sizes& of) const {
    int64_t sum = 0;
    for (size_t i = t.offsets ? 1 : 0; i < t.dims.size(); ++i)
      sum += at[i] * t.dims[i] / of[i] * t.strides[i];
    if (!t.offsets) return sum;
    const size_t row = t.row_dim();
    const int64_t id = t.offsets->one<int64_t>(Attribute::tensor_unique_id), b = at[0];
    const auto* const begins = static_cast<const int32_t*>(addresses_.at(id)) + b;
    // The offsets are those of the tensor with the narrowest rows; wider rows multiply them.
    const int64_t narrowest = CudnnStandIn::it().narrowest_row.at(id);
    const int64_t times = t.strides[row] / narrowest;
    if (at[row] * t.dims[row] / of[row] >= (begins[1] - begins[0]) / narrowest) return kNowhere;
    return begins[0] * times + sum;
  }
  int64_t place(const Tensor& t, const Sizes& at) const { return place(t, at, t.dims); }

  double read(const Tensor& t, int64_t offset) {
    if (offset == kNowhere) return std::nan("");
    if (t.inside) {
      const auto& known = inside_.at(t.id);
      return offset < int64_t(known.size()) ? known[size_t(offset)] : std::nan("");
    }
    const void* const p = addresses_.at(t.id);
    if (t.type == DataType::bfloat16) return float(static_cast<const bf16*>(p)[offset]);
    if (t.type == DataType::float16) return float(static_cast<const f16*>(p)[offset]);
    if (t.type == DataType::int32) return static_cast<const int32_t*>(p)[offset];
    return static_cast<const float*>(p)[offset];
  }
  double read(const Tensor& t, const Sizes& at, const Sizes& of) {
    return read(t, place(t, at, of));
  }
  void write(const Tensor& t, int64_t offset, double value) {
    if (offset == kNowhere) return;
    if (t.type == DataType::bfloat16) value = float(bf16(float(value)));
    if (t.type == DataType::float16) value = float(f16(float(value)));
    if (t.inside) {
      auto& known = inside_[t.id];
      if (offset >= int64_t(known.size())) known.resize(size_t(offset + 1), std::nan(""));
      known[size_t(offset)] = value;
    } else if (t.type == DataType::float16)
      static_cast<f16*>(addresses_.at(t.id))[offset] = f16(float(value));
    else if (t.type == DataType::bfloat16)
      static_cast<bf16*>(addresses_.at(t.id))[offset] = bf16(float(value));
    else
      static_cast<float*>(addresses_.at(t.id))[offset] = float(value);
  }
  template <class Fn>
  static void for_each(const Sizes& dims, const Fn& fn) {
    Sizes at(dims.size(), 0);
    for (;;) {
      fn(at);
      size_t i = dims.size();
      while (i > 0 && ++at[i - 1] == dims[i - 1]) at[--i] = 0;
      if (i == 0) return;
    }
  }

  void run(const D& d) {
    using Kind = CudnnStandIn::Kind;
    if (d.kind == Kind::operation_matmul) matmul(d);
    if (d.kind == Kind::operation_reshape) reshape(d);
    if (d.kind == Kind::operation_reduction) reduce(d);
    if (d.kind == Kind::operation_pointwise) pointwise(d);
  }
  void matmul(const D& d) {
    const Tensor x(d.at(Attribute::operation_matmul_a)), y(d.at(Attribute::operation_matmul_b)),
        z(d.at(Attribute::operation_matmul_c));
    const auto length = [&](Attribute name) {
      return d.values.count(name) ? std::optional<Tensor>(d.at(name)) : std::nullopt;
    };
    const auto rows = length(Attribute::operation_matmul_m_override),
               columns = length(Attribute::operation_matmul_n_override),
               terms = length(Attribute::operation_matmul_k_override);
    const auto within = [&](const std::optional<Tensor>& most, int64_t position, int64_t batch) {
      return !most || position < int64_t(read(*most, batch));
    };
    for_each(z.dims, [&](const Sizes& at) {
      if (!within(rows, at[2], at[0]) || !within(columns, at[3], at[0]))
        return write(z, z.inside ? place(z, at) : kNowhere, std::nan(""));
      Sizes x_at = at, y_at = at, x_of = z.dims, y_of = z.dims;
      x_of[3] = y_of[2] = x.dims[3];
      double sum = 0;
      for (int64_t k = 0; k < x.dims[3]; ++k) {
        if (!within(terms, k, at[0])) break;
        x_at[3] = y_at[2] = k;
        sum += read(x, x_at, x_of) * read(y, y_at, y_of);
      }
      write(z, place(z, at), sum);  // sums in memory, too: since 9.6 engines set them to 0 first
    });
  }
  void reshape(const D& d) {  // gives the same memory another shape
    const Tensor x(d.at(Attribute::operation_reshape_x)), y(d.at(Attribute::operation_reshape_y));
    for_each(y.dims, [&](const Sizes& at) {
      const int64_t offset = place(y, at);
      write(y, offset, read(x, offset));
    });
  }
  void reduce(const D& d) {
    const Tensor x(d.at(Attribute::operation_reduction_x)),
        y(d.at(Attribute::operation_reduction_y));
    const bool most = d.at(Attribute::operation_reduction_descriptor)
                          .one<kernels::cuda::CudnnReduction>(Attribute::reduction_operator) ==
                      kernels::cuda::CudnnReduction::max;
    std::map<int64_t, double> result;
    for_each(x.dims, [&](const Sizes& at) {
      const double value = read(x, at, x.dims);
      const auto [entry, is_first] = result.emplace(place(y, at, x.dims), value);
      if (!is_first) entry->second = most ? std::max(entry->second, value) : entry->second + value;
    });
    for (const auto& [offset, value] : result) write(y, offset, value);
  }
  void pointwise(const D& d) {
    const D& how = d.at(Attribute::operation_pointwise_descriptor);
    const auto mode = how.one<kernels::cuda::CudnnPointwise>(Attribute::pointwise_mode);
    const Tensor y(d.at(Attribute::operation_pointwise_y));
    std::vector<Tensor> inputs;
    for (auto name : {Attribute::operation_pointwise_x, Attribute::operation_pointwise_b,
                      Attribute::operation_pointwise_t})
      if (d.values.count(name)) inputs.emplace_back(d.at(name));
    for_each(y.dims, [&](const Sizes& at) {
      double in[3] = {};
      for (size_t i = 0; i < inputs.size(); ++i)
        if (mode != kernels::cuda::CudnnPointwise::generate_index)
          in[i] = read(inputs[i], at, y.dims);
      const double value = mode == kernels::cuda::CudnnPointwise::generate_index
                               ? double(at[size_t(how.one<int64_t>(Attribute::pointwise_axis))])
                               : compute(mode, in);
      write(y, place(y, at), value);
    });
  }
  static double compute(kernels::cuda::CudnnPointwise mode, const double* in) {
    using M = kernels::cuda::CudnnPointwise;
    switch (mode) {
      case M::add: return in[0] + in[1];
      case M::sub: return in[0] - in[1];
      case M::mul: return in[0] * in[1];
      case M::div: return in[0] / in[1];
      case M::exp: return std::exp(in[0]);
      case M::log: return std::log(in[0]);
      case M::identity: return in[0];
      case M::compare_greater: return in[0] > in[1];
      case M::compare_greater_equal: return in[0] >= in[1];
      case M::compare_less: return in[0] < in[1];
      case M::logical_and: return in[0] != 0 && in[1] != 0;
      case M::binary_select: return in[2] != 0 ? in[0] : in[1];
      case M::generate_index: break;
    }
    return std::nan("");
  }

  std::map<int64_t, void*> addresses_;
  std::map<int64_t, std::vector<double>> inside_;  // by id and offset; NaN where nothing is written
};

// --- the functions ---

namespace cudnn_stand_in {

using S = CudnnStandIn;
using D = S::Descriptor;

inline S::Status finalize(void* p) {
  D& d = *static_cast<D*>(p);
  S& s = S::it();
  const auto dims = [&](S::Attribute name) {
    return d.at(name).all<int64_t>(S::Attribute::tensor_dimensions).size();
  };
  if (d.finalized) return S::Status(2000);
  if (const auto refused = s.refuse.find(d.kind); refused != s.refuse.end()) return refused->second;
  if (d.kind == S::Kind::operation_pointwise &&
      d.values.count(S::Attribute::operation_pointwise_b) &&
      dims(S::Attribute::operation_pointwise_x) != dims(S::Attribute::operation_pointwise_b))
    return S::Status(2000);
  if (d.kind == S::Kind::tensor) {
    const int64_t id = d.one<int64_t>(S::Attribute::tensor_unique_id);
    s.dims[id] = d.all<int64_t>(S::Attribute::tensor_dimensions);
    const auto strides = s.strides[id] = d.all<int64_t>(S::Attribute::tensor_strides);
    if (d.values.count(S::Attribute::tensor_ragged_offset)) {
      const int64_t row = std::max(strides[2], strides[3]);
      const int64_t offsets =
          d.at(S::Attribute::tensor_ragged_offset).one<int64_t>(S::Attribute::tensor_unique_id);
      const auto known = s.narrowest_row.emplace(offsets, row).first;
      known->second = std::min(known->second, row);
    }
  }
  if (d.kind == S::Kind::execution_plan) {
    const D& config = d.at(S::Attribute::plan_engine_config);
    const size_t n = size_t(config.engine), own = s.engines.size();
    const S::Engine& engine = n < own ? s.engines[n] : s.fallback_engines.at(n - own);
    if (engine.plan != S::Status::success) return engine.plan;
    ++s.plans;
  }
  d.finalized = true;
  return S::Status::success;
}

inline S::Status get(void* p, S::Attribute name, S::Type, int64_t room, int64_t* count,
                     void* values) {
  D& d = *static_cast<D*>(p);
  S& s = S::it();
  if (!d.finalized && d.kind != S::Kind::engine && d.kind != S::Kind::engine_config)
    return S::Status(2004);
  const size_t own = s.engines.size();
  if (name == S::Attribute::heuristics_results) {
    const bool a =
        d.one<int>(S::Attribute::heuristics_mode) == int(kernels::cuda::CudnnHeuristicMode::a);
    const size_t n = a ? own : s.fallback_engines.size();
    *count = int64_t(n);
    for (size_t i = 0; i < std::min(size_t(room), n); ++i) {
      D& config = **(static_cast<D**>(values) + i);
      config.engine = int(a ? i : own + i);
      config.graph = &d.at(S::Attribute::heuristics_operation_graph);
    }
    return S::Status::success;
  }
  *count = 1;
  if (name == S::Attribute::engine_config_engine) {
    (*static_cast<D**>(values))->engine = d.engine;
    return S::Status::success;
  }
  const size_t n = size_t(
      d.kind == S::Kind::execution_plan ? d.at(S::Attribute::plan_engine_config).engine : d.engine);
  const S::Engine& engine = n < own ? s.engines[n] : s.fallback_engines.at(n - own);
  if (name == S::Attribute::engine_numerical_note) {
    int notes[] = {0, int(kernels::cuda::CudnnNote::nondeterministic)};
    *count = engine.deterministic ? 1 : 2;
    std::memcpy(values, notes, size_t(*count) * sizeof(int));
  } else if (name == S::Attribute::plan_workspace_size) {
    const int64_t heads = s.dims.at(kernels::cuda::kQuery)[1],
                  bytes = engine.workspace + engine.workspace_per_head * heads;
    std::memcpy(values, &bytes, sizeof bytes);
  } else {
    return S::Status(2000);
  }
  return S::Status::success;
}

inline S::Status execute(cudnnContext*, void* plan, void* pack) {
  S& s = S::it();
  const D& p = *static_cast<D*>(pack);
  if (!static_cast<D*>(plan)->finalized || !p.finalized) return S::Status(2004);
  const D& config = static_cast<D*>(plan)->at(S::Attribute::plan_engine_config);
  const size_t n = size_t(config.engine), own = s.engines.size();
  const S::Engine& engine = n < own ? s.engines[n] : s.fallback_engines.at(n - own);
  ++s.tries;
  for (const S::Status status : {s.executing, engine.executing})
    if (status != S::Status::success) return status;
  if (s.computes) GraphRun(*config.graph, p);
  ++s.executions;
  return S::Status::success;
}

}  // namespace cudnn_stand_in

inline const kernels::cuda::CudnnApi& CudnnStandIn::api() {
  namespace f = cudnn_stand_in;
  using D = Descriptor;
  static const kernels::cuda::CudnnApi api{
      .create = [](cudnnContext**) { return Status::success; },
      .destroy = [](cudnnContext*) { return Status::success; },
      .set_stream =
          [](cudnnContext*, CUstream_st* stream) {
            it().stream = stream;
            return Status::success;
          },
      .version = [] { return size_t(91900); },
      .error_string =
          [](Status s) {
            return s == Status::not_supported      ? "CUDNN_STATUS_NOT_SUPPORTED"
                   : s == Status::execution_failed ? "CUDNN_STATUS_EXECUTION_FAILED"
                                                   : "CUDNN_STATUS_BAD_PARAM";
          },
      .last_error_string = [](char* text,
                              size_t most) { std::strncpy(text, "the stand-in's why", most - 1); },
      .create_descriptor =
          [](Kind kind, void** made) {
            *made = new D{kind};
            ++it().alive;
            return Status::success;
          },
      .destroy_descriptor =
          [](void* d) {
            delete static_cast<D*>(d);
            --it().alive;
            return Status::success;
          },
      .set_attribute =
          [](void* d, Attribute name, Type type, int64_t count, const void* values) {
            const size_t size = type == Type::boolean ? 1
                                : type == Type::int64 || type == Type::handle ||
                                        type == Type::void_ptr || type == Type::descriptor
                                    ? 8
                                    : 4;
            auto& to = static_cast<D*>(d)->values[name];
            const auto* from = static_cast<const char*>(values);
            to.assign(from, from + size_t(count) * size);
            return static_cast<D*>(d)->finalized ? Status(2000) : Status::success;
          },
      .get_attribute = f::get,
      .finalize = f::finalize,
      .execute = f::execute};
  return api;
}

}  // namespace mtrain::test
