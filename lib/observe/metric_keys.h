// Every key that a record of metrics.jsonl may have. docs/reference/metrics.md is generated from
// it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mtrain::observe {

struct MetricKey {
  enum class Record : uint8_t { any, step, evaluation };
  // `<kind>` stands for the name of a stream's kind: comm.<kind>.bytes; `<depth>` for a number.
  std::string_view name;
  Record record;  // the records that have it
  std::string_view unit, meaning;
  std::string_view when = "";  // the condition under which these records have it; empty: all do
};

std::span<const MetricKey> metric_keys();
const MetricKey* find_metric_key(std::string_view name);  // null if there is no such key

// Returns the page of all keys.
std::string metrics_markdown();

}  // namespace mtrain::observe
