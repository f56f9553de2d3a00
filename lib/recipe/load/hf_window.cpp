// Sliding windows of Hugging Face's config.json.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/hf_config_file.h"
#include "recipe/schema/model.h"

namespace mtrain::recipe {
namespace {

// What a configuration says of the windows of its layers.
struct Windows {
  const Node* width = nullptr;  // sliding_window, which may be null
  bool window = false;          // there is a width
  bool switched = false;        // use_sliding_window switches it on
  std::vector<bool> layers;     // which layers have it
  std::string said = "sliding_window";

  int64_t windowed() const { return std::ranges::count(layers, true); }
};

bool without_rope(const HfConfigFile& file, int64_t layer) {
  ModelConfig m;
  ValueError ignored;
  if (const Node* freq = file.field("model.no_rope_freq")) read(*freq, {}, m.no_rope_freq, ignored);
  return !m.has_rope(layer);
}

// What the family's own keys say. Families that switch a window by use_sliding_window ignore
// sliding_window where that is false.
Windows windows_of_family(const HfConfigFile& file, HfWindow kind, int64_t pattern) {
  const int64_t layers = file.number_of_layers();
  Windows is;
  is.layers.resize(size_t(std::max<int64_t>(0, layers)));
  is.width = file.find("sliding_window");
  const bool null = is.width && is.width->unset();
  const Node *use = file.find("use_sliding_window"), *set = file.field("model.window_size");
  is.switched = use && to_lower(use->text) == "true";
  const int64_t first = file.number("max_window_layers", kind == HfWindow::late_layers ? 62 : 28);
  const int64_t nth = file.number("sliding_window_pattern", pattern);
  std::function<bool(int64_t)> has;
  switch (kind) {
    case HfWindow::none: return is;
    case HfWindow::every_layer:
      is.window = set && !set->unset();
      has = [](int64_t) { return true; };
      break;
    case HfWindow::switched:
      is.window = is.switched && !null;
      has = [](int64_t) { return true; };
      break;
    case HfWindow::from_layer:
      is.window = is.switched && !null;
      is.said = fmt::format("max_window_layers {}", first);
      has = [&](int64_t l) { return l >= first; };
      break;
    case HfWindow::late_layers:
      is.switched = true;
      is.window = !null;
      is.said = fmt::format("max_window_layers {}", first);
      has = [&](int64_t l) { return l >= first; };
      break;
    case HfWindow::alternating:
      is.window = is.switched && !null;
      is.said = "use_sliding_window, for every other layer,";
      has = [&](int64_t l) { return l % 2 == 0 && l < first; };
      break;
    case HfWindow::patterned:
      is.window = !null;
      has = [&](int64_t l) { return nth < 1 || (l + 1) % nth != 0; };
      break;
    case HfWindow::without_rope:
      is.window = is.switched && is.width && !null;
      is.said = "use_sliding_window, for layers without rotary positions,";
      has = [&](int64_t l) { return without_rope(file, l); };
      break;
  }
  for (int64_t l = 0; l < layers && (is.window || kind == HfWindow::patterned); ++l)
    is.layers[size_t(l)] = has(l);
  return is;
}

// Reads layer_types, which replaces the family's rule. Returns false after an error.
bool read_types(HfConfigFile& file, HfWindow kind, Windows& is) {
  const Node* types = file.given("layer_types");
  if (!types) return true;
  const auto sliding = std::ranges::count(types->items, "sliding_attention", &Node::text);
  const auto full = std::ranges::count(types->items, "full_attention", &Node::text);
  const auto layers = int64_t(is.layers.size());
  if (int64_t(types->items.size()) != layers || sliding + full != layers) {
    file.refuse(fmt::format("{}: layer_types must say of each of the {} layers "
                            "full_attention or sliding_attention",
                            file.path(), layers),
                "layers of other kinds are not built");
    return false;
  }
  is.said = "layer_types";
  // Families with use_sliding_window ignore it where that is false. transformers lets SmolLM3 mask
  // by it all the same, but keeps more keys in its cache; that is refused.
  const bool ignored = !is.window && (kind == HfWindow::switched || kind == HfWindow::from_layer ||
                                      kind == HfWindow::alternating);
  for (size_t l = 0; !ignored && l < is.layers.size(); ++l)
    is.layers[l] = types->items[l].text == "sliding_attention";
  return true;
}

// Takes back what the family's defaults say of windows.
void set_none(HfConfigFile& file) {
  const char* said = file.given("layer_types") ? "layer_types" : "sliding_window_pattern";
  file.set("model.window_size", Node{}, said, true);
  file.set("model.window_attn_skip_freq", file.scalar("0"), said, true);
  file.set("model.rotary_base_local", Node{}, said, true, true);
}

}  // namespace

void read_hf_window(HfConfigFile& file, HfWindow kind, int64_t pattern) {
  if (file.given("sliding_window_pattern") && file.number("sliding_window_pattern", 0) < 1)
    return file.refuse(fmt::format("{}: sliding_window_pattern is {}, and must be at least 1",
                                   file.path(), file.find("sliding_window_pattern")->text),
                       "n means that layers n, 2 n, ... attend to all tokens");
  Windows is = windows_of_family(file, kind, pattern);
  if (!read_types(file, kind, is)) return;
  const int64_t layers = int64_t(is.layers.size()), windowed = is.windowed();
  const bool uniform = windowed == 0 || windowed == layers;
  // Of these transformers reads no layer_types, or another rule in each of its versions.
  const bool row = kind == HfWindow::every_layer;
  const bool by_layer = kind == HfWindow::from_layer || kind == HfWindow::late_layers ||
                        kind == HfWindow::patterned || kind == HfWindow::without_rope;
  const bool dropped = (row || kind == HfWindow::switched) && is.window && windowed == 0;
  if ((!uniform && !by_layer) || (windowed > 0 && !is.window) || dropped)
    return file.refuse(
        fmt::format("{}: {} gives a window to {} of {} layers, with sliding_window {}", file.path(),
                    is.said, windowed, layers,
                    !is.width           ? "left out"
                    : is.width->unset() ? "null"
                                        : is.width->text),
        !uniform && !by_layer ? "one window for all layers of such models, or none, is built"
                              : "give both, the layers and the width, or none");
  if (windowed == 0) {
    if (kind == HfWindow::patterned) set_none(file);
    return;
  }
  // For every_layer, sliding_window is among the family's keys.
  if (!row)
    file.set("model.window_size", is.width ? *is.width : file.scalar("4096"), "sliding_window",
             false);
  if (uniform && kind != HfWindow::patterned) return;
  std::vector<bool> apart = is.layers;
  apart.flip();
  file.set("model.window_attn_skip_freq", file.frequency(apart, 0),
           file.given("layer_types") ? "layer_types" : "sliding_window_pattern", false);
}

}  // namespace mtrain::recipe
