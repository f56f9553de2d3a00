#include "data/jinja/number_filters.h"

#include <charconv>
#include <cmath>

#include "data/jinja/text.h"

namespace mtrain::data::jinja {
namespace {

// Returns the text as Python's int() and float() read it, without spaces and underscores.
std::string number_text(const std::string& text) {
  std::string out;
  for (const std::string_view c : Characters(strip(text, nullptr, true, true)))
    if (is_decimal(c))
      out += char('0' + digit_value(c));
    else
      out += c;
  for (size_t i = 1; i + 1 < out.size(); ++i)
    if (out[i] == '_' && isalnum(uint8_t(out[i - 1])) && isalnum(uint8_t(out[i + 1])))
      out.erase(i, 1);
  return out;
}

std::optional<double> read_real(const Value& value) {
  if (value.is_number()) return value.real();
  if (!value.is(Kind::text)) return std::nullopt;
  std::string text = lower(number_text(value.text()));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  if (text.starts_with('-') || text.starts_with('+')) return std::nullopt;
  double out = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), out);
  const bool out_of_range = end.ec == std::errc::result_out_of_range;
  if (text.empty() || (end.ec != std::errc() && !out_of_range) ||
      end.ptr != text.data() + text.size())
    return std::nullopt;
  if (out_of_range) out = text.find("e-") != std::string::npos ? 0 : HUGE_VAL;
  return negative ? -out : out;
}

std::optional<int64_t> read_integer(const std::string& whole, int64_t base) {
  std::string text = number_text(whole);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  const std::string prefix = lower(text.substr(0, 2));
  for (const auto& [name, value] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}})
    if (prefix == name && (base == value || base == 0)) text.erase(0, 2), base = value;
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || text.empty() || !isalnum(uint8_t(text[0]))) return std::nullopt;
  int64_t out = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), out, int(base));
  if (end.ptr != text.data() + text.size()) return std::nullopt;
  if (end.ec == std::errc::result_out_of_range) fail("an integer does not fit into 64 bits");
  return end.ec == std::errc() ? std::optional(negative ? -out : out) : std::nullopt;
}

}  // namespace

Value filter_int(Machine&, const Value& self, Arguments& args) {
  const Parameters p("int", args, {"default", "base"});
  if (self.is_integral()) return self.integer();
  if (self.is(Kind::undefined)) fail("{}", self.why_undefined());
  if (self.is(Kind::text))
    if (const auto n = read_integer(self.text(), p.integer(1, 10))) return *n;
  if (const auto real = read_real(self); real && std::isfinite(*real)) {
    if (std::abs(*real) > 9e18) fail("an integer does not fit into 64 bits");
    return int64_t(*real);
  }
  return p.has(0) ? p[0] : Value(0);
}

Value filter_float(Machine&, const Value& self, Arguments& args) {
  const Parameters p("float", args, {"default"});
  if (self.is(Kind::undefined)) fail("{}", self.why_undefined());
  if (const auto real = read_real(self)) return *real;
  return p.has(0) ? p[0] : Value(0.0);
}

Value filter_round(Machine&, const Value& self, Arguments& args) {
  const Parameters p("round", args, {"precision", "method"});
  const int64_t precision = p.integer(0, 0);
  const std::string how = p.has(1) ? p.text(1) : "common";
  if (how != "common" && how != "ceil" && how != "floor")
    fail("round knows the methods common, ceil and floor, not {}", how);
  if (!self.is_number()) fail("round needs a number, not a value of type {}", type_name(self));
  if (std::abs(precision) > 300) fail("round to {} digits", precision);
  if (how == "common") {
    if (self.is_integral()) {  // Python's round() of an integer is one
      if (precision >= 0) return self.integer();
      if (precision < -18) return 0;
      int64_t unit = 1;
      for (int64_t i = precision; i < 0; ++i) unit *= 10;
      const int64_t n = self.integer(), low = n / unit * unit - (n % unit < 0 ? unit : 0),
                    rest = n - low;
      const bool up = 2 * rest > unit || (2 * rest == unit && low / unit % 2 != 0);
      return low + (up ? unit : 0);
    }
    if (!std::isfinite(self.real())) return self;
    if (precision >= 0) {  // exact, with ties to even, as printf rounds
      double out = 0;
      const std::string text = fmt::format("{:.{}f}", self.real(), precision);
      std::from_chars(text.data(), text.data() + text.size(), out);
      return out;
    }
  }
  const double unit = std::pow(10.0, double(precision)), scaled = self.real() * unit;
  return (how == "ceil"    ? std::ceil(scaled)
          : how == "floor" ? std::floor(scaled)
                           : std::nearbyint(scaled)) /
         unit;
}

Value filter_abs(Machine&, const Value& self, Arguments& args) {
  const Parameters none("abs", args, {});
  if (self.is(Kind::undefined)) fail("{}", self.why_undefined());
  if (!self.is_number()) fail("abs needs a number, not a value of type {}", type_name(self));
  return self.real() < 0 ? negative(self) : self.is(Kind::boolean) ? Value(self.integer()) : self;
}

}  // namespace mtrain::data::jinja
