// Reads sliding windows from Hugging Face's config.json.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"
#include "interchange/config/file.h"
#include "recipe/model_spec.h"
#include "recipe/schema/model.h"

namespace mtrain::interchange {
namespace {

constexpr const char* kWidth = "4096";  // the width of a window if sliding_window is absent

// What a config.json says about the windows of its layers.
struct Windows {
  const Node* width = nullptr;          // sliding_window, which may be a JSON null; null if absent
  bool window = false;                  // config.json enables a window of some width
  bool switched = false;                // use_sliding_window does not switch windows off
  std::vector<bool> layers;             // true for each layer with a window
  std::string rule = "sliding_window";  // what selects these layers, for messages

  int64_t windowed() const { return std::ranges::count(layers, true); }
};

// Returns true for each layer without rotary positions.
std::vector<bool> layers_without_rope(const ConfigFile& file, int64_t layers) {
  ModelConfig m;
  m.num_layers = layers;
  recipe::ValueError ignored;
  if (const Node* freq = file.field("model.no_rope_freq")) read(*freq, {}, m.no_rope_freq, ignored);
  std::vector<bool> without;
  for (const spec::LayerSpec& layer : recipe::model_spec(m).layers)
    without.push_back(layer.grouped().rotary.dims == 0);
  return without;
}

// Whether families of this kind read max_window_layers.
bool reads_first_layer(WindowRule kind) {
  return kind == WindowRule::from_layer || kind == WindowRule::late_layers ||
         kind == WindowRule::alternating;
}

// Whether families of this kind have windows only if use_sliding_window is true.
bool is_switched(WindowRule kind) {
  return kind == WindowRule::switched || kind == WindowRule::from_layer ||
         kind == WindowRule::alternating || kind == WindowRule::without_rope;
}

// Reads the family's own keys. Families with the switch use_sliding_window ignore sliding_window if
// the switch is false. Returns nothing after an error.
std::optional<Windows> windows_of_family(ConfigFile& file, WindowRule kind, int64_t pattern) {
  const int64_t layers = file.number_of_layers();
  Windows windows;
  windows.layers.resize(size_t(std::max<int64_t>(0, layers)));
  windows.width = file.find("sliding_window");
  const bool null = windows.width && windows.width->unset();
  const Node *use = file.find("use_sliding_window"), *set = file.field("model.window_size");
  windows.switched = !is_switched(kind) || (use && to_lower(use->text) == "true");
  std::optional<int64_t> first = 0, nth = 0;
  if (reads_first_layer(kind))
    first = file.number("max_window_layers", kind == WindowRule::late_layers ? 62 : 28);
  if (kind == WindowRule::patterned) nth = file.number("sliding_window_pattern", pattern);
  if (!first || !nth) return std::nullopt;
  windows.window = windows.switched && !null;
  std::function<bool(int64_t)> has = [](int64_t) { return true; };
  switch (kind) {
    case WindowRule::none: windows.window = false; return windows;
    case WindowRule::every_layer: windows.window = set && !set->unset(); break;
    case WindowRule::switched: break;
    case WindowRule::from_layer:
    case WindowRule::late_layers:
      windows.rule = fmt::format("max_window_layers {}", *first);
      has = [&](int64_t l) { return l >= *first; };
      break;
    case WindowRule::alternating:
      windows.rule = "use_sliding_window, for every other layer,";
      has = [&](int64_t l) { return l % 2 == 0 && l < *first; };
      break;
    case WindowRule::patterned:
      has = [&](int64_t l) { return (l + 1) % std::max<int64_t>(1, *nth) != 0; };
      break;
    case WindowRule::without_rope:
      windows.window = windows.window && windows.width;
      windows.rule = "use_sliding_window, for layers without rotary positions,";
      has = [without = layers_without_rope(file, layers)](int64_t l) { return without[size_t(l)]; };
      break;
  }
  for (int64_t l = 0; l < layers && (windows.window || kind == WindowRule::patterned); ++l)
    windows.layers[size_t(l)] = has(l);
  return windows;
}

// Reads layer_types, which overrides the family's rule. Returns false after an error.
bool read_types(ConfigFile& file, Windows& windows) {
  const Node* types = file.given("layer_types");
  if (!types) return true;
  const auto sliding = std::ranges::count(types->items, "sliding_attention", &Node::text);
  const auto full = std::ranges::count(types->items, "full_attention", &Node::text);
  const auto layers = int64_t(windows.layers.size());
  if (int64_t(types->items.size()) != layers || sliding + full != layers) {
    file.refuse(fmt::format("{}: layer_types must give for each of the {} layers "
                            "full_attention or sliding_attention",
                            file.path(), layers),
                "layers of other kinds are not supported");
    return false;
  }
  windows.rule = "layer_types";
  // layer_types counts even if use_sliding_window is false. transformers then cannot compute Qwen;
  // for SmolLM3 it masks by it, but caches more keys. Both are refused.
  for (size_t l = 0; l < windows.layers.size(); ++l)
    windows.layers[l] = types->items[l].text == "sliding_attention";
  return true;
}

// Resets what the family's defaults set for windows.
void set_none(ConfigFile& file) {
  const char* key = file.given("layer_types") ? "layer_types" : "sliding_window_pattern";
  file.set("model.window_size", Node{}, key, true);
  file.set("model.window_attn_skip_freq", file.scalar("0"), key, true);
  file.set("model.rotary_base_local", Node{}, key, true, true);
}

// Returns the width in config.json, and the key that switches windows off, for messages.
std::string width_of(const ConfigFile& file, const Windows& windows) {
  std::string text = !windows.width           ? "left out"
                     : windows.width->unset() ? "null"
                                              : windows.width->text;
  if (windows.switched) return text;
  const Node* use = file.find("use_sliding_window");
  return text + ", and use_sliding_window " + (use ? use->text : "left out");
}

}  // namespace

void read_windows(ConfigFile& file, WindowRule kind, int64_t pattern) {
  const std::optional<Windows> of_family = windows_of_family(file, kind, pattern);
  if (!of_family) return;
  Windows windows = *of_family;
  if (kind == WindowRule::patterned) {
    const char* nth = "sliding_window_pattern";
    if (file.number(nth, 1).value_or(0) < 1)
      return file.refuse(fmt::format("{}: {} is {}, and must be at least 1", file.path(), nth,
                                     file.find(nth)->text),
                         "n means that layers n, 2 n, ... attend to all tokens");
    if (const Node* second_width = file.given("sliding_window_size"))
      file.check_only("sliding_window_size",
                      !windows.width           ? kWidth
                      : windows.width->unset() ? "null"
                                               : windows.width->text,
                      *second_width);
  }
  if (!read_types(file, windows)) return;
  const int64_t layers = int64_t(windows.layers.size()), windowed = windows.windowed();
  const bool uniform = windowed == 0 || windowed == layers;
  // If a kind is not `by_layer`, transformers ignores layer_types, or its versions differ in it.
  const bool row = kind == WindowRule::every_layer;
  const bool by_layer = kind == WindowRule::from_layer || kind == WindowRule::late_layers ||
                        kind == WindowRule::patterned || kind == WindowRule::without_rope;
  const bool dropped = (row || kind == WindowRule::switched) && windows.window && windowed == 0;
  if ((!uniform && !by_layer) || (windowed > 0 && !windows.window) || dropped)
    return file.refuse(
        fmt::format("{}: {} gives a window to {} of {} layers, with sliding_window {}", file.path(),
                    windows.rule, windowed, layers, width_of(file, windows)),
        !uniform && !by_layer ? "such models have one window for all layers, or none"
                              : "give both, the layers and the width, or none");
  if (windowed == 0) {
    if (kind == WindowRule::patterned) set_none(file);
    return;
  }
  // For every_layer, the table of keys has set the width already.
  if (!row)
    file.set("model.window_size", windows.width ? *windows.width : file.scalar(kWidth),
             "sliding_window", false);
  if (uniform && kind != WindowRule::patterned) return;
  std::vector<bool> apart = windows.layers;
  apart.flip();
  file.set("model.window_attn_skip_freq", file.frequency(apart, 0),
           file.given("layer_types") ? "layer_types" : "sliding_window_pattern", false);
}

}  // namespace mtrain::interchange
