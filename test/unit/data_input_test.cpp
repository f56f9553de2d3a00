// Tests which files `data build` refuses to take for text.
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/build/build.h"
#include "temporary_folder.h"

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;

namespace {

// Returns what is said of an input of these bytes.
std::string refusal(const std::string& bytes, const std::string& name = "a.txt",
                    int64_t chunk_bytes = 1000) {
  const TemporaryFolder folder;
  std::ofstream(folder / name, std::ios::binary) << bytes;
  const BuildOptions options{
      .inputs = {folder / name}, .output = folder / "out", .chunk_bytes = chunk_bytes};
  try {
    build_dataset(options, *make_byte_tokenizer());
  } catch (const UserError& e) {
    CHECK_FALSE(std::filesystem::exists(folder / "out.bin"));
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a file of another format is refused with the command that converts it") {
  struct Row {
    std::string bytes, format, command;
  };
  const Row rows[] = {
      {std::string("PAR1\x15\x04\x15", 7), "a Parquet file", "read_parquet"},
      {"\x1F\x8B\x08 rest", "compressed by gzip", "gunzip --keep"},
      {"\x28\xB5\x2F\xFD rest", "compressed by zstd", "zstd --decompress"},
      {std::string("\xFD\x37zXZ\0rest", 10), "compressed by xz", "unxz"},
      {"BZh91AY", "compressed by bzip2", "bunzip2"},
      {"PK\x03\x04rest", "a zip archive", "unzip"},
      {"%PDF-1.7", "a PDF file", "pdftotext"},
      {std::string("ARROW1\0\0", 8), "an Arrow file", "datasets"},
      {std::string("MMIDIDX\0\0", 9), "an index of token files", "dataset.train"},
      {std::string("\xFF\xFEt\0e\0", 6), "UTF-16 text", "iconv -f UTF-16"},
  };
  for (const Row& row : rows)
    for (const char* name : {"a.txt", "a.jsonl"}) {
      INFO(row.format << " as " << name);
      CHECK_THAT(refusal(row.bytes, name), Contains(name) && Contains("is " + row.format) &&
                                               Contains("not text") && Contains(row.command));
    }
}

TEST_CASE("bytes that are not text are refused with line and byte, in every chunk") {
  for (const int64_t chunk : {1, 4, 1000}) {
    INFO("chunks of " << chunk);
    CHECK_THAT(refusal("one\ntwo\ncaf\xE9\n", "a.txt", chunk),
               Contains("a.txt:3: byte 12 of the file, 0xe9, is not UTF-8") && Contains("iconv"));
    CHECK_THAT(refusal(std::string("one\nt\0w\0o\0", 10), "a.txt", chunk),
               Contains("a.txt:2: byte 6 of the file, 0x00, is NUL") && Contains("UTF-16LE"));
    CHECK_THAT(refusal("one\n\xE2\x82", "a.txt", chunk), Contains("a.txt:2: byte 5 "));
    CHECK(refusal("one\n\xE2\x82\xAC\n\xEF\xBB\xBF\xF0\x9F\x98\x80", "a.txt", chunk) == "no error");
  }
}

TEST_CASE("a JSON line without the field names the option that reads it") {
  CHECK_THAT(refusal("{\"content\": \"x\", \"id\": \"1\"}\n", "a.jsonl"),
             Contains("a.jsonl:1: there is no string field \"text\"; the line's string fields: "
                      "content, id") &&
                 Contains("add --json-field content"));
  CHECK_THAT(refusal("{\"question\": \"x\", \"answer\": \"y\"}\n", "a.jsonl"),
             Contains("add --prompt-field question --answer-field answer"));
  CHECK_THAT(refusal("{\"messages\": [{\"role\": \"user\"}]}\n", "a.jsonl"),
             Contains("a conversation (\"messages\") is not read") && Contains("--prompt-field"));
}

TEST_CASE("a tokenizer is not downloaded by its name") {
  for (const std::string name : {"gpt2", "meta-llama/Llama-3.1-8B"}) {
    INFO(name);
    CHECK_THROWS_WITH(load_tokenizer(name), Contains("there is no file or folder " + name) &&
                                                Contains("nothing is downloaded") &&
                                                Contains("hf download"));
  }
  CHECK_THROWS_WITH(load_tokenizer("./none/tokenizer.json"), !Contains("download"));
}
