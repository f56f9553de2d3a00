// Derives what a launch reads and writes from the argument struct of its kernel. A ConstSpan is
// read; a Span is written, unless its `use` says otherwise. An operation therefore does not list
// its tensors a second time, and a new member of a struct is included at once.
#pragma once
#include <cstddef>
#include <type_traits>
#include <vector>

#include "base/span.h"
#include "device/stream.h"

namespace mtrain::ops {

namespace spans_detail {

// Converts to the type of any member. It is used only where nothing is evaluated.
struct AnyMember {
  template <class T>
  operator T() const;
};

// Returns how many members the aggregate T has: as many values as can initialize it.
template <class T, class... Members>
consteval size_t member_count() {
  if constexpr (requires { T{Members{}..., AnyMember{}}; })
    return member_count<T, Members..., AnyMember>();
  else
    return sizeof...(Members);
}

template <class T>
constexpr bool is_vector = false;
template <class T>
constexpr bool is_vector<std::vector<T>> = true;

// Calls f(member) for every member of an aggregate, in order.
#define MT_MEMBERS(n, ...)                                               \
  if constexpr (count == n) {                                            \
    const auto& [__VA_ARGS__] = fields;                                  \
    const auto all = [&](const auto&... members) { (f(members), ...); }; \
    all(__VA_ARGS__);                                                    \
  }
template <class T, class F>
void for_each_member(const T& fields, const F& f) {
  constexpr size_t count = member_count<T>();
  static_assert(count >= 1 && count <= 24, "add rows for more members");
  MT_MEMBERS(1, a)
  MT_MEMBERS(2, a, b)
  MT_MEMBERS(3, a, b, c)
  MT_MEMBERS(4, a, b, c, d)
  MT_MEMBERS(5, a, b, c, d, e)
  MT_MEMBERS(6, a, b, c, d, e, g)
  MT_MEMBERS(7, a, b, c, d, e, g, h)
  MT_MEMBERS(8, a, b, c, d, e, g, h, i)
  MT_MEMBERS(9, a, b, c, d, e, g, h, i, j)
  MT_MEMBERS(10, a, b, c, d, e, g, h, i, j, k)
  MT_MEMBERS(11, a, b, c, d, e, g, h, i, j, k, l)
  MT_MEMBERS(12, a, b, c, d, e, g, h, i, j, k, l, m)
  MT_MEMBERS(13, a, b, c, d, e, g, h, i, j, k, l, m, n)
  MT_MEMBERS(14, a, b, c, d, e, g, h, i, j, k, l, m, n, o)
  MT_MEMBERS(15, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p)
  MT_MEMBERS(16, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q)
  MT_MEMBERS(17, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r)
  MT_MEMBERS(18, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s)
  MT_MEMBERS(19, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, t)
  MT_MEMBERS(20, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u)
  MT_MEMBERS(21, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v)
  MT_MEMBERS(22, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w)
  MT_MEMBERS(23, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x)
  MT_MEMBERS(24, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y)
}
#undef MT_MEMBERS

}  // namespace spans_detail

// Calls f(span) for every Span and ConstSpan of an argument struct and of the structs in it, in
// order. Another type that could hold spans does not compile.
template <class T, class F>
void for_each_span(const T& value, const F& f) {
  if constexpr (std::is_same_v<T, Span> || std::is_same_v<T, ConstSpan>) {
    f(value);
  } else if constexpr (spans_detail::is_vector<T>) {
    for (const auto& element : value) for_each_span(element, f);
  } else if constexpr (std::is_class_v<T>) {
    static_assert(std::is_aggregate_v<T>, "the members of this type are unknown");
    spans_detail::for_each_member(value, [&](const auto& member) { for_each_span(member, f); });
  } else {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>, "this type may hide a span");
  }
}

// Adds the access of a launch to one of its lists. Absent spans, and ranges within an earlier one
// of the list, add nothing. Throws BugError if no allocation owns the memory.
void add_access(std::vector<device::Access>& list, const char* launch, const ConstSpan& span,
                bool partial);

// Describes the launch of a kernel with these arguments. `name` is a string literal. Lookup by
// argument finds flops_of() (kernels/flops.h), which only some kernels have.
template <class Args>
device::LaunchInfo launch_of(const char* name, const Args& args) {
  device::LaunchInfo info{.name = name};
  info.reads.reserve(8), info.writes.reserve(4);  // enough for most kernels
  for_each_span(args, [&]<class S>(const S& span) {
    if constexpr (std::is_same_v<S, Span>) {
      if (span.use != SpanUse::read)
        return add_access(info.writes, name, span, span.use == SpanUse::write_part);
    }
    add_access(info.reads, name, span, false);
  });
  if constexpr (requires { flops_of(args); }) info.flops = flops_of(args);
  return info;
}

}  // namespace mtrain::ops
