#include "plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <fmt/core.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "recipe/load/read_section.h"

namespace mtrain::plan {

namespace {

using recipe::Field;
using recipe::Node;
using recipe::SourceLocation;

constexpr const char* kWriteAgain = "let `mtrain calibrate` write the file again";
constexpr double kMicrosecond = 1e-6, kGigabyte = 1e9;
constexpr double kMost = 1e24;  // of bytes and FLOPs: above any launch
constexpr double kLongest = 1e6;
constexpr size_t kMostPoints = 100000;

// The fields of a file, except the tables, whose keys are names.
struct CalibrationConfig {
  std::string kind, machine, build, date;
  int64_t threads = 1, ranks = 1;
  double gap_us = 0, host_us = 0;

  static constexpr auto fields = std::tuple{
      Field{"kind", &CalibrationConfig::kind, "kind of the device, as in a cluster file"},
      Field{"machine", &CalibrationConfig::machine, "what was measured"},
      Field{"build", &CalibrationConfig::build, "the program that measured"},
      Field{"date", &CalibrationConfig::date, "when, in UTC"},
      Field{"threads", &CalibrationConfig::threads, "threads of a rank", {.min = 1, .max = 65536}},
      Field{"ranks", &CalibrationConfig::ranks, "ranks that computed", {.min = 1, .max = 1 << 24}},
      Field{"gap_us",
            &CalibrationConfig::gap_us,
            "idle time between two launches",
            {.min = 0, .max = 1e6}},
      Field{"host_us",
            &CalibrationConfig::host_us,
            "time of the host for a launch",
            {.min = 0, .max = 1e6}}};
};

struct TimesConfig {
  std::vector<double> flops, read, written, seconds, spread;

  static constexpr auto fields = std::tuple{
      Field{"flops", &TimesConfig::flops, "FLOPs of each size", {.min = 0, .max = kMost}},
      Field{"read", &TimesConfig::read, "bytes read", {.min = 0, .max = kMost}},
      Field{"written", &TimesConfig::written, "bytes written", {.min = 0, .max = kMost}},
      Field{"seconds",
            &TimesConfig::seconds,
            "medians of the rounds",
            {.min = 1e-12, .max = kLongest}},
      Field{"spread", &TimesConfig::spread, "of the rounds, relative", {.min = 0, .max = kMost}}};
};

struct LinkConfig {
  double alpha_us = 0, gbytes_s = 0, spread = 0;

  static constexpr auto fields = std::tuple{
      Field{"alpha_us", &LinkConfig::alpha_us, "time of an empty message", {.min = 0, .max = 1e12}},
      Field{"gbytes_s", &LinkConfig::gbytes_s, "rate", {.min = 1e-9, .max = 1e9}},
      Field{"spread", &LinkConfig::spread, "largest error of the fit", {.min = 0, .max = kMost}}};
};

template <class Member>
constexpr auto stream_field(const char* name, Member member) {
  return Field{name, member, "factor for this kind of stream", {.min = 0, .max = 1e6}};
}

// A number for each kind of stream that communicates; 0: the file has none.
struct ByStreamConfig {
  double control = 0, cp = 0, dp_grad = 0, dp_param = 0, ep = 0, ep_counts = 0, pp = 0, pp_recv = 0,
         pp_send = 0, tp = 0;

  static constexpr auto fields = std::tuple{stream_field("control", &ByStreamConfig::control),
                                            stream_field("cp", &ByStreamConfig::cp),
                                            stream_field("dp_grad", &ByStreamConfig::dp_grad),
                                            stream_field("dp_param", &ByStreamConfig::dp_param),
                                            stream_field("ep", &ByStreamConfig::ep),
                                            stream_field("ep_counts", &ByStreamConfig::ep_counts),
                                            stream_field("pp", &ByStreamConfig::pp),
                                            stream_field("pp_recv", &ByStreamConfig::pp_recv),
                                            stream_field("pp_send", &ByStreamConfig::pp_send),
                                            stream_field("tp", &ByStreamConfig::tp)};
};

template <class Member>
constexpr auto parallelism_field(const char* name, Member member) {
  return Field{name, member, "for this parallelism", {.min = 0, .max = 1e6}};
}

// A number for each parallelism; 0: the file has none.
struct ByParallelismConfig {
  double cp = 0, dp = 0, ep = 0, pp = 0, tp = 0;

  static constexpr auto fields = std::tuple{parallelism_field("cp", &ByParallelismConfig::cp),
                                            parallelism_field("dp", &ByParallelismConfig::dp),
                                            parallelism_field("ep", &ByParallelismConfig::ep),
                                            parallelism_field("pp", &ByParallelismConfig::pp),
                                            parallelism_field("tp", &ByParallelismConfig::tp)};
};

// Returns why the lists do not fit together; empty if they do.
std::string fault_of(const TimesConfig& t) {
  const size_t n = t.seconds.size();
  if (n == 0) return "has no times";
  if (n > kMostPoints) return fmt::format("has {} sizes, more than {}", n, kMostPoints);
  for (const auto& [name, list] : {std::pair{"flops", &t.flops},
                                   {"read", &t.read},
                                   {"written", &t.written},
                                   {"spread", &t.spread}})
    if (list->size() != n)
      return fmt::format("{} has {} numbers, and seconds has {}", name, list->size(), n);
  std::set<std::tuple<double, double, double>> sizes;
  for (size_t i = 0; i < n; ++i)
    if (!sizes.insert({t.flops[i], t.read[i], t.written[i]}).second)
      return fmt::format("has a size twice, the second time as number {}", i + 1);
  return "";
}

std::optional<DType> parse_dtype(const std::string& name) {
  for (int i = 0; i <= int(DType::f8e5m2); ++i)
    if (dtype_name(DType(i)) == name) return DType(i);
  return std::nullopt;
}

bool communicates(const std::string& stream) {
  return std::apply([&](const auto&... field) { return ((field.name == stream) || ...); },
                    ByStreamConfig::fields);
}

std::optional<int64_t> parse_ranks(const std::string& digits) {
  if (digits.empty() || digits.size() > 8 ||
      !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  const int64_t ranks = std::stoll(digits);
  return ranks < 2 ? std::nullopt : std::optional(ranks);
}

class CalibrationReader {
 public:
  CalibrationReader(Diagnostics& diagnostics, Calibration& out)
      : diagnostics_(diagnostics), out_(out) {}

  void read(const Node& root) {
    Node plain = root;  // the fields without the tables
    plain.keys.clear();
    plain.items.clear();
    for (size_t i = 0; i < root.keys.size(); ++i) {
      const std::string& name = root.keys[i].name;
      if (name == "launches") {
        for_entries(root.keys[i], root.items[i], [&](auto&... entry) { times(entry...); });
      } else if (name == "links") {
        for_entries(root.keys[i], root.items[i], [&](auto&... entry) { link(entry..., false); });
      } else if (name == "links_in_step") {
        for_entries(root.keys[i], root.items[i], [&](auto&... entry) { link(entry..., true); });
      } else if (name == "slowdown") {
        numbers<ByStreamConfig>(root.keys[i], root.items[i], out_.slowdowns);
      } else if (name == "stretch") {
        numbers<ByStreamConfig>(root.keys[i], root.items[i], out_.stretches);
      } else if (name == "beside_compute") {
        numbers<ByStreamConfig>(root.keys[i], root.items[i], out_.besides);
      } else if (name == "idle_share") {
        numbers<ByStreamConfig>(root.keys[i], root.items[i], out_.idle_shares);
      } else if (name == "wake_us") {
        numbers<ByParallelismConfig>(root.keys[i], root.items[i], out_.wakes);
      } else if (name == "together") {
        numbers<ByParallelismConfig>(root.keys[i], root.items[i], out_.together);
      } else {
        plain.keys.push_back(root.keys[i]);
        plain.items.push_back(root.items[i]);
      }
    }
    CalibrationConfig c;
    recipe::section::read_rows(plain, recipe::section_rows(c), diagnostics_);
    out_.device = c.kind, out_.machine = c.machine, out_.build = c.build, out_.date = c.date;
    out_.threads = c.threads, out_.ranks = c.ranks;
    out_.gap_s = c.gap_us * kMicrosecond, out_.host_s = c.host_us * kMicrosecond;
    for (auto& [parallelism, wake] : out_.wakes) wake *= kMicrosecond;
  }

 private:
  void error(const SourceLocation& at, const std::string& field, std::string reason) {
    diagnostics_.add_at(recipe::Severity::error, at, field, std::move(reason), kWriteAgain);
  }

  template <class F>
  void for_entries(const Node::Key& table, const Node& node, F entry) {
    if (node.unset()) return;
    if (node.kind != Node::Kind::map)
      return error(table.location, table.name, "expected a name and its values for each entry");
    for (size_t i = 0; i < node.keys.size(); ++i) entry(node.keys[i], node.items[i]);
  }

  // Reads the fields of an entry; returns false if they have mistakes.
  template <class Config>
  bool read_entry(const Node::Key& key, const Node& node, Config& c) {
    if (node.kind != Node::Kind::map) {
      error(key.location, key.name, "expected a mapping");
      return false;
    }
    Diagnostics own;
    recipe::section::read_rows(node, recipe::section_rows(c), own);
    for (const recipe::Diagnostic& d : own.sorted())
      diagnostics_.add_at(d.severity, d.location, key.name + ": " + d.field, d.reason, d.hint);
    return !own.has_errors();
  }

  void times(const Node::Key& key, const Node& node) {
    TimesConfig c;
    if (!read_entry(key, node, c)) return;
    const std::vector<std::string> words = split(key.name, ' ');
    const auto dtype = words.size() == 2 ? parse_dtype(words[1]) : std::nullopt;
    if (!dtype || words[0].empty())
      return error(key.location, key.name,
                   "expected a name such as `attention_fwd bf16`: a launch and the type that it "
                   "reads");
    if (const std::string fault = fault_of(c); !fault.empty())
      return error(key.location, key.name, fault);
    LaunchTimes t{.name = words[0], .dtype = *dtype, .points = {}};
    for (size_t i = 0; i < c.seconds.size(); ++i)
      t.points.push_back({c.flops[i], c.read[i], c.written[i], c.seconds[i], c.spread[i]});
    out_.launches.push_back(std::move(t));
  }

  void link(const Node::Key& key, const Node& node, bool in_step) {
    LinkConfig c;
    if (!read_entry(key, node, c)) return;
    std::vector<std::string> words = split(key.name, ' ');
    std::string stream;
    if (in_step && words.size() == 4) {
      stream = words[0];
      words.erase(words.begin());
    }
    const auto dtype = words.size() == 3 ? parse_dtype(words[1]) : std::nullopt;
    const auto ranks = words.size() == 3 ? parse_ranks(words[2]) : std::nullopt;
    if (!dtype || !ranks || words[0].empty() || communicates(stream) != in_step || c.gbytes_s == 0)
      return error(key.location, key.name,
                   in_step ? "expected a name such as `tp all_reduce fp32 2`, the stream, the "
                             "kind, its type and its ranks, with gbytes_s"
                           : "expected a name such as `all_reduce fp32 2`, the kind, its type and "
                             "its ranks, with gbytes_s");
    out_.links.push_back({.stream = stream,
                          .kind = words[0],
                          .dtype = *dtype,
                          .ranks = *ranks,
                          .alpha_s = c.alpha_us * kMicrosecond,
                          .bytes_per_s = c.gbytes_s * kGigabyte,
                          .spread = c.spread});
  }

  template <class Config>
  void numbers(const Node::Key& key, const Node& node, std::map<std::string, double>& out) {
    Config c;
    if (node.unset() || !read_entry(key, node, c)) return;
    std::apply(
        [&](const auto&... field) { ((out[std::string(field.name)] = c.*field.member), ...); },
        Config::fields);
    std::erase_if(out, [](const auto& s) { return s.second == 0; });
  }

  Diagnostics& diagnostics_;
  Calibration& out_;
};

template <class F>
std::string list(const std::vector<LaunchPoint>& points, F value) {
  std::string text;
  for (const LaunchPoint& p : points)
    text += fmt::format("{}{:.12g}", text.empty() ? "" : ", ", value(p));
  return "[" + text + "]";
}

std::string quoted(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; },
      ' ');
  return "\"" + text + "\"";
}

}  // namespace

LinkTimes fit_link(const std::string& kind, DType dtype, int64_t ranks,
                   const std::vector<LinkSample>& samples) {
  // Minimizes the sum of ((alpha + bytes x - t) / t)^2 over alpha and x.
  double s11 = 0, s1b = 0, sbb = 0, s1 = 0, sb = 0;
  for (const auto& [bytes, t, weight] : samples) {
    MT_CHECK(t > 0 && bytes > 0 && weight > 0, "{} bytes in {} s", bytes, t);
    const double u = 1 / t, v = bytes / t;
    s11 += weight * u * u, s1b += weight * u * v, sbb += weight * v * v;
    s1 += weight * u, sb += weight * v;
  }
  const double determinant = s11 * sbb - s1b * s1b;
  MT_CHECK(determinant > 1e-12 * s11 * sbb, "{} of {} ranks was measured with one size", kind,
           ranks);
  double alpha = (s1 * sbb - sb * s1b) / determinant, x = (s11 * sb - s1b * s1) / determinant;
  if (alpha < 0) alpha = 0, x = sb / sbb;
  if (x <= 0) {
    // Larger messages were not slower. The largest one bounds the rate.
    const auto largest = std::ranges::max_element(samples, {}, &LinkSample::bytes);
    alpha = 0, x = largest->seconds / largest->bytes;
  }
  LinkTimes fit{
      .kind = kind, .dtype = dtype, .ranks = ranks, .alpha_s = alpha, .bytes_per_s = 1 / x};
  for (const auto& [bytes, t, weight] : samples)
    fit.spread = std::max(fit.spread, std::abs(fit.seconds(bytes) / t - 1));
  return fit;
}

const LaunchTimes* Calibration::find(std::string_view name, DType dtype) const {
  const auto found = std::ranges::find_if(
      launches, [&](const LaunchTimes& t) { return t.name == name && t.dtype == dtype; });
  return found == launches.end() ? nullptr : &*found;
}

const LinkTimes* Calibration::find_link(std::string_view stream, std::string_view kind, DType dtype,
                                        int64_t between) const {
  const LinkTimes* best = nullptr;
  const auto distance = [&](const LinkTimes& l) {
    return std::pair{l.dtype != dtype, std::abs(std::log(double(l.ranks) / double(between)))};
  };
  for (const LinkTimes& l : links)
    if (l.stream == stream && l.kind == kind && (!best || distance(l) < distance(*best))) best = &l;
  return best;
}

std::string print_calibration(const Calibration& c) {
  std::string text =
      "# Written by `mtrain calibrate`: medians of alternating rounds of training steps.\n";
  text += fmt::format("kind: {}\nmachine: {}\nbuild: {}\ndate: {}\n", quoted(c.device),
                      quoted(c.machine), quoted(c.build), quoted(c.date));
  text += fmt::format("threads: {}\nranks: {}\ngap_us: {:.6g}\nhost_us: {:.6g}\n", c.threads,
                      c.ranks, c.gap_s / kMicrosecond, c.host_s / kMicrosecond);
  std::map<std::string, double> wakes_us = c.wakes;
  for (auto& [parallelism, wake] : wakes_us) wake /= kMicrosecond;
  using Numbers = const std::map<std::string, double>*;
  for (const auto& [table, numbers] : {std::pair<const char*, Numbers>{"wake_us", &wakes_us},
                                       {"slowdown", &c.slowdowns},
                                       {"stretch", &c.stretches},
                                       {"beside_compute", &c.besides},
                                       {"idle_share", &c.idle_shares},
                                       {"together", &c.together}}) {
    if (!numbers->empty()) text += fmt::format("{}:\n", table);
    for (const auto& [name, number] : *numbers) text += fmt::format("  {}: {:.6g}\n", name, number);
  }
  if (!c.launches.empty()) text += "launches:\n";
  for (const LaunchTimes& t : c.launches) {
    text += fmt::format("  {} {}:\n", t.name, dtype_name(t.dtype));
    text += fmt::format("    flops: {}\n",
                        list(t.points, [](const LaunchPoint& p) { return p.flops; }));
    text +=
        fmt::format("    read: {}\n", list(t.points, [](const LaunchPoint& p) { return p.read; }));
    text += fmt::format("    written: {}\n",
                        list(t.points, [](const LaunchPoint& p) { return p.written; }));
    const auto rounded = [](double x) { return std::stod(fmt::format("{:.6g}", x)); };
    text += fmt::format("    seconds: {}\n",
                        list(t.points, [&](const LaunchPoint& p) { return rounded(p.seconds); }));
    text += fmt::format("    spread: {}\n",
                        list(t.points, [&](const LaunchPoint& p) { return rounded(p.spread); }));
  }
  for (const bool in_step : {false, true}) {
    const char* table = in_step ? "links_in_step:\n" : "links:\n";
    for (const LinkTimes& l : c.links) {
      if (l.stream.empty() == in_step) continue;
      text +=
          fmt::format("{}  {}{}{} {} {}: {{alpha_us: {:.6g}, gbytes_s: {:.6g}, spread: {:.6g}}}\n",
                      table, l.stream, in_step ? " " : "", l.kind, dtype_name(l.dtype), l.ranks,
                      l.alpha_s / kMicrosecond, l.bytes_per_s / kGigabyte, l.spread);
      table = "";
    }
  }
  return text;
}

Calibration read_calibration_text(const std::string& text, const std::string& source,
                                  Diagnostics& diagnostics) {
  Calibration out;
  diagnostics.add_source(source);
  Node root;
  if (!parse_yaml(text, source, diagnostics, root)) return out;
  if (root.kind != Node::Kind::map) {
    diagnostics.add_at(recipe::Severity::error, {source, 0, 0}, "",
                       "is not a calibration: expected keys and values",
                       "write one with `mtrain calibrate`");
    return out;
  }
  // The fields of a calibration are not those of a recipe, which may have the same names.
  Diagnostics own;
  CalibrationReader(own, out).read(root);
  for (const recipe::Diagnostic& d : own.sorted())
    diagnostics.add_at(d.severity, d.location, d.field, d.reason, d.hint);
  if (out.launches.empty() && !own.has_errors())
    diagnostics.add_at(recipe::Severity::error, {source, 0, 0}, "", "has no measured launches",
                       "write it with `mtrain calibrate`");
  return out;
}

Calibration read_calibration(const std::string& path, Diagnostics& diagnostics) {
  try {
    return read_calibration_text(read_file(path), path, diagnostics);
  } catch (const Error& e) {
    diagnostics.add_at(recipe::Severity::error, {path, 0, 0}, "", e.message(),
                       "write a calibration with `mtrain calibrate`");
    return {};
  }
}

}  // namespace mtrain::plan
