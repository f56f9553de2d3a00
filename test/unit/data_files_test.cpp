#include <sys/resource.h>
#include <unistd.h>
#include <cstring>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "data/build/build.h"
#include "data/dataset/indexed_dataset.h"
#include "test/support/temporary_folder.h"

namespace data_files_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;
using Documents = std::vector<std::vector<int32_t>>;

namespace {

const std::string kGolden = std::string(MTRAIN_SOURCE_DIR) + "/test/golden/tokenizer/";

struct Folder : TemporaryFolder {
  fs::path put(const std::string& name, std::string_view text) const {
    write_file_atomic(path / name, text);
    return path / name;
  }
  int entries() const { return int(std::distance(fs::directory_iterator(path), {})); }
};

// Emulates a full disk: while it lives, no file of this process can grow beyond `bytes`.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, old_handler_);
  }
  SmallFiles(const SmallFiles&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit before_{};
};

void write(const fs::path& prefix, const Documents& documents, TokenType type) {
  IndexedDatasetWriter writer(prefix, type);
  for (const auto& document : documents) {
    writer.add_tokens(document);
    writer.end_document();
  }
  writer.finish();
}

Documents read(const fs::path& prefix) {
  const IndexedDataset data(prefix);
  Documents documents;
  for (int64_t d = 0; d < data.index().documents(); ++d) {
    const int64_t begin = data.index().document_begin(d), end = data.index().document_begin(d + 1);
    documents.emplace_back(size_t(end - begin));
    data.read(begin, documents.back());
  }
  return documents;
}

std::vector<std::string> texts(const fs::path& prefix, const Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (const auto& document : read(prefix)) out.push_back(tokenizer.decode(document));
  return out;
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

template <class T>
std::string patched(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

std::string words(std::mt19937& rng, int n) {
  static const char* const list[] = {"the",  "ship", "sailed", "in 1984", "naïve",
                                     "世界", "\n",   ".\n",    "  ",      "it's"};
  std::string text;
  for (int i = 0; i < n; ++i) text += std::string(list[rng() % 10]) + (rng() % 3 ? " " : "");
  return text;
}

}  // namespace

TEST_CASE("token files: a written set reads back") {
  const Folder folder;
  const TokenType type = GENERATE(TokenType::u16, TokenType::i32);
  const int32_t largest = type == TokenType::u16 ? 65535 : 2147483647;
  const Documents documents = {{1, 2, 3}, {largest}, {0, 0}, {7, 8, 9, 10}};
  {
    IndexedDatasetWriter writer(folder / "sub/data", type);
    writer.end_document();  // the document has no token and is dropped
    for (const auto& document : documents) {
      for (int32_t token : document) writer.add_tokens({&token, 1});
      writer.end_document();
      writer.end_document();
    }
    REQUIRE(writer.documents() == 4);
    REQUIRE(writer.tokens() == 10);
    REQUIRE(!fs::exists(folder / "sub/data.idx"));
    writer.finish();
  }
  REQUIRE(read(folder / "sub/data") == documents);
  REQUIRE(std::distance(fs::directory_iterator(folder / "sub"), {}) == 3);

  const IndexedDataset data(folder / "sub/data");
  REQUIRE(data.index().type() == type);
  std::vector<int32_t> across(4);
  data.read(2, across);
  REQUIRE(across == std::vector<int32_t>{3, largest, 0, 0});
  const int64_t expected[] = {0, 0, 0, 1, 2, 2, 3, 3, 3, 3};
  for (int64_t t = 0; t < 10; ++t) REQUIRE(data.index().document_of(t) == expected[t]);
  REQUIRE_THROWS_AS(data.read(7, across), BugError);
}

TEST_CASE("token files have Megatron's layout") {
  const Folder folder;
  write(folder / "d", {{1, 2, 3}, {4}}, TokenType::u16);
  REQUIRE(read_file(folder / "d.bin") == std::string("\1\0\2\0\3\0\4\0", 8));
  std::string idx(
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"
      "\x08",
      18);
  const auto u64 = [&](uint64_t v) { idx.append(reinterpret_cast<const char*>(&v), 8); };
  u64(2), u64(3);                     // sequences, document entries
  idx.append("\3\0\0\0\1\0\0\0", 8);  // lengths
  u64(0), u64(6);                     // pointers
  u64(0), u64(1), u64(2);             // documents
  REQUIRE(read_file(folder / "d.idx") == idx);

  SECTION("every integer type is read") {
    const struct {
      int code;
      std::string bin;
    } cases[] = {
        {1, "\1\2\3\4"},
        {2, "\1\2\3\4"},
        {3, std::string("\1\0\2\0\3\0\4\0", 8)},
        {4, std::string("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0", 16)},
        {5, std::string("\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 32)}};
    for (const auto& c : cases) {
      const uint64_t width = c.bin.size() / 4;
      folder.put("e.bin", c.bin);
      folder.put("e.idx", patched(patched(idx, 17, uint8_t(c.code)), 50, 3 * width));
      REQUIRE(read(folder / "e") == Documents{{1, 2, 3}, {4}});
    }
  }
}

TEST_CASE("damaged token files are refused with file, byte and reason") {
  const Folder folder;
  write(folder / "d", {{1, 2, 3}, {4}, {5, 6}}, TokenType::u16);
  const std::string idx = read_file(folder / "d.idx"), bin = read_file(folder / "d.bin");
  const auto says = [&](const std::string& new_idx, const std::string& new_bin, const char* what) {
    folder.put("d.idx", new_idx);
    folder.put("d.bin", new_bin);
    INFO(what);
    REQUIRE_THROWS_WITH(IndexedDataset(folder / "d"),
                        Contains(what) && Contains((folder / "d.").string()));
    REQUIRE_THROWS_AS(IndexedDataset(folder / "d"), UserError);
  };
  // Header: 9 magic, 8 version, 1 type, 8 + 8 counts = 34 bytes; lengths at 34, pointers at 46,
  // documents at 70.
  for (size_t n = 0; n < 34; ++n) says(idx.substr(0, n), bin, "truncated");
  for (size_t n = 34; n < idx.size(); ++n) says(idx.substr(0, n), bin, "truncated or damaged");
  says(idx + "x", bin, "truncated or damaged");
  says(patched(idx, 0, 'X'), bin, "MMIDIDX");
  says(patched(idx, 9, uint64_t{2}), bin, "version 2 (at byte 9)");
  says(patched(idx, 17, uint8_t{7}), bin, "type code 7 (at byte 17)");
  says(patched(idx, 17, uint8_t{99}), bin, "type code 99");
  for (uint64_t wild :
       {uint64_t{5}, uint64_t{2}, ~uint64_t{0}, uint64_t{1} << 61, uint64_t{1} << 63}) {
    says(patched(idx, 18, wild), bin, "truncated or damaged");
    says(patched(idx, 26, wild), bin, "truncated or damaged");
  }
  says(patched(idx, 38, int32_t{-1}), bin, "length -1 (at byte 38)");
  says(patched(idx, 38, int32_t{2147483647}), bin, "sequence 1 of 3 ends at byte");
  says(patched(idx, 54, int64_t{7}), bin, "starts at byte 7 of the .bin (stored at byte 54)");
  says(patched(idx, 46, int64_t{-2}), bin, "starts at byte -2");
  says(patched(idx, 70, int64_t{1}), bin, "do not run from 0");
  says(patched(idx, 94, int64_t{2}), bin, "do not run from 0 to the 3 sequences");
  says(patched(idx, 78, int64_t{5}), bin, "document entry 1 is 5 (at byte 78)");
  says(patched(idx, 86, int64_t{0}), bin, "document entry 2 is 0");
  for (size_t n = 0; n < bin.size(); ++n) says(idx, bin.substr(0, n), "but the .bin has");
  says(idx, bin + "x", "but the .bin has 13");
  fs::remove(folder / "d.bin");
  REQUIRE_THROWS_WITH(IndexedDataset(folder / "d"), Contains("d.bin"));
  REQUIRE_THROWS_AS(IndexedDataset(folder / "none"), UserError);
}

TEST_CASE("a writer leaves whole files or none, and replaces older ones") {
  const Folder folder;
  write(folder / "d", {{1}}, TokenType::i32);
  {
    IndexedDatasetWriter writer(folder / "d", TokenType::i32);
    const int32_t token = 2;
    writer.add_tokens({&token, 1});
  }
  REQUIRE(read(folder / "d") == Documents{{1}});
  REQUIRE(folder.entries() == 3);
  write(folder / "d", {{2, 3}}, TokenType::u16);
  REQUIRE(read(folder / "d") == Documents{{2, 3}});
  IndexedDatasetWriter writer(folder / "e", TokenType::u16);
  const int32_t wide = 65536;
  REQUIRE_THROWS_AS(writer.add_tokens({&wide, 1}), BugError);
}

TEST_CASE("a disk that fills up is reported, and the older files stay") {
  const Folder folder;
  write(folder / "d", {{1, 2}}, TokenType::u16);
  // A limit on the size of files emulates the disk. With 200 KB the tokens fail early, and the
  // index at its end.
  const auto fill = [&](int documents, int tokens) {
    IndexedDatasetWriter writer(folder / "d", TokenType::u16);
    const std::vector<int32_t> document(static_cast<size_t>(tokens), 3);
    for (int i = 0; i < documents; ++i) {
      writer.add_tokens(document);
      writer.end_document();
    }
    writer.finish();
  };
  std::string said[3];
  int caught = 0;
  {
    const SmallFiles limit(200'000);
    // The last one's tokens are still buffered when all of them have been added.
    for (const auto& [documents, tokens] : {std::pair{1, 1'000'000}, {20'000, 1}, {1, 101'000}})
      try {
        fill(documents, tokens);
      } catch (const RunError& error) {
        said[caught++] = error.what();
      }
  }
  REQUIRE(caught == 3);
  REQUIRE_THAT(said[2], Contains("d.bin"));
  REQUIRE_THAT(said[0], Contains("d.bin"));
  REQUIRE_THAT(said[1], Contains("d.idx"));
  REQUIRE(read(folder / "d") == Documents{{1, 2}});
  REQUIRE(folder.entries() == 3);
}

TEST_CASE("the writer's memory does not grow with the number of documents") {
  const Folder folder;
  IndexedDatasetWriter writer(folder / "d", TokenType::u16);
  const int32_t document[] = {1, 2};
  const auto add = [&](int n) {
    for (int i = 0; i < n; ++i) {
      writer.add_tokens(document);
      writer.end_document();
    }
  };
  add(100'000);  // buffers and the sanitizers' shadow of them exist now
  const int64_t before = resident_bytes();
  add(2'000'000);
  writer.finish();
  // The index of these documents alone is 40 MB.
  REQUIRE(resident_bytes() - before < (8 << 20));
  REQUIRE(IndexedDataset(folder / "d").index().documents() == 2'100'000);
}

TEST_CASE("build: plain text divides into documents") {
  const Folder folder;
  const auto tokenizer = make_byte_tokenizer();
  BuildOptions options{.output = folder / "out", .threads = 1};
  using Texts = std::vector<std::string>;
  // Every chunk size must give the same documents; small ones divide the text at every place.
  options.chunk_bytes = GENERATE(1, 2, 3, 5, 8, 1000);
  SECTION("a file is one") {
    options.inputs = {folder.put("a.txt", "one\n\ntwo\nthree"), folder.put("b.txt", ""),
                      folder.put("c.txt", "four\n")};
    const auto result = build_dataset(options, *tokenizer);
    REQUIRE(texts(folder / "out", *tokenizer) == Texts{"one\n\ntwo\nthree", "four\n"});
    REQUIRE(result.parts.size() == 1);
    REQUIRE(result.parts[0].documents == 2);
    REQUIRE(result.parts[0].tokens == 14 + 5 + 2);
    REQUIRE(result.bytes == 19);
    REQUIRE(read(folder / "out")[1].back() == 256);
  }
  SECTION("blocks between blank lines") {
    options.inputs = {folder.put("a.txt", "\n\none\ntwo\n\n \t\nthree\r\n\r\nfour"),
                      folder.put("b.txt", "five\n\n")};
    options.split = DocumentSplit::blank_line;
    options.append_eod = false;
    build_dataset(options, *tokenizer);
    REQUIRE(texts(folder / "out", *tokenizer) ==
            Texts{"one\ntwo\n", "three\r\n", "four", "five\n"});
  }
  SECTION("blocks between separator lines") {
    options.inputs = {folder.put("a.txt", "%\none\n% no\n\n50%\n%\n%\r\ntwo\n%%\n%")};
    options.split = DocumentSplit::separator;
    build_dataset(options, *tokenizer);
    REQUIRE(texts(folder / "out", *tokenizer) == Texts{"one\n% no\n\n50%\n", "two\n%%\n"});
  }
  SECTION("a folder stands for its files, by name") {
    folder.put("b.txt", "bee");
    folder.put("a.txt", "ay");
    options.inputs = {folder.path};
    const Folder other;
    options.output = other / "x";
    build_dataset(options, *tokenizer);
    REQUIRE(texts(other / "x", *tokenizer) == Texts{"ay", "bee"});
  }
}

TEST_CASE("build: JSON lines") {
  const Folder folder;
  const auto tokenizer = make_byte_tokenizer();
  BuildOptions options{.output = folder / "out", .threads = 2};
  options.chunk_bytes = GENERATE(1, 30, 1000);
  SECTION("one document a line") {
    options.inputs = {folder.put(
        "a.jsonl",
        "{\"text\": \"o\\u00e9\\nne\"}\n\n{\"id\": [1], \"text\": \"two\"}\r\n{\"text\":\"\"}\n"
        "{\"text\": \"three\"}")};
    const auto result = build_dataset(options, *tokenizer);
    REQUIRE(texts(folder / "out", *tokenizer) ==
            std::vector<std::string>{"o\u00e9\nne", "two", "three"});
    REQUIRE(result.parts[0].documents == 3);
  }
  SECTION("another field, another file name") {
    options.inputs = {folder.put("a.data", "{\"text\": 1, \"body\": \"b\"}\n")};
    options.json_field = "body";
    options.format = InputFormat::jsonl;
    build_dataset(options, *tokenizer);
    REQUIRE(texts(folder / "out", *tokenizer) == std::vector<std::string>{"b"});
  }
  SECTION("a bad line is named, or skipped and counted") {
    const struct {
      const char* line;
      const char* why;
    } cases[] = {{"{\"text\": \"x", "not JSON at byte"},
                 {"[1]", "not a JSON object"},
                 {"{\"txt\": \"x\"}", "no string field \"text\"; the line's string fields: txt"},
                 {"{\"text\": 7}", "no string field \"text\", and the line has no string field"},
                 {"{\"text\": \"\xFF\"}", "not JSON at byte"},
                 {"{\"text\": \"\\ud800\"}", "not JSON at byte"}};
    for (const auto& c : cases) {
      options.inputs = {folder.put("a.jsonl", "{\"text\": \"one\"}\n\n" + std::string(c.line) +
                                                  "\n{\"text\": \"two\"}\n{\n")};
      options.skip_bad_lines = false;
      REQUIRE_THROWS_WITH(build_dataset(options, *tokenizer),
                          Contains("a.jsonl:3: ") && Contains(c.why));
      REQUIRE_THROWS_AS(build_dataset(options, *tokenizer), UserError);
      REQUIRE(folder.entries() == 1);  // no half-written file
      options.skip_bad_lines = true;
      REQUIRE(build_dataset(options, *tokenizer).bad_lines == 2);
      REQUIRE(texts(folder / "out", *tokenizer) == std::vector<std::string>{"one", "two"});
      for (const char* name : {"out.bin", "out.idx", "out.hash"}) fs::remove(folder / name);
    }
  }
}

TEST_CASE("build: documents begin with the tokens that the tokenizer puts before a text") {
  const Folder folder;
  const auto input = folder.put("a.txt", "one two\n\nthree\n\n\n\n");
  const auto tokens = [&](const std::string& tokenizer, BeginOfText bos) {
    BuildOptions options{.inputs = {input}, .output = folder / "out"};
    options.split = DocumentSplit::blank_line;
    options.bos = bos;
    build_dataset(options, *load_tokenizer(tokenizer));
    std::vector<int32_t> first;
    for (const auto& document : read(folder / "out")) first.push_back(document[0]);
    return first;
  };
  const std::string llama2 = kGolden + "layouts/llama2.json", gpt2 = kGolden + "layouts/gpt2.json";
  REQUIRE(tokens(llama2, BeginOfText::automatic) == std::vector<int32_t>{1, 1});
  REQUIRE(tokens(llama2, BeginOfText::always) == std::vector<int32_t>{1, 1});
  const auto plain = tokens(llama2, BeginOfText::none);
  REQUIRE(plain.size() == 2);
  REQUIRE((plain[0] != 1 && plain[1] != 1));
  REQUIRE(tokens(gpt2, BeginOfText::automatic) == tokens(gpt2, BeginOfText::none));
  REQUIRE_THROWS_WITH(tokens(gpt2, BeginOfText::always), Contains("has no BOS token"));
  REQUIRE_THROWS_WITH(tokens("byte", BeginOfText::always), Contains("--bos none"));
  REQUIRE(tokens("byte", BeginOfText::automatic) == std::vector<int32_t>{'o', 't'});
}

TEST_CASE("build: the files do not depend on threads or chunks") {
  const Folder folder;
  const std::string name = GENERATE("gpt2", "llama3", "qwen2", "prefix");
  const auto tokenizer = load_tokenizer(kGolden + name + ".json");
  std::mt19937 rng(5);
  std::string text;
  for (int i = 0; i < 400; ++i) text += words(rng, 30) + (i % 7 ? "" : "\n\n");
  BuildOptions options{.inputs = {folder.put("a.txt", text), folder.put("b.txt", words(rng, 50))},
                       .seed = 3};
  options.split = GENERATE(DocumentSplit::file, DocumentSplit::blank_line);
  options.validation_fraction = 0.3;
  options.validation_split = GENERATE(ValidationSplit::documents, ValidationSplit::tail);
  if (options.split == DocumentSplit::file) options.validation_split = ValidationSplit::tail;
  std::vector<std::string> first;
  for (const auto& [threads, chunk] :
       {std::pair{1, 1 << 20}, {3, 1000}, {1, 1000}, {2, 333}, {4, 64}}) {
    options.threads = threads;
    options.chunk_bytes = chunk;
    options.output = folder / ("out" + std::to_string(threads) + "_" + std::to_string(chunk));
    BuildProgress last;
    int64_t calls = 0;
    const auto result = build_dataset(options, *tokenizer, [&](const BuildProgress& now) {
      REQUIRE(now.bytes_done > last.bytes_done);
      last = now;
      ++calls;
    });
    REQUIRE(calls > (chunk == 64 && name != "prefix" ? 100 : 0));
    REQUIRE(last.bytes_done == last.bytes_total);
    REQUIRE(last.tokens == result.parts[0].tokens + result.parts[1].tokens);
    REQUIRE(last.documents == result.parts[0].documents + result.parts[1].documents);
    std::vector<std::string> files;
    for (const auto& part : result.parts)
      for (const fs::path& path : {bin_path(part.prefix), idx_path(part.prefix)})
        files.push_back(read_file(path));
    if (first.empty()) first = files;
    REQUIRE(files == first);
  }
}

TEST_CASE("build: validation split") {
  const Folder folder;
  const auto tokenizer = make_byte_tokenizer();
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "{\"text\": \"" + std::to_string(1000 + i) + "\"}\n";
  BuildOptions options{.inputs = {folder.put("a.jsonl", lines)},
                       .output = folder / "out",
                       .validation_fraction = 0.2};
  SECTION("by documents: each in one part, about the fraction, another seed another choice") {
    std::vector<std::string> before;
    for (uint64_t seed : {1, 2}) {
      options.seed = seed;
      const auto result = build_dataset(options, *tokenizer);
      const auto train = texts(folder / "out_train", *tokenizer),
                 valid = texts(folder / "out_valid", *tokenizer);
      REQUIRE(result.parts[1].documents == int64_t(valid.size()));
      // 1000 coins of 0.2: 200 with a deviation of 12.6; five deviations.
      REQUIRE(std::abs(int64_t(valid.size()) - 200) < 64);
      auto all = train;
      all.insert(all.end(), valid.begin(), valid.end());
      std::sort(all.begin(), all.end());
      REQUIRE(all.size() == 1000);
      REQUIRE(std::unique(all.begin(), all.end()) == all.end());
      REQUIRE(valid != before);
      before = valid;
    }
  }
  SECTION("the tail: contiguous, at a document") {
    options.validation_split = ValidationSplit::tail;
    options.chunk_bytes = GENERATE(1, 7, 100, 1 << 20);
    build_dataset(options, *tokenizer);
    const auto train = texts(folder / "out_train", *tokenizer),
               valid = texts(folder / "out_valid", *tokenizer);
    REQUIRE(valid.size() == 200);
    REQUIRE(train.back() == "1799");
    REQUIRE(valid.front() == "1800");
  }
  SECTION("the tail of one long document: at a line") {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "line " + std::to_string(100 + i) + "\n";
    options.inputs = {folder.put("a.txt", text)};
    options.validation_split = ValidationSplit::tail;
    options.chunk_bytes = GENERATE(1, 7, 9, 18, 100, 720, 1 << 20);
    build_dataset(options, *tokenizer);
    REQUIRE(texts(folder / "out_train", *tokenizer) ==
            std::vector<std::string>{text.substr(0, 720)});
    REQUIRE(texts(folder / "out_valid", *tokenizer) == std::vector<std::string>{text.substr(720)});
  }
  SECTION("a part without documents is refused, and nothing is written") {
    options.inputs = {folder.put("a.txt", "only one document")};
    REQUIRE_THROWS_WITH(build_dataset(options, *tokenizer), Contains("would have no document"));
    REQUIRE(!fs::exists(folder / "out_train.idx"));
    REQUIRE(!fs::exists(folder / "out_train.bin"));
  }
}

TEST_CASE("build: where one part of a split fails at the last write, both older parts stay") {
  const Folder folder;
  const auto tokenizer = load_tokenizer("byte");
  BuildOptions options;
  options.inputs = {folder.put("small", "abcdefghij\nklmno\n")};
  options.output = folder / "d";
  options.validation_fraction = 0.5;
  options.validation_split = ValidationSplit::tail;
  build_dataset(options, *tokenizer);
  const auto train = texts(folder / "d_train", *tokenizer);
  const auto valid = texts(folder / "d_valid", *tokenizer);
  // 80,000 bytes of training text in 160,000 bytes fit, the 240,000 of validation do not; both are
  // less than what is buffered.
  std::string text;
  while (text.size() < 200'000) text += "a line of text, of 24 B\n";
  options.inputs = {folder.put("large", text)};
  options.validation_fraction = 0.6;
  {
    const SmallFiles limit(200'000);
    REQUIRE_THROWS_WITH(build_dataset(options, *tokenizer), Contains("d_valid.bin"));
  }
  REQUIRE(texts(folder / "d_train", *tokenizer) == train);
  REQUIRE(texts(folder / "d_valid", *tokenizer) == valid);
}

TEST_CASE("build: an exception of the progress callback ends it and leaves no files") {
  const Folder folder;
  BuildOptions options;
  options.inputs = {folder.put("in", std::string(10'000, 'x'))};
  options.output = folder / "d";
  options.chunk_bytes = 1000;
  const auto tokenizer = load_tokenizer("byte");
  const auto stop = [](const BuildProgress& p) {
    if (p.bytes_done > 3000) throw RunError("stopped");
  };
  REQUIRE_THROWS_WITH(build_dataset(options, *tokenizer, stop), Contains("stopped"));
  REQUIRE(folder.entries() == 1);
}

TEST_CASE("build: mistakes in the options") {
  const Folder folder;
  const auto tokenizer = make_byte_tokenizer();
  const BuildOptions good{.inputs = {folder.put("a.txt", "text")}, .output = folder / "out"};
  const auto says = [&](const char* what, const std::function<void(BuildOptions&)>& change) {
    BuildOptions options = good;
    change(options);
    INFO(what);
    REQUIRE_THROWS_WITH(build_dataset(options, *tokenizer), Contains(what));
    REQUIRE_THROWS_AS(build_dataset(options, *tokenizer), UserError);
  };
  says("no input files", [](auto& o) { o.inputs = {}; });
  says("no such input file: /none/such", [](auto& o) { o.inputs = {"/none/such"}; });
  says("fraction is 1", [](auto& o) { o.validation_fraction = 1; });
  says("fraction is -0.1", [](auto& o) { o.validation_fraction = -0.1; });
  says("not a regular file", [](auto& o) { o.inputs = {"/dev/null"}; });
  says("0 bytes", [&](auto& o) { o.inputs = {folder.put("empty.txt", "")}; });
  says("threads", [](auto& o) { o.threads = -1; });
  says("separator line is empty",
       [](auto& o) { o.split = DocumentSplit::separator, o.separator = ""; });
  says("no output prefix", [](auto& o) { o.output = ""; });
  const auto bpe = load_tokenizer(kGolden + "gpt2.json");
  REQUIRE_NOTHROW(build_dataset(good, *bpe));
}

// The address sanitizer keeps freed memory for a while, so its resident memory cannot be compared.
#ifndef __SANITIZE_ADDRESS__
TEST_CASE("build: memory does not grow with the input, even when it is one document") {
  const Folder folder;
  std::mt19937 rng(6);
  {
    std::string block;
    while (block.size() < (1 << 16)) block += words(rng, 8) + ".\nThen ";
    std::ofstream out(folder / "a.txt", std::ios::binary);
    for (int i = 0; i < 640; ++i) out << block;
  }
  const auto tokenizer = make_byte_tokenizer();
  BuildOptions options{
      .inputs = {folder / "a.txt"}, .output = folder / "out", .threads = 2, .chunk_bytes = 1 << 16};
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  build_dataset(options, *tokenizer, [&](const BuildProgress& now) {
    if (now.bytes_done < now.bytes_total / 8) return;
    least = std::min(least, resident_bytes());
    most = std::max(most, resident_bytes());
  });
  // 40 MiB of text are 160 MiB of tokens; a window of chunks is 3 MiB, and a sanitizer's quarantine
  // some more.
  REQUIRE(most - least < (16 << 20));
}
#endif

}  // namespace data_files_test
