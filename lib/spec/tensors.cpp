#include "spec/tensors.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"

namespace mtrain::spec {

namespace {

using Dim = TensorSplit::Dim;

// Returns the linear of that name as a whole; none if it never has an adapter.
std::optional<Projection> whole_projection(const std::string& linear) {
  if (linear == "qkv") return Projection::qkv;
  if (linear == "proj") return Projection::proj;
  if (linear == "q" || linear == "q_up") return Projection::query;
  if (linear == "q_down") return Projection::query_down;
  if (linear == "kv_down") return Projection::latent_down;
  if (linear == "kv_up") return Projection::latent_up;
  if (linear == "gate_up" || linear == "shared_expert.gate_up") return Projection::gate_up;
  if (linear == "up") return Projection::up;
  if (linear == "down" || linear == "shared_expert.down") return Projection::down;
  return {};
}

std::optional<Projection> section_projection(Rows rows) {
  switch (rows) {
    case Rows::all: return {};
    case Rows::query: return Projection::query;
    case Rows::key: return Projection::key;
    case Rows::value: return Projection::value;
    case Rows::gate: return Projection::gate;
    case Rows::up: return Projection::up;
  }
  return {};
}

// Collects the tensors of one part of a model, whose names share a prefix.
class TensorList {
 public:
  TensorList(const ModelSpec& model, std::string prefix, int64_t layer = -1)
      : m_(model), prefix_(std::move(prefix)), layer_(layer) {}

  std::vector<TensorSpec> take() { return std::move(list_); }

  void add(const std::string& name, TensorSpec t) {
    t.name = prefix_ + name;
    t.frozen = m_.lora && !t.adapter;
    list_.push_back(std::move(t));
  }

  // The weight of a norm. Its initial value makes the norm scale by 1.
  void scale(const std::string& name, int64_t width, TensorSplit split = {}) {
    add(name, {.name = {},
               .full_shape = {width},
               .split = std::move(split),
               .role = TensorRole::vector,
               .init = m_.norm.plus_one ? Init::zeros : Init::ones});
  }
  void bias(const std::string& name, int64_t width, TensorSplit split = {}) {
    add(name, {.name = {},
               .full_shape = {width},
               .split = std::move(split),
               .role = TensorRole::vector,
               .init = Init::zeros});
  }
  void residual_norm(const std::string& name) {
    scale(name + ".weight", m_.hidden);
    if (m_.norm.bias) bias(name + ".bias", m_.hidden);
  }
  void table(const std::string& name, int64_t rows, TensorSplit split = {}) {
    add(name, {.name = {},
               .full_shape = {rows, m_.hidden},
               .split = std::move(split),
               .role = TensorRole::table,
               .std = std()});
  }
  // A table with a row for each id of the vocabulary.
  void vocabulary(const std::string& name) {
    table(name, m_.vocab,
          {.dim = Dim::rows, .sections = {{Rows::all, m_.vocab, 1}}, .padded = true});
  }
  // A matrix whose rows tensor parallelism divides, and its bias, which is divided like the rows.
  void column_linear(const std::string& name, int64_t inputs, std::vector<RowSection> sections,
                     bool has_bias) {
    const TensorSplit split{.dim = Dim::rows, .sections = std::move(sections)};
    int64_t rows = 0;
    for (const RowSection& s : split.sections) rows += s.count();
    add(name + ".weight", {.name = {}, .full_shape = {rows, inputs}, .split = split, .std = std()});
    if (has_bias) bias(name + ".bias", rows, split);
    const auto whole = whole_projection(name);
    if (!whole) return;
    if (adapts(*whole)) adapter(name + adapter_prefix(Rows::all), inputs, rows, {}, split);
    for (const RowSection& s : split.sections)
      if (const auto p = section_projection(s.rows); p && p != whole && adapts(*p))
        adapter(name + adapter_prefix(s.rows), inputs, s.count(), {},
                {.dim = Dim::rows, .sections = {s}});
  }
  // A matrix whose columns tensor parallelism divides. It writes into the residual stream.
  void row_linear(const std::string& name, int64_t inputs, bool has_bias) {
    add(name + ".weight", {.name = {},
                           .full_shape = {m_.hidden, inputs},
                           .split = {.dim = Dim::columns},
                           .std = residual_std()});
    if (has_bias) bias(name + ".bias", m_.hidden);
    if (const auto p = whole_projection(name); p && adapts(*p))
      adapter(name + adapter_prefix(Rows::all), inputs, m_.hidden, {.dim = Dim::columns}, {});
  }
  // A matrix that every tensor-parallel rank has.
  void small_matrix(const std::string& name, int64_t rows) { small_matrix(name, rows, m_.hidden); }
  void small_matrix(const std::string& name, int64_t rows, int64_t inputs) {
    add(name, {.name = {}, .full_shape = {rows, inputs}, .std = std()});
  }

  // The same with an adapter, which every tensor-parallel rank has, too.
  void small_linear(const std::string& name, int64_t rows) {
    small_matrix(name + ".weight", rows);
    if (const auto p = whole_projection(name); p && adapts(*p))
      adapter(name + adapter_prefix(Rows::all), m_.hidden, rows, {}, {});
  }

  bool adapts(Projection p) const { return m_.lora && m_.lora->adapts(layer_, p); }
  // A (dim, inputs) begins as peft's does, Kaiming uniform with a = sqrt(5), and B (rows, dim) as
  // zeros.
  void adapter(const std::string& name, int64_t inputs, int64_t rows, TensorSplit a,
               TensorSplit b) {
    add(name + ".a", {.name = {},
                      .full_shape = {m_.lora->dim, inputs},
                      .split = std::move(a),
                      .init = Init::uniform,
                      .std = 1 / std::sqrt(float(inputs)),
                      .adapter = true});
    add(name + ".b", {.name = {},
                      .full_shape = {rows, m_.lora->dim},
                      .split = std::move(b),
                      .init = Init::zeros,
                      .adapter = true});
  }

  // The matrices of all experts, (count, rows, inputs), and their adapters: A (count, dim, inputs)
  // and B (count, rows, dim). Tensor parallelism may divide each expert's matrix by `dim`.
  void experts(const std::string& name, Projection p, const Shape& shape, TensorSplit split,
               float weight_std) {
    split.experts = true;
    add(name + ".weight", {.name = {}, .full_shape = shape, .split = split, .std = weight_std});
    if (!adapts(p)) return;
    const bool rows = split.dim == Dim::rows;
    const TensorSplit all{.experts = true};
    const int64_t dim = m_.lora->expert_dim;
    add(name + ".lora.a", {.name = {},
                           .full_shape = {shape[0], dim, shape[2]},
                           .split = rows ? all : split,
                           .init = Init::uniform,
                           .std = 1 / std::sqrt(float(shape[2])),
                           .adapter = true});
    add(name + ".lora.b", {.name = {},
                           .full_shape = {shape[0], shape[1], dim},
                           .split = rows ? split : all,
                           .init = Init::zeros,
                           .adapter = true});
  }

  float std() const { return float(m_.init_std); }
  // GPT-2 divides the initial weights of projections into the residual stream by sqrt(2 L).
  float residual_std() const { return std() / std::sqrt(2.0f * float(m_.main_layers())); }

 private:
  const ModelSpec& m_;
  const std::string prefix_;
  const int64_t layer_;
  std::vector<TensorSpec> list_;
};

void add_head_norms(const GroupedAttention& a, TensorList& list) {
  if (a.head_norm == HeadNorm::none) return;
  const bool all = a.head_norm == HeadNorm::all_heads;
  const auto add = [&](const char* name, Rows rows, int64_t heads) {
    TensorSplit split;
    if (all) split = {.dim = Dim::rows, .sections = {{rows, heads, a.head_dim}}};
    list.scale(name, (all ? heads : 1) * a.head_dim, std::move(split));
  };
  add("q_norm.weight", Rows::query, a.heads);
  add("k_norm.weight", Rows::key, a.kv_heads);
}

// Every tensor-parallel rank computes the latent vectors, and the ranks divide the heads.
void add_latent_attention(const ModelSpec& m, const GroupedAttention& a, TensorList& list) {
  const LatentProjections& l = *a.latent;
  const std::vector<RowSection> queries{{Rows::query, a.heads, a.head_dim}};
  if (l.q_rank > 0) {
    list.small_linear("q_down", l.q_rank);
    list.scale("q_latent_norm.weight", l.q_rank);
    list.column_linear("q_up", l.q_rank, queries, false);
  } else {
    list.column_linear("q", m.hidden, queries, false);
  }
  list.small_linear("kv_down", l.kv_rank + l.rope_dim);
  list.scale("kv_latent_norm.weight", l.kv_rank);
  // A head's rows: its key's, without the rotated elements, and then its value's.
  list.column_linear("kv_up", l.kv_rank,
                     {{Rows::all, a.heads, a.head_dim - l.rope_dim + a.value_dim()}}, false);
  list.row_linear("proj", a.out_width(), false);
}

void add_attention(const ModelSpec& m, const GroupedAttention& a, TensorList& list) {
  if (a.latent) return add_latent_attention(m, a, list);
  list.column_linear("qkv", m.hidden,
                     {{Rows::query, a.heads, a.head_dim},
                      {Rows::key, a.kv_heads, a.head_dim},
                      {Rows::value, a.kv_heads, a.head_dim}},
                     a.qkv_bias);
  list.row_linear("proj", a.heads * a.head_dim, a.proj_bias);
  add_head_norms(a, list);
}

std::vector<RowSection> gate_up(int64_t ffn) { return {{Rows::gate, ffn, 1}, {Rows::up, ffn, 1}}; }

void add_mlp(const ModelSpec& m, const DenseMlp& mlp, TensorList& list) {
  if (mlp.gated())
    list.column_linear("gate_up", m.hidden, gate_up(mlp.ffn), mlp.bias);
  else
    list.column_linear("up", m.hidden, {{Rows::all, mlp.ffn, 1}}, mlp.bias);
  list.row_linear("down", mlp.ffn, mlp.bias);
}

// Adds the tensors that all ranks of expert parallelism have: those of the router and of the shared
// expert.
void add_router(const ModelSpec& m, const Experts& e, TensorList& list) {
  list.small_matrix("router.weight", e.count);
  if (e.bias)
    list.add("router.bias",
             {.name = {}, .full_shape = {e.count}, .role = TensorRole::state, .init = Init::zeros});
  if (e.shared_ffn == 0) return;
  list.column_linear("shared_expert.gate_up", m.hidden, gate_up(e.shared_ffn), false);
  list.row_linear("shared_expert.down", e.shared_ffn, false);
  if (e.shared_gate) list.small_matrix("shared_expert.gate.weight", 1);
}

void add_experts(const ModelSpec& m, const Experts& e, TensorList& list) {
  list.experts("experts.gate_up", Projection::expert_gate_up, {e.count, 2 * e.ffn, m.hidden},
               {.dim = Dim::rows, .sections = gate_up(e.ffn)}, list.std());
  list.experts("experts.down", Projection::expert_down, {e.count, m.hidden, e.ffn},
               {.dim = Dim::columns}, list.residual_std());
}

void append(std::vector<TensorSpec>& all, std::vector<TensorSpec> more) {
  for (TensorSpec& t : more) all.push_back(std::move(t));
}

}  // namespace

std::string adapter_prefix(Rows rows) {
  switch (rows) {
    case Rows::all: return ".lora";
    case Rows::query: return ".lora.query";
    case Rows::key: return ".lora.key";
    case Rows::value: return ".lora.value";
    case Rows::gate: return ".lora.gate";
    case Rows::up: return ".lora.up";
  }
  return {};
}

std::vector<TensorSpec> embedding_tensors(const ModelSpec& m) {
  TensorList list(m, "");
  list.vocabulary("embedding.weight");
  if (m.learned_positions) list.table("position_embedding.weight", m.max_positions);
  return list.take();
}

std::vector<TensorSpec> layer_tensors(const ModelSpec& m, int64_t layer) {
  const LayerSpec& l = m.layer(layer);
  const std::string prefix = "layers." + std::to_string(layer);
  TensorList attention(m, prefix + ".attention.", layer), mlp(m, prefix + ".mlp.", layer),
      before(m, prefix + ".mtp."), after(m, prefix + ".mtp."), spread(m, prefix + ".mlp.", layer);
  if (layer >= m.main_layers()) {
    before.residual_norm("embedding_norm");
    before.residual_norm("hidden_norm");
    before.small_matrix("proj.weight", m.hidden, 2 * m.hidden);
    after.residual_norm("final_norm");
  }
  if (l.input_norms) attention.residual_norm("norm"), mlp.residual_norm("norm");
  std::visit([&](const GroupedAttention& a) { add_attention(m, a, attention); }, l.attention);
  const Experts* experts = l.experts();
  if (experts)
    add_router(m, *experts, mlp);
  else
    add_mlp(m, std::get<DenseMlp>(l.mlp), mlp);
  if (l.output_norms) attention.residual_norm("out_norm"), mlp.residual_norm("out_norm");
  if (experts) add_experts(m, *experts, spread);
  std::vector<TensorSpec> all;
  for (TensorList* part : {&before, &attention, &mlp, &after, &spread}) append(all, part->take());
  return all;
}

std::vector<TensorSpec> output_tensors(const ModelSpec& m) {
  TensorList list(m, "");
  list.residual_norm("final_norm");
  if (!m.tied_embeddings) list.vocabulary("output.weight");
  return list.take();
}

std::vector<TensorSpec> tensors(const ModelSpec& m) {
  std::vector<TensorSpec> all = embedding_tensors(m);
  for (int64_t layer = 0; layer < m.layer_count(); ++layer) append(all, layer_tensors(m, layer));
  append(all, output_tensors(m));
  return all;
}

std::vector<TensorSpec> parameters(const ModelSpec& m) {
  std::vector<TensorSpec> all = tensors(m);
  std::erase_if(all, [](const TensorSpec& t) { return t.role == TensorRole::state; });
  return all;
}

const TensorSpec* find_tensor(const std::vector<TensorSpec>& list, std::string_view name) {
  const auto at = std::ranges::find(list, name, &TensorSpec::name);
  return at == list.end() ? nullptr : &*at;
}

const TensorSpec& tensor_of(const std::vector<TensorSpec>& list, std::string_view name) {
  const TensorSpec* tensor = find_tensor(list, name);
  MT_CHECK(tensor, "the model has no tensor {}", name);
  return *tensor;
}

}  // namespace mtrain::spec
