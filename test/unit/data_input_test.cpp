// Tests which files `data build` refuses as text.
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/build/build.h"
#include "test/support/temporary_folder.h"

namespace data_input_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;

namespace {

// Returns the error about an input of these bytes.
std::string refusal(const std::string& bytes, const std::string& name = "a.txt",
                    int64_t chunk_bytes = 1000, BuildOptions options = {}) {
  const TemporaryFolder folder;
  std::ofstream(folder / name, std::ios::binary) << bytes;
  options.inputs = {folder / name};
  options.output = folder / "out";
  options.chunk_bytes = chunk_bytes;
  try {
    build_dataset(options, *make_byte_tokenizer());
  } catch (const UserError& e) {
    CHECK_FALSE(std::filesystem::exists(folder / "out.bin"));
    return e.what();
  }
  return "no error";
}

// The same for JSON lines of a prompt and an answer.
std::string refusal_of_pairs(const std::string& lines) {
  return refusal(lines, "a.jsonl", 1000, {.prompt_field = "prompt", .answer_field = "answer"});
}

}  // namespace

TEST_CASE("a file of another format is refused with the command that converts it") {
  struct Row {
    std::string bytes, format, command;
  };
  const Row rows[] = {
      {std::string("PAR1\x15\x04\x15", 7), "a Parquet file", "read_parquet"},
      {"\x1F\x8B\x08 rest", "compressed by gzip", "gunzip < "},
      {"\x28\xB5\x2F\xFD rest", "compressed by zstd", "zstd -dc < "},
      {std::string("\xFD\x37zXZ\0rest", 10), "compressed by xz", "unxz < "},
      {"BZh91AY&SY", "compressed by bzip2", "bunzip2 < "},
      {"PK\x03\x04rest", "a zip archive", "unzip"},
      {"%PDF-1.7", "a PDF file", "pdftotext"},
      {std::string("ARROW1\0\0", 8), "an Arrow file", "read_feather"},
      {"\xFF\xFF\xFF\xFF rest", "an Arrow stream", "datasets.Dataset.from_file"},
      {std::string("MMIDIDX\0\0", 9), "an index of token files", "dataset.train"},
      {std::string("\xFF\xFEt\0e\0", 6), "UTF-16 text", "iconv -f UTF-16"},
  };
  for (const Row& row : rows)
    for (const char* name : {"a.txt", "a.jsonl"}) {
      INFO(row.format << " as " << name);
      CHECK_THAT(refusal(row.bytes, name), Contains(name) && Contains("is " + row.format) &&
                                               Contains(", not ") && Contains(row.command));
    }
}

TEST_CASE("a text may begin with the letters of a signature") {
  for (const char* text : {"PAR1 is a receptor", "PAR1\n", "PAR1", "ARROW1 flies", "BZh is short",
                           "BZh9", "%PDF is a format", "%PDF-", "MMIDIDX begins an index"}) {
    INFO(text);
    CHECK(refusal(text) == "no error");
  }
}

TEST_CASE("the command that converts a file can be copied") {
  const TemporaryFolder folder;
  struct Row {
    std::string name, bytes, shown;
  };
  const Row rows[] = {
      {"a.jsonl.gz", "\x1F\x8B\x08",
       "a.jsonl.gz > {}/a.jsonl` converts it; then give --input {}/a.jsonl"},
      {"a.txt", "\x1F\x8B\x08", "a.txt > {}/a.unpacked.txt`"},
      {"it's a.gz", "\x1F\x8B\x08", "gunzip < '{}/it'\\''s a.gz' > '{}/it'\\''s a'`"},
      {"b c.txt", "caf\xE9", "iconv -f ISO-8859-1 -t UTF-8 '{}/b c.txt' > '{}/b c.utf8.txt'`"},
      {"d.pdf", "%PDF-1.7", "pdftotext {}/d.pdf {}/d.txt`"},
      {"e f.parquet", "PAR1\x15", "lines=True)\" '{}/e f.parquet' '{}/e f.parquet.jsonl'`"},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    std::ofstream(folder / row.name, std::ios::binary) << row.bytes;
    std::string shown = row.shown;
    const std::string path = folder.path.string();
    for (size_t at; (at = shown.find("{}")) != std::string::npos;) shown.replace(at, 2, path);
    const BuildOptions options{.inputs = {folder / row.name}, .output = folder / "out"};
    CHECK_THROWS_WITH(build_dataset(options, *make_byte_tokenizer()), Contains(shown));
  }
  // The suggested command replaces no file.
  std::ofstream(folder / "a.jsonl") << "{}";
  const BuildOptions options{.inputs = {folder / "a.jsonl.gz"}, .output = folder / "out"};
  CHECK_THROWS_WITH(build_dataset(options, *make_byte_tokenizer()),
                    Contains("/a.unpacked.jsonl` converts it"));
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
             Contains("the line holds a conversation, \"messages\"") &&
                 Contains("--messages-field messages"));
}

TEST_CASE("a field that is not a text is named with its type") {
  CHECK_THAT(refusal_of_pairs("{\"prompt\": \"x\", \"answer\": null}\n"),
             Contains("a.jsonl:1: \"answer\" is null, so there is no string field") &&
                 Contains("--skip-bad-lines") && !Contains("--json-field"));
  CHECK_THAT(refusal("{\"text\": [\"x\"]}\n", "a.jsonl"), Contains("\"text\" is an array"));
  CHECK_THAT(refusal("{\"text\": 1}\n", "a.jsonl"), Contains("\"text\" is a number"));
}

TEST_CASE("a line that lacks the fields of the lines before it may be skipped") {
  for (const char* line : {"{\"body\": \"x\"}", "{\"id\": 1}"}) {
    INFO(line);
    CHECK_THAT(refusal("{\"text\": \"x\"}\n" + std::string(line), "a.jsonl"),
               Contains("a.jsonl:2: there is no string field \"text\"") &&
                   Contains("--skip-bad-lines") && !Contains("--json-field"));
    CHECK_THAT(refusal("{\"text\": \"x\"}\n" + std::string(line), "a.jsonl", 1),
               Contains("a.jsonl:2: ") && Contains("--skip-bad-lines"));
  }
}

TEST_CASE("no hint for pairs names an option that excludes theirs") {
  CHECK_THAT(refusal_of_pairs("{\"prompt\": \"x\", \"response\": \"y\"}\n"),
             Contains("give --prompt-field prompt --answer-field response"));
  CHECK_THAT(
      refusal_of_pairs("{\"prompt\": \"x\", \"reply\": \"y\"}\n"),
      Contains("fields: prompt, reply") && Contains("--answer-field") && !Contains("--json-field"));
}

TEST_CASE("lines without a token are counted") {
  const TemporaryFolder folder;
  std::ofstream(folder / "a.jsonl") << "{\"text\": \"x\"}\n{\"text\": \"\"}\n";
  const BuildOptions texts{.inputs = {folder / "a.jsonl"}, .output = folder / "out"};
  CHECK(build_dataset(texts, *make_byte_tokenizer()).without_token == 1);
  std::ofstream(folder / "b.jsonl") << "{\"prompt\": \"\", \"answer\": \"y\"}\n"
                                       "{\"prompt\": \"x\", \"answer\": \"\"}\n";
  const BuildOptions pairs{.inputs = {folder / "b.jsonl"},
                           .output = folder / "out",
                           .prompt_field = "prompt",
                           .answer_field = "answer"};
  CHECK(build_dataset(pairs, *make_byte_tokenizer()).without_token == 1);
}

TEST_CASE("one text file from which no document can be held out names the ways to divide it") {
  CHECK_THAT(refusal("one\n\ntwo\n", "a.txt", 1000, {.validation_fraction = 0.1}),
             Contains("a text file is one document") && Contains("--validation-split tail") &&
                 Contains("--split blank-line"));
  CHECK_THAT(refusal("{\"text\": \"x\"}\n", "a.jsonl", 1000, {.validation_fraction = 0.1}),
             Contains("a larger input"));
}

TEST_CASE("a tokenizer is not downloaded by its name") {
  for (const std::string name : {"gpt2", "meta-llama/Llama-3.1-8B"}) {
    INFO(name);
    CHECK_THROWS_WITH(load_tokenizer(name), Contains(name + " is neither a file ") &&
                                                Contains("nothing is downloaded") &&
                                                Contains("give \"byte\", a tokenizer.json") &&
                                                Contains("hf download") && !Contains("mean byte"));
  }
  CHECK_THROWS_WITH(load_tokenizer("bytes"), Contains("did you mean byte?"));
  CHECK_THROWS_WITH(load_tokenizer("data/tok"), Contains("a folder that holds one"));
  CHECK_THROWS_WITH(load_tokenizer("./none/tokenizer.json"), !Contains("download"));
}

}  // namespace data_input_test
