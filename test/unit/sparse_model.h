// Folders of a model's weights as holes of files: they have the shapes of a large model, and take
// no room on the disk.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/file.h"
#include "storage/safetensors_folder.h"

namespace mtrain {

using BrainTensors = std::vector<std::pair<std::string, Shape>>;  // bf16 tensors

struct LlamaSizes {
  int64_t layers, hidden, ffn, heads, kv_heads, vocab;

  int64_t kv_rows() const { return hidden / heads * kv_heads; }
};
inline constexpr LlamaSizes kLlama70b{80, 8192, 28672, 64, 8, 128256};  // Llama 3's

inline BrainTensors llama_tensors(const LlamaSizes& m) {
  BrainTensors tensors{{"model.embed_tokens.weight", {m.vocab, m.hidden}}};
  for (int64_t layer = 0; layer < m.layers; ++layer)
    for (const auto& [name, shape] : BrainTensors{{"self_attn.q_proj", {m.hidden, m.hidden}},
                                                  {"self_attn.k_proj", {m.kv_rows(), m.hidden}},
                                                  {"self_attn.v_proj", {m.kv_rows(), m.hidden}},
                                                  {"self_attn.o_proj", {m.hidden, m.hidden}},
                                                  {"mlp.gate_proj", {m.ffn, m.hidden}},
                                                  {"mlp.up_proj", {m.ffn, m.hidden}},
                                                  {"mlp.down_proj", {m.hidden, m.ffn}},
                                                  {"input_layernorm", {m.hidden}},
                                                  {"post_attention_layernorm", {m.hidden}}})
      tensors.emplace_back(fmt::format("model.layers.{}.{}.weight", layer, name), shape);
  tensors.emplace_back("model.norm.weight", Shape{m.hidden});
  tensors.emplace_back("lm_head.weight", Shape{m.vocab, m.hidden});
  return tensors;
}

// Returns the text of the model's config.json.
inline std::string llama_config(const LlamaSizes& m) {
  return fmt::format(
      R"({{"architectures":["LlamaForCausalLM"],"model_type":"llama","num_hidden_layers":{},)"
      R"("hidden_size":{},"intermediate_size":{},"num_attention_heads":{},)"
      R"("num_key_value_heads":{},"vocab_size":{},"max_position_embeddings":8192,)"
      R"("tie_word_embeddings":false,"torch_dtype":"bfloat16"}})",
      m.layers, m.hidden, m.ffn, m.heads, m.kv_heads, m.vocab);
}

// Writes `tensors` to so many shards of about equal size, and their index.
inline void write_sparse_model(const std::filesystem::path& folder, const BrainTensors& tensors,
                               int shards) {
  int64_t total = 0, before = 0;
  for (const auto& [name, shape] : tensors) total += 2 * shape.count();
  std::string map;
  size_t next = 0;
  for (int shard = 0; shard < shards; ++shard) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    std::string header;
    int64_t at = 0;
    for (;
         next < tensors.size() && (shard + 1 == shards || before < (shard + 1) * (total / shards));
         ++next) {
      const auto& [name, shape] = tensors[next];
      const int64_t bytes = 2 * shape.count();
      const std::string dims = shape.str();
      header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                            header.empty() ? "" : ",", name, dims.substr(1, dims.size() - 2), at,
                            at + bytes);
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", name, file);
      at += bytes, before += bytes;
    }
    header = "{" + header + "}";
    const uint64_t length = header.size();
    std::ofstream(folder / file, std::ios::binary)
        .write(reinterpret_cast<const char*>(&length), sizeof(length))
        .write(header.data(), std::streamsize(length));
    std::filesystem::resize_file(folder / file, sizeof(length) + length + uint64_t(at));
  }
  write_file_atomic(folder / storage::kIndexFile, R"({"weight_map":{)" + map + "}}");
}

// Returns the anonymous memory of this process, in bytes.
inline int64_t anonymous_memory() {
  const std::string status = read_file("/proc/self/status");
  const auto at = status.find("RssAnon:");
  MT_CHECK(at != status.npos, "no RssAnon in /proc/self/status");
  return std::stoll(status.substr(at + 8)) << 10;
}

}  // namespace mtrain
