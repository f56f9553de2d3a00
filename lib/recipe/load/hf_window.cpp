// Sliding windows of Hugging Face's config.json.
#include <algorithm>

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
  bool window = false;    // there is a width
  bool switched = false;  // sliding_window, which is no row of the family, counts
  int64_t windowed = 0;   // layers that have it
  std::string said = "sliding_window";
};

// What the family's own keys say. Families that switch a window by use_sliding_window ignore
// sliding_window where that is false.
Windows windows_of_family(const HfConfigFile& file, HfWindow kind, int64_t layers) {
  Windows is;
  const Node *use = file.find("use_sliding_window"), *width = file.find("sliding_window");
  const Node* set = file.field("model.window_size");
  const bool row = kind == HfWindow::every_layer;
  const bool late = kind == HfWindow::late_layers;
  is.switched = late || (!row && kind != HfWindow::none && use && to_lower(use->text) == "true");
  is.window = row ? set && !set->unset() : is.switched && !(width && width->unset());
  if (!is.window) return is;
  is.windowed = layers;
  const int64_t first = file.number("max_window_layers", late ? 62 : 28);
  if (kind == HfWindow::from_layer || late) {
    is.windowed = std::clamp<int64_t>(layers - first, 0, layers);
    is.said = fmt::format("max_window_layers {}", first);
  } else if (kind == HfWindow::alternating) {
    is.windowed = std::clamp<int64_t>((std::min(first, layers) + 1) / 2, 0, layers);
    is.said = "use_sliding_window, for every other layer,";
  }
  return is;
}

}  // namespace

// A window is one for all layers here. layer_types, where it is given, replaces the family's rule.
void read_hf_window(HfConfigFile& file, HfWindow kind) {
  const bool row = kind == HfWindow::every_layer;
  const bool same = row || kind == HfWindow::switched;  // transformers reads no layer_types
  const int64_t layers = number_of_layers(file);
  Windows is = windows_of_family(file, kind, layers);
  if (const Node* types = file.given("layer_types")) {
    is.said = "layer_types";
    const auto sliding = std::ranges::count(types->items, "sliding_attention", &Node::text);
    const auto full = std::ranges::count(types->items, "full_attention", &Node::text);
    if (int64_t(types->items.size()) != layers || sliding + full != layers)
      return file.refuse(fmt::format("{}: layer_types must say of each of the {} layers "
                                     "full_attention or sliding_attention",
                                     file.path(), layers),
                         "layers of other kinds are not built");
    if (is.window || row || kind == HfWindow::late_layers || kind == HfWindow::none)
      is.windowed = sliding;
  }
  const Node* width = file.find("sliding_window");
  const bool some = is.windowed != 0 && is.windowed != layers;
  const bool none_wide = is.windowed > 0 && !is.window;
  if (some || none_wide || (same && is.window && is.windowed == 0))
    return file.refuse(
        fmt::format("{}: {} gives a window to {} of {} layers, with sliding_window {}", file.path(),
                    is.said, is.windowed, layers, width ? width->text : "left out"),
        "one window for all layers, or none, is built");
  if (is.switched && is.windowed > 0)
    file.set("model.window_size", width ? *width : file.scalar("4096"), "sliding_window", false);
}

}  // namespace mtrain::recipe
