#include "data/build/input_check.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

struct Format {
  std::string_view signature, name, hint;  // {0}: the file, {1}: the file as UTF-8
};

using namespace std::string_view_literals;
constexpr std::string_view kPandas =
    "python3 -c \"import pandas; pandas.read_parquet('{0}').to_json('{0}.jsonl', orient='records', "
    "lines=True)\" writes JSON lines; then give --input {0}.jsonl";
constexpr std::string_view kArrow =
    "python3 -c \"import datasets; datasets.Dataset.from_file('{0}').to_json('{0}.jsonl')\" writes "
    "JSON lines; then give --input {0}.jsonl";
constexpr Format kFormats[] = {
    {"PAR1"sv, "a Parquet file", kPandas},
    {"ARROW1"sv, "an Arrow file", kArrow},
    {"\xFF\xFF\xFF\xFF"sv, "an Arrow stream", kArrow},
    {"\x1F\x8B"sv, "compressed by gzip", "gunzip --keep {0}"},
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "zstd --decompress {0}"},
    {"\xFD\x37zXZ\0"sv, "compressed by xz", "unxz --keep {0}"},
    {"BZh"sv, "compressed by bzip2", "bunzip2 --keep {0}"},
    {"\x04\x22\x4D\x18"sv, "compressed by lz4", "lz4 -d {0}"},
    {"PK\x03\x04"sv, "a zip archive", "unzip {0}, and give the files in it"},
    {"%PDF"sv, "a PDF file", "pdftotext {0} writes its text"},
    {"MMIDIDX"sv, "an index of token files",
     "token files are data already: give their prefix to dataset.train"},
    {"\xFF\xFE\0\0"sv, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 {0} > {1}"},
    {"\xFF\xFE"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > {1}"},
    {"\xFE\xFF"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > {1}"}};

// Returns a name for the file as UTF-8: corpus.utf8.txt.
std::string converted(const std::filesystem::path& file) {
  std::filesystem::path other = file;
  return other.replace_extension(".utf8" + file.extension().string()).string();
}

// Returns the first byte that is not part of a text, or text.size().
size_t first_invalid(std::string_view text) {
  const size_t end = utf8_run_end(text, 0, true);
  return std::min(text.substr(0, end).find('\0'), end);
}

}  // namespace

void refuse_other_format(const std::filesystem::path& file, std::string_view first_bytes) {
  for (const Format& format : kFormats)
    if (first_bytes.starts_with(format.signature))
      throw UserError(fmt::format("{} is {}, not text", file.string(), format.name),
                      fmt::format(fmt::runtime(format.hint), file.string(), converted(file)));
}

void refuse_invalid_text(const Chunk& chunk) {
  const std::string_view text = chunk.text;
  const size_t at = first_invalid(text);
  if (at == text.size()) return;
  const int64_t line =
      chunk.first_line + std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n');
  const std::string file = chunk.file.string();
  const std::string place = fmt::format("{}:{}: byte {} of the file, 0x{:02x},", file, line,
                                        chunk.first_byte + int64_t(at) + 1, uint8_t(text[at]));
  if (text[at] == '\0')
    throw UserError(
        fmt::format("{} is NUL, which no text contains", place),
        "give a text file; UTF-16 becomes text by: " +
            fmt::format("iconv -f UTF-16LE -t UTF-8 {0} > {1}", file, converted(chunk.file)));
  throw UserError(
      fmt::format("{} is not UTF-8", place),
      fmt::format("if it is Latin-1, `iconv -f ISO-8859-1 -t UTF-8 {0} > {1}` converts it; "
                  "then give --input {1}",
                  file, converted(chunk.file)));
}

}  // namespace mtrain::data
