#include "data/build/input_check.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/strings.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

namespace fs = std::filesystem;

bool file_exists(const fs::path& file) {
  std::error_code error;
  return fs::exists(file, error);
}

// Returns the file's name with a word before its extension: corpus.utf8.txt.
fs::path with_word(const fs::path& file, const char* word) {
  fs::path other = file;
  return other.replace_extension(word + file.extension().string());
}

// These name the output files of the commands. No output is the input itself: the shell would empty
// it.
fs::path as_utf8(const fs::path& file) { return with_word(file, ".utf8"); }
fs::path as_json_lines(const fs::path& file) { return file.string() + ".jsonl"; }
fs::path as_text(const fs::path& file) {
  fs::path other = file;
  other.replace_extension(".txt");
  return file_exists(other) ? with_word(other, ".text") : other;
}
fs::path unpacked(const fs::path& file) {
  const std::string extension = to_lower(file.extension().string());
  const bool packed = extension == ".gz" || extension == ".zst" || extension == ".xz" ||
                      extension == ".bz2" || extension == ".lz4";
  fs::path other = file;
  if (packed) other.replace_extension();
  return file_exists(other) ? with_word(other, ".unpacked") : other;
}

// Returns the path as one word of a shell.
std::string quoted(const fs::path& path) {
  const std::string text = (path.string().starts_with('-') ? "./" : "") + path.string();
  const bool plain = std::ranges::all_of(text, [](char c) {
    return std::isalnum(uint8_t(c)) || std::string_view("._-+,:@%/").find(c) != std::string::npos;
  });
  if (plain) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// A signature of only letters may begin a text, too. Therefore the bytes after it count.
bool begins_binary(std::string_view rest) {
  return !rest.empty() && uint8_t(rest[0]) < 0x20 && !std::isspace(uint8_t(rest[0]));
}
bool begins_bzip2(std::string_view rest) {
  return rest.size() > 1 && rest[0] >= '1' && rest[0] <= '9' && rest.substr(1).starts_with("1AY&");
}
bool begins_digit(std::string_view rest) { return !rest.empty() && std::isdigit(uint8_t(rest[0])); }

struct Format {
  std::string_view signature;
  bool (*fits)(std::string_view rest);  // whether the bytes after it fit the format; null: any do
  std::string_view name;
  fs::path (*output)(const fs::path& file);  // of the command; null: `hint` is not a command
  std::string_view hint;                     // {0}: the file, {1}: its output
};

using namespace std::string_view_literals;
constexpr std::string_view kParquet =
    "python3 -c \"import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], "
    "orient='records', lines=True)\" {0} {1}";
constexpr std::string_view kFeather =
    "python3 -c \"import pandas, sys; pandas.read_feather(sys.argv[1]).to_json(sys.argv[2], "
    "orient='records', lines=True)\" {0} {1}";
constexpr std::string_view kArrow =
    "python3 -c \"import datasets, sys; "
    "datasets.Dataset.from_file(sys.argv[1]).to_json(sys.argv[2])\" {0} {1}";
constexpr Format kFormats[] = {
    {"PAR1"sv, begins_binary, "a Parquet file, not text", as_json_lines, kParquet},
    {"ARROW1\0\0"sv, nullptr, "an Arrow file, not text", as_json_lines, kFeather},
    {"\xFF\xFF\xFF\xFF"sv, nullptr, "an Arrow stream, not text", as_json_lines, kArrow},
    {"\x1F\x8B"sv, nullptr, "compressed by gzip, not text", unpacked, "gunzip < {0} > {1}"},
    {"\x28\xB5\x2F\xFD"sv, nullptr, "compressed by zstd, not text", unpacked,
     "zstd -dc < {0} > {1}"},
    {"\xFD\x37zXZ\0"sv, nullptr, "compressed by xz, not text", unpacked, "unxz < {0} > {1}"},
    {"BZh"sv, begins_bzip2, "compressed by bzip2, not text", unpacked, "bunzip2 < {0} > {1}"},
    {"\x04\x22\x4D\x18"sv, nullptr, "compressed by lz4, not text", unpacked, "lz4 -dc < {0} > {1}"},
    {"PK\x03\x04"sv, nullptr, "a zip archive, not text", nullptr,
     "unzip {0}, and give the files in it"},
    {"%PDF-"sv, begins_digit, "a PDF file, not text", as_text, "pdftotext {0} {1}"},
    {"MMIDIDX\0\0"sv, nullptr, "an index of token files, not text", nullptr,
     "token files are data already: give their prefix to dataset.train"},
    {"\xFF\xFE\0\0"sv, nullptr, "UTF-32 text, not UTF-8", as_utf8,
     "iconv -f UTF-32 -t UTF-8 {0} > {1}"},
    {"\xFF\xFE"sv, nullptr, "UTF-16 text, not UTF-8", as_utf8,
     "iconv -f UTF-16 -t UTF-8 {0} > {1}"},
    {"\xFE\xFF"sv, nullptr, "UTF-16 text, not UTF-8", as_utf8,
     "iconv -f UTF-16 -t UTF-8 {0} > {1}"}};

std::string hint_for(const Format& format, const fs::path& file) {
  if (!format.output) return fmt::format(fmt::runtime(format.hint), quoted(file));
  const std::string output = quoted(format.output(file));
  return fmt::format("`{}` converts it; then give --input {}",
                     fmt::format(fmt::runtime(format.hint), quoted(file), output), output);
}

// Returns the first byte that is not part of a text, or text.size().
size_t first_invalid(std::string_view text) {
  const size_t end = utf8_run_end(text, 0, true);
  return std::min(text.substr(0, end).find('\0'), end);
}

}  // namespace

void refuse_other_format(const fs::path& file, std::string_view first_bytes) {
  for (const Format& format : kFormats) {
    if (!first_bytes.starts_with(format.signature)) continue;
    if (format.fits && !format.fits(first_bytes.substr(format.signature.size()))) continue;
    throw UserError(fmt::format("{} is {}", file.string(), format.name), hint_for(format, file));
  }
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
  const std::string input = quoted(chunk.file), output = quoted(as_utf8(chunk.file));
  if (text[at] == '\0')
    throw UserError(
        fmt::format("{} is NUL, which no text contains", place),
        fmt::format("if it is UTF-16, `iconv -f UTF-16LE -t UTF-8 {0} > {1}` converts it; then "
                    "give --input {1}",
                    input, output));
  throw UserError(
      fmt::format("{} is not UTF-8", place),
      fmt::format("if it is Latin-1, `iconv -f ISO-8859-1 -t UTF-8 {0} > {1}` converts it; "
                  "then give --input {1}",
                  input, output));
}

}  // namespace mtrain::data
