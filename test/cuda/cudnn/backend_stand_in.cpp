#include "backend_stand_in.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace mtrain::test {

CudnnBackendStandIn& CudnnBackendStandIn::it() {
  static CudnnBackendStandIn one;
  return one;
}

namespace {

struct D {  // a descriptor
  cudnnBackendDescriptorType_t kind;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, std::vector<char>> values = {};
  int engine = -1;     // for a configuration or an engine
  D* graph = nullptr;  // for a configuration

  template <class T>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const auto& bytes = values.at(name);
    std::vector<T> v(bytes.size() / sizeof(T));
    std::memcpy(v.data(), bytes.data(), v.size() * sizeof(T));
    return v;
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name) const {
    T value{};
    std::memcpy(&value, values.at(name).data(), sizeof value);
    return value;
  }
  D& at(cudnnBackendAttributeName_t name) const { return *one<D*>(name); }
};

// Computes the operations of an operation graph.
class GraphRun {
 public:
  using Sizes = std::vector<int64_t>;

  GraphRun(const D& graph, const D& pack) {
    const auto ids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto addresses = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (size_t i = 0; i < ids.size(); ++i) addresses_[ids[i]] = addresses[i];
    for (D* operation : graph.all<D*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) run(*operation);
  }

 private:
  struct Tensor {
    int64_t id;
    Sizes dims, strides;
    cudnnDataType_t type;
    bool inside, value;
    const D* offsets = nullptr;
    static bool is(const D& d, cudnnBackendAttributeName_t name) {
      return d.values.count(name) && d.one<bool>(name);
    }
    explicit Tensor(const D& d)
        : id(d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
          dims(d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
          strides(d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
          type(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
          inside(is(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
          value(is(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {
      if (d.values.count(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC))
        offsets = &d.at(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
    }
    // Returns the dim of the rows of a batch: the third, or the last if the tensor is transposed.
    size_t row_dim() const { return strides[3] > strides[2] ? 3 : 2; }
  };
  static constexpr int64_t kNowhere = -1;

  // Returns the offset in memory, by the strides of `t`, of position `at` of a tensor with dims
  // `of`; elements repeat along dims that divide those of `of`.
  int64_t by_strides(const Tensor& t, const Sizes& at, const Sizes& of) const {
    int64_t sum = 0;
    for (size_t i = t.offsets ? 1 : 0; i < t.dims.size(); ++i)
      sum += at[i] * t.dims[i] / of[i] * t.strides[i];
    if (!t.offsets) return sum;
    const size_t row = t.row_dim();
    const int64_t id = t.offsets->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID), b = at[0];
    const auto* const begins = static_cast<const int32_t*>(addresses_.at(id)) + b;
    // The offsets are those of the tensor with the narrowest rows; wider rows multiply them.
    const int64_t narrowest = CudnnBackendStandIn::it().narrowest_row.at(id);
    const int64_t times = t.strides[row] / narrowest;
    if (at[row] * t.dims[row] / of[row] >= (begins[1] - begins[0]) / narrowest) return kNowhere;
    return begins[0] * times + sum;
  }
  // The same for the tensor's place here: tensors that are in no memory have no gaps. The
  // frontend's strides of some of them overlap.
  int64_t place(const Tensor& t, const Sizes& at, const Sizes& of) const {
    if (!t.inside) return by_strides(t, at, of);
    int64_t index = 0;
    for (size_t i = 0; i < t.dims.size(); ++i)
      index = index * t.dims[i] + at[i] * t.dims[i] / of[i];
    return index;
  }
  int64_t place(const Tensor& t, const Sizes& at) const { return place(t, at, t.dims); }

  double read(const Tensor& t, int64_t offset) {
    if (offset == kNowhere) return std::nan("");
    if (t.inside) {
      const auto& known = inside_.at(t.id);
      return offset < int64_t(known.size()) ? known[size_t(offset)] : std::nan("");
    }
    const void* const p = addresses_.at(t.id);
    if (t.type == CUDNN_DATA_BFLOAT16) return float(static_cast<const bf16*>(p)[offset]);
    if (t.type == CUDNN_DATA_HALF) return float(static_cast<const f16*>(p)[offset]);
    if (t.type == CUDNN_DATA_INT32) return static_cast<const int32_t*>(p)[offset];
    return static_cast<const float*>(p)[offset];
  }
  double read(const Tensor& t, const Sizes& at, const Sizes& of) {
    return read(t, place(t, at, of));
  }
  void write(const Tensor& t, int64_t offset, double value) {
    if (offset == kNowhere) return;
    if (t.type == CUDNN_DATA_BFLOAT16) value = float(bf16(float(value)));
    if (t.type == CUDNN_DATA_HALF) value = float(f16(float(value)));
    if (t.inside) {
      auto& known = inside_[t.id];
      if (offset >= int64_t(known.size())) known.resize(size_t(offset + 1), std::nan(""));
      known[size_t(offset)] = value;
    } else if (t.type == CUDNN_DATA_HALF)
      static_cast<f16*>(addresses_.at(t.id))[offset] = f16(float(value));
    else if (t.type == CUDNN_DATA_BFLOAT16)
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
    if (d.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) matmul(d);
    if (d.kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) reshape(d);
    if (d.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) reduce(d);
    if (d.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) pointwise(d);
  }
  void matmul(const D& d) {
    const Tensor x(d.at(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
        y(d.at(CUDNN_ATTR_OPERATION_MATMUL_BDESC)), z(d.at(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    const auto length = [&](cudnnBackendAttributeName_t name) {
      return d.values.count(name) ? std::optional<Tensor>(d.at(name)) : std::nullopt;
    };
    const auto rows = length(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC),
               columns = length(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC),
               terms = length(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
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
    const Tensor x(d.at(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
        y(d.at(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    std::map<int64_t, int64_t> place_of;  // by the offset that the strides give
    if (x.inside)
      for_each(x.dims,
               [&](const Sizes& at) { place_of[by_strides(x, at, x.dims)] = place(x, at); });
    for_each(y.dims, [&](const Sizes& at) {
      const int64_t offset = by_strides(y, at, y.dims);
      write(y, place(y, at),
            read(x, x.inside && offset != kNowhere ? place_of.at(offset) : offset));
    });
  }
  void reduce(const D& d) {
    const Tensor x(d.at(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
        y(d.at(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    const bool most =
        d.at(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
            .one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    std::map<int64_t, double> result;
    for_each(x.dims, [&](const Sizes& at) {
      const double value = read(x, at, x.dims);
      const auto [entry, is_first] = result.emplace(place(y, at, x.dims), value);
      if (!is_first) entry->second = most ? std::max(entry->second, value) : entry->second + value;
    });
    for (const auto& [offset, value] : result) write(y, offset, value);
  }
  void pointwise(const D& d) {
    const D& how = d.at(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const bool derives = d.values.count(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC) > 0;
    const Tensor y(d.at(derives ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC
                                : CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    std::vector<Tensor> inputs;
    if (derives) inputs.emplace_back(d.at(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC));
    for (auto name : {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                      CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
      if (d.values.count(name)) inputs.emplace_back(d.at(name));
    for_each(y.dims, [&](const Sizes& at) {
      double in[3] = {};
      for (size_t i = 0; i < inputs.size(); ++i)
        if (mode != CUDNN_POINTWISE_GEN_INDEX) in[i] = read(inputs[i], at, y.dims);
      const double value = mode == CUDNN_POINTWISE_GEN_INDEX
                               ? double(at[size_t(how.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS))])
                               : compute(mode, in);
      write(y, place(y, at), value);
    });
  }
  static double compute(cudnnPointwiseMode_t mode, const double* in) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD: return in[0] + in[1];
      case CUDNN_POINTWISE_SUB: return in[0] - in[1];
      case CUDNN_POINTWISE_MUL: return in[0] * in[1];
      case CUDNN_POINTWISE_DIV: return in[0] / in[1];
      case CUDNN_POINTWISE_EXP: return std::exp(in[0]);
      case CUDNN_POINTWISE_LOG: return std::log(in[0]);
      case CUDNN_POINTWISE_IDENTITY: return in[0];
      case CUDNN_POINTWISE_CMP_GT: return in[0] > in[1];
      case CUDNN_POINTWISE_CMP_GE: return in[0] >= in[1];
      case CUDNN_POINTWISE_CMP_LT: return in[0] < in[1];
      case CUDNN_POINTWISE_LOGICAL_AND: return in[0] != 0 && in[1] != 0;
      case CUDNN_POINTWISE_BINARY_SELECT: return in[2] != 0 ? in[0] : in[1];
      case CUDNN_POINTWISE_TANH_FWD: return std::tanh(in[0]);
      case CUDNN_POINTWISE_TANH_BWD: return in[0] * (1 - std::tanh(in[1]) * std::tanh(in[1]));
      default: break;
    }
    return std::nan("");
  }

  std::map<int64_t, void*> addresses_;
  std::map<int64_t, std::vector<double>> inside_;  // by id and offset; NaN where nothing is written
};

const CudnnBackendStandIn::Engine& engine_at(int number) {
  const auto& s = CudnnBackendStandIn::it();
  const size_t n = size_t(number), own = s.engines.size();
  return n < own ? s.engines[n] : s.fallback_engines.at(n - own);
}

cudnnStatus_t finalize(D& d) {
  auto& s = CudnnBackendStandIn::it();
  if (d.kind == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    const int64_t id = d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    s.dims[id] = d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto strides = s.strides[id] = d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    if (d.values.count(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)) {
      const int64_t row = std::max(strides[2], strides[3]);
      const int64_t offsets =
          d.at(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC).one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
      const auto known = s.narrowest_row.emplace(offsets, row).first;
      known->second = std::min(known->second, row);
    }
  }
  if (d.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const auto& engine = engine_at(d.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine);
    if (engine.plan != CUDNN_STATUS_SUCCESS) return engine.plan;
    ++s.plans;
  }
  d.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

template <class T>
cudnnStatus_t answer(const std::vector<T>& values, int64_t room, int64_t* count, void* to) {
  const auto n = int64_t(values.size());
  if (count) *count = n;
  if (to) std::memcpy(to, values.data(), size_t(std::min(room, n)) * sizeof(T));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get(D& d, cudnnBackendAttributeName_t name, int64_t room, int64_t* count, void* to) {
  auto& s = CudnnBackendStandIn::it();
  const auto number = [&] {
    return d.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
               ? d.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine
               : d.engine;
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const bool a = d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A;
      const size_t n = a ? s.engines.size() : s.fallback_engines.size();
      *count = int64_t(n);
      for (size_t i = 0; to && i < std::min(size_t(room), n); ++i) {
        D& config = **(static_cast<D**>(to) + i);
        config.engine = int(a ? i : s.engines.size() + i);
        config.graph = &d.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: return CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (count) *count = 1;
      if (to) (*static_cast<D**>(to))->engine = d.engine;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE: return answer(std::vector<int>{}, room, count, to);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      std::vector<cudnnBackendNumericalNote_t> notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
      if (!engine_at(number()).deterministic)
        notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
      return answer(notes, room, count, to);
    }
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return answer(std::vector<int64_t>{number()}, room, count, to);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      return answer(std::vector<int64_t>{1}, room, count, to);
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
      return answer(std::vector<int32_t>{0}, room, count, to);
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return answer(std::vector<int64_t>{engine_at(number()).workspace}, room, count, to);
    default: return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

}  // namespace

// --- the functions ---

extern "C" {

size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN
             ? "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"
         : status == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
                                            : "CUDNN_STATUS_EXECUTION_FAILED";
}
void cudnnGetLastErrorString(char* text, size_t most) {
  std::strncpy(text, "the stand-in's why", most - 1);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(&CudnnBackendStandIn::it());
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t stream) {
  CudnnBackendStandIn::it().stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t* stream) {
  *stream = CudnnBackendStandIn::it().stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                           cudnnBackendDescriptor_t* made) {
  *made = new D{kind};
  ++CudnnBackendStandIn::it().alive;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  // A plan needs descriptors of which the caller has given up its own: their memory stays.
  static std::vector<std::unique_ptr<D>> given_up;
  given_up.emplace_back(static_cast<D*>(d));
  --CudnnBackendStandIn::it().alive;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  return finalize(*static_cast<D*>(d));
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  const size_t size = type == CUDNN_TYPE_BOOLEAN || type == CUDNN_TYPE_CHAR ? 1
                      : type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_HANDLE ||
                              type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_DOUBLE ||
                              type == CUDNN_TYPE_BACKEND_DESCRIPTOR
                          ? 8
                          : 4;
  auto& to = static_cast<D*>(d)->values[name];
  const auto* from = static_cast<const char*>(values);
  to.assign(from, from + size_t(count) * size);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t room, int64_t* count,
                                       void* to) {
  return get(*static_cast<D*>(d), name, room, count, to);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const D& config = static_cast<D*>(plan)->at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const auto& engine = engine_at(config.engine);
  if (engine.executing != CUDNN_STATUS_SUCCESS) return engine.executing;
  GraphRun(*config.graph, *static_cast<D*>(pack));
  ++CudnnBackendStandIn::it().executions;
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"

}  // namespace mtrain::test
