// Reads Parquet by Apache Arrow.
#include "data/parquet/parquet_rows.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mtrain::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void check_read(const arrow::Status& status, const fs::path& file) {
  if (!status.ok())
    throw UserError(fmt::format("cannot read {}: {}", file.string(), status.message()),
                    "check that the file is complete");
}

template <class T>
T result_of(arrow::Result<T> result, const fs::path& file) {
  check_read(result.status(), file);
  return std::move(result).ValueUnsafe();
}

template <class Array>
Json number_at(const arrow::Array& values, int64_t i) {
  return static_cast<const Array&>(values).Value(i);
}

template <class Array>
Json text_at(const arrow::Array& values, int64_t i) {
  return std::string(static_cast<const Array&>(values).GetView(i));
}

Json value_at(const arrow::Array& values, int64_t i);

template <class Array>
Json list_at(const arrow::Array& values, int64_t i) {
  const auto& lists = static_cast<const Array&>(values);
  Json out = Json::array();
  const int64_t first = lists.value_offset(i);
  for (int64_t k = 0; k < lists.value_length(i); ++k)
    out.push_back(value_at(*lists.values(), first + k));
  return out;
}

Json struct_at(const arrow::Array& values, int64_t i) {
  const auto& fields = static_cast<const arrow::StructArray&>(values);
  Json out = Json::object();
  for (int k = 0; k < fields.num_fields(); ++k)
    out[fields.struct_type()->field(k)->name()] = value_at(*fields.field(k), i);
  return out;
}

// Returns the value as JSON. Dates and other types without a form in JSON become texts.
Json value_at(const arrow::Array& values, int64_t i) {
  if (values.IsNull(i)) return nullptr;
  switch (values.type_id()) {
    case arrow::Type::BOOL: return number_at<arrow::BooleanArray>(values, i);
    case arrow::Type::INT8: return number_at<arrow::Int8Array>(values, i);
    case arrow::Type::INT16: return number_at<arrow::Int16Array>(values, i);
    case arrow::Type::INT32: return number_at<arrow::Int32Array>(values, i);
    case arrow::Type::INT64: return number_at<arrow::Int64Array>(values, i);
    case arrow::Type::UINT8: return number_at<arrow::UInt8Array>(values, i);
    case arrow::Type::UINT16: return number_at<arrow::UInt16Array>(values, i);
    case arrow::Type::UINT32: return number_at<arrow::UInt32Array>(values, i);
    case arrow::Type::UINT64: return number_at<arrow::UInt64Array>(values, i);
    case arrow::Type::FLOAT: return number_at<arrow::FloatArray>(values, i);
    case arrow::Type::DOUBLE: return number_at<arrow::DoubleArray>(values, i);
    case arrow::Type::STRING: return text_at<arrow::StringArray>(values, i);
    case arrow::Type::LARGE_STRING: return text_at<arrow::LargeStringArray>(values, i);
    case arrow::Type::STRING_VIEW: return text_at<arrow::StringViewArray>(values, i);
    case arrow::Type::LIST:
    case arrow::Type::MAP: return list_at<arrow::ListArray>(values, i);
    case arrow::Type::LARGE_LIST: return list_at<arrow::LargeListArray>(values, i);
    case arrow::Type::FIXED_SIZE_LIST: return list_at<arrow::FixedSizeListArray>(values, i);
    case arrow::Type::STRUCT: return struct_at(values, i);
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(values);
      return value_at(*words.dictionary(), words.GetValueIndex(i));
    }
    default: {
      const auto scalar = values.GetScalar(i);
      return scalar.ok() ? Json((*scalar)->ToString()) : Json(nullptr);
    }
  }
}

}  // namespace

bool reads_parquet() { return true; }

void parquet_to_json_lines(const fs::path& parquet, const fs::path& lines) {
  auto input = result_of(arrow::io::ReadableFile::Open(parquet.string()), parquet);
  const auto reader =
      result_of(parquet::arrow::OpenFile(std::move(input), arrow::default_memory_pool()), parquet);
  const auto batches = result_of(reader->GetRecordBatchReader(), parquet);
  std::ofstream out(lines, std::ios::binary);
  std::shared_ptr<arrow::RecordBatch> batch;
  int64_t number = 0;
  while (true) {
    check_read(batches->ReadNext(&batch), parquet);
    if (!batch) break;
    for (int64_t i = 0; i < batch->num_rows(); ++i) {
      Json row = Json::object();
      for (int k = 0; k < batch->num_columns(); ++k)
        row[batch->column_name(k)] = value_at(*batch->column(k), i);
      ++number;
      try {
        out << row.dump() << '\n';
      } catch (const nlohmann::json::exception&) {
        throw UserError(
            fmt::format("{}: row {} has a text that is not UTF-8", parquet.string(), number));
      }
    }
  }
  if (!out.flush()) throw RunError("cannot write " + lines.string());
}

}  // namespace mtrain::data
