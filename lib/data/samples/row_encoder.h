// Makes tokens and labels of a row of a SampleSource.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "data/build/build.h"
#include "data/samples/column_text.h"
#include "data/samples/sample_source.h"

namespace mtrain::data {

// Returns the template that the source names; null if it has none. `auto` on a tokenizer without a
// template means none. Throws UserError if it cannot be read.
std::shared_ptr<const ChatTemplate> chat_template_of(const SampleSource& source);

class RowEncoder final : public LineEncoder {
 public:
  // `chat` is chat_template_of(source).
  RowEncoder(const SampleSource& source, const std::vector<std::filesystem::path>& files,
             const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat);

  bool wants(const std::filesystem::path& file, int64_t line) const override;
  bool encode(std::string_view line, LineFault& fault, std::vector<int32_t>& tokens,
              std::vector<uint8_t>& labels) const override;
  bool masked() const override { return source_.format != SampleSource::Format::text; }

 private:
  bool encode_texts(const nlohmann::ordered_json& row, LineFault& fault,
                    std::vector<int32_t>& tokens, std::vector<uint8_t>& labels) const;
  void choose_rows(const std::vector<std::filesystem::path>& files);

  const SampleSource& source_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_;  // null: no template
  std::optional<ColumnText> prompt_, completion_;
  std::vector<int32_t> begin_;  // the tokens before a text
  // The lines of each file that are wanted; empty: all.
  std::map<std::filesystem::path, std::vector<bool>> wanted_;
};

}  // namespace mtrain::data
