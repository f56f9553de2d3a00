// Sliding windows of Hugging Face's config.json.
#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/hf_config_file.h"

namespace mtrain::recipe {
namespace {

int64_t number_of_layers(const HfConfigFile& file) {
  const char* key = file.find("n_layer") ? "n_layer" : "num_hidden_layers";
  if (file.find(key)) return file.number(key, 1);
  return file.field("model.num_layers") ? int64_t(file.field_number("model.num_layers")) : 1;
}

// What a configuration says of the windows of its layers.
struct Windows {
  bool window = false;       // there is a width
  bool switched = false;     // use_sliding_window switches it on, and sliding_window has a default
  std::vector<bool> layers;  // whether each has it
  const char* said = "sliding_window";
  int64_t windowed() const { return std::ranges::count(layers, true); }
};

// What the family's own keys say. Families that switch a window by use_sliding_window ignore
// sliding_window where that is false.
Windows windows_of_family(const HfConfigFile& file, HfWindow kind, int64_t layers) {
  Windows is{.layers = std::vector<bool>(size_t(layers))};
  const Node *use = file.find("use_sliding_window"), *width = file.find("sliding_window");
  const Node* set = file.field("model.window_size");
  const bool row = kind == HfWindow::every_layer;
  is.switched = !row && kind != HfWindow::none && use && to_lower(use->text) == "true";
  is.window = row ? set && !set->unset() : is.switched && !(width && width->unset());
  if (!is.window) return is;
  const int64_t most = file.number("max_window_layers", 28);
  for (int64_t i = 0; i < layers; ++i)
    is.layers[size_t(i)] = kind == HfWindow::from_layer    ? i >= most
                           : kind == HfWindow::alternating ? i % 2 == 0 && i < most
                                                           : true;
  if (kind == HfWindow::from_layer) is.said = "max_window_layers";
  if (kind == HfWindow::alternating) is.said = "use_sliding_window, for every other layer,";
  return is;
}

// Returns what model.window_attn_skip_freq says of these layers.
Node list_of_layers(const HfConfigFile& file, const std::vector<bool>& layers) {
  Node list = file.scalar("");
  list.kind = Node::Kind::list;
  for (const bool has : layers) list.items.push_back(file.scalar(has ? "1" : "0"));
  return list;
}

}  // namespace

// layer_types, where it is given, replaces the family's rule. Families whose layers have a window
// each for itself are read so; of the alternating kind transformers' versions say different things.
void read_hf_window(HfConfigFile& file, HfWindow kind) {
  const bool row = kind == HfWindow::every_layer;
  const bool same = row || kind == HfWindow::switched;  // transformers reads no layer_types
  const int64_t layers = number_of_layers(file);
  Windows is = windows_of_family(file, kind, layers);
  std::string said = is.said;
  if (said == "max_window_layers") said += fmt::format(" {}", file.number(said, 28));
  if (const Node* types = file.given("layer_types")) {
    said = "layer_types";
    const std::string_view name = "sliding_attention";
    const auto sliding = std::ranges::count(types->items, name, &Node::text);
    const auto full = std::ranges::count(types->items, "full_attention", &Node::text);
    if (int64_t(types->items.size()) != layers || sliding + full != layers)
      return file.refuse(fmt::format("{}: layer_types must say of each of the {} layers "
                                     "full_attention or sliding_attention",
                                     file.path(), layers),
                         "layers of other kinds are not built");
    if (is.window || row || kind == HfWindow::none)
      for (size_t i = 0; i < types->items.size(); ++i) is.layers[i] = types->items[i].text == name;
  }
  const Node* width = file.find("sliding_window");
  const int64_t windowed = is.windowed();
  const bool some = windowed != 0 && windowed != layers;
  const bool none_wide = windowed > 0 && !is.window;
  if ((some && kind != HfWindow::from_layer) || none_wide || (same && is.window && windowed == 0))
    return file.refuse(
        fmt::format("{}: {} gives a window to {} of {} layers, with sliding_window {}", file.path(),
                    said, windowed, layers, width ? width->text : "left out"),
        "models of this family have one window for all layers, or none");
  if (!is.switched || windowed == 0) return;
  file.set("model.window_size", width ? *width : file.scalar("4096"), "sliding_window", false);
  if (some) file.set("model.window_attn_skip_freq", list_of_layers(file, is.layers), said, false);
}

}  // namespace mtrain::recipe
