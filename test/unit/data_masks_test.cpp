// Tests data sets for supervised fine-tuning: prompts with answers become tokens with a mask, and
// only the answers count as labels.
#include <cmath>
#include <filesystem>
#include <set>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/build/build.h"
#include "data/dataset/bigram.h"
#include "data/dataset/blend.h"
#include "data/dataset/gpt_dataset.h"
#include "data/dataset/indexed_dataset.h"
#include "data/dataset/packed_dataset.h"
#include "data/dataset/strided_dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "test/support/temporary_folder.h"

namespace data_masks_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

// A token, and whether it counts as a label.
struct Token {
  int32_t id;
  uint8_t label;
};

void write(const fs::path& prefix, const std::vector<std::vector<Token>>& documents) {
  IndexedDatasetWriter writer(prefix, TokenType::u16, true);
  for (const auto& document : documents) {
    for (const Token& t : document) writer.add_tokens({&t.id, 1}, {&t.label, 1});
    writer.end_document();
  }
  writer.finish();
}

std::shared_ptr<const IndexedDataset> tokens_of(const std::vector<std::vector<Token>>& documents) {
  const TemporaryFolder folder;
  write(folder / "d", documents);
  return std::make_shared<IndexedDataset>(folder / "d");
}

Sample sample_of(const Dataset& data, int64_t i) {
  Sample sample;
  data.sample(i, sample);
  return sample;
}

fs::path put(const fs::path& path, std::string_view text) {
  write_file_atomic(path, text);
  return path;
}

const char* const kPairs =
    "{\"question\": \"ab\", \"answer\": \"cde\", \"id\": 1}\n"
    "{\"question\": \"\", \"answer\": \"f\"}\n"
    "{\"question\": \"gh\", \"answer\": \"\"}\n";

}  // namespace

TEST_CASE("prompts and answers become tokens with a mask") {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  BuildOptions options{.inputs = {put(folder / "a.jsonl", kPairs)},
                       .output = folder / "out",
                       .prompt_field = "question",
                       .answer_field = "answer",
                       .threads = 2};
  options.chunk_bytes = GENERATE(1, 1000);
  const BuildResult result = build_dataset(options, *tokenizer);
  CHECK(result.parts[0].documents == 3);
  CHECK(result.parts[0].tokens == 6 + 2 + 3);
  CHECK(result.parts[0].labels == 4 + 2 + 1);
  // The end of a document belongs to its answer.
  CHECK(read_file(folder / "out.mask") == std::string("\0\0\1\1\1\1"
                                                      "\1\1"
                                                      "\0\0\1",
                                                      11));
  const IndexedDataset data(folder / "out");
  CHECK(data.masked());
  CHECK_FALSE(data.counts(1));
  CHECK(data.counts(2));
  CHECK_FALSE(data.any_counts(0, 2));
  CHECK(data.any_counts(0, 3));

  SECTION("a build of plain texts removes the mask of the older tokens") {
    options.prompt_field = options.answer_field = "";
    options.json_field = "question";
    const BuildResult plain = build_dataset(options, *tokenizer);
    CHECK(plain.parts[0].labels == plain.parts[0].tokens);
    CHECK_FALSE(fs::exists(folder / "out.mask"));
    CHECK_FALSE(IndexedDataset(folder / "out").masked());
  }
  SECTION("both parts of a split have their masks") {
    options.validation_fraction = 0.3;
    options.validation_split = ValidationSplit::tail;
    const BuildResult split = build_dataset(options, *tokenizer);
    REQUIRE(split.parts.size() == 2);
    CHECK(split.parts[0].labels + split.parts[1].labels == 7);
    std::string both;
    for (const auto& part : split.parts) {
      const IndexedDataset of_part(part.prefix);
      CHECK(of_part.masked());
      int64_t labels = 0;
      for (int64_t t = 0; t < of_part.tokens(); ++t) labels += of_part.counts(t);
      CHECK(labels == part.labels);
      both += read_file(mask_path(part.prefix));
    }
    CHECK(both == read_file(folder / "out.mask"));
  }
}

TEST_CASE("no token before a text is a label, wherever the input is divided") {
  const TemporaryFolder folder;
  const auto tokenizer =
      load_tokenizer(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/tokenizer/layouts/llama2.json");
  const std::vector<std::pair<std::string, std::string>> pairs{
      {"one", " two three"}, {"", "four"}, {"five six", ""}, {"", ""}, {"seven", "eight"}};
  std::string lines;
  for (const auto& [prompt, answer] : pairs)
    lines +=
        fmt::format("{{\"p\": \"{}\", \"a\": \"{}\"}}\n{{\"p\": \"no answer\"}}\n", prompt, answer);
  BuildOptions options{.inputs = {put(folder / "a.jsonl", lines)},
                       .output = folder / "out",
                       .prompt_field = "p",
                       .answer_field = "a",
                       .skip_bad_lines = true,
                       .threads = 2};
  options.bos = GENERATE(BeginOfText::automatic, BeginOfText::none);
  options.chunk_bytes = GENERATE(1, 40, 1000);
  const BuildResult result = build_dataset(options, *tokenizer);
  CHECK(result.bad_lines == int64_t(pairs.size()));
  REQUIRE(result.parts[0].documents == 4);  // a pair without a token is not a document

  const IndexedDataset data(folder / "out");
  const int64_t before = options.bos == BeginOfText::none ? 0 : 1;
  int64_t document = 0;
  for (const auto& [prompt, answer] : pairs) {
    std::vector<int32_t> want(size_t(before), 1);  // <s>
    tokenizer->encode(prompt, want);
    const size_t prompt_end = want.size();
    tokenizer->encode(answer, want);
    if (want.size() == size_t(before)) continue;
    want.push_back(*tokenizer->eod());
    const int64_t begin = data.index().document_begin(document++);
    std::vector<int32_t> got(want.size());
    data.read(begin, got);
    CHECK(got == want);
    for (size_t i = 0; i < want.size(); ++i)
      CHECK(data.counts(begin + int64_t(i)) == (i >= prompt_end));
  }
  CHECK(data.index().document_begin(document) == data.tokens());
}

TEST_CASE("mistakes in pairs are named") {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  BuildOptions options{.inputs = {put(folder / "a.jsonl", kPairs)},
                       .output = folder / "out",
                       .prompt_field = "question",
                       .answer_field = "reply"};
  const auto says = [&](const char* first, const char* second) {
    CHECK_THROWS_AS(build_dataset(options, *tokenizer), UserError);
    CHECK_THROWS_WITH(build_dataset(options, *tokenizer), Contains(first) && Contains(second));
    CHECK_FALSE(fs::exists(folder / "out.bin"));
    CHECK_FALSE(fs::exists(folder / "out.mask"));
  };
  says("a.jsonl:1: ", "no string field \"reply\"");
  options.answer_field = "";
  says("the answer has no field", "");
  options.answer_field = "question";
  says("the same field, \"question\"", "name two fields");
  options.answer_field = "answer";
  options.inputs = {put(folder / "a.txt", "text")};
  says("a.txt is read as text", "no prompts");
}

TEST_CASE("a mask that does not fit its tokens is refused") {
  const TemporaryFolder folder;
  write(folder / "d", {{{1, 0}, {2, 1}, {3, 1}}});
  const std::string mask = read_file(folder / "d.mask");
  const auto says = [&](const std::string& text, const char* what) {
    put(folder / "d.mask", text);
    CHECK_THROWS_AS(IndexedDataset(folder / "d"), UserError);
    CHECK_THROWS_WITH(IndexedDataset(folder / "d"), Contains("d.mask") && Contains(what));
  };
  says(mask + '\1', "has 4 bytes");
  says(mask.substr(1), "has 2 bytes");
  says(std::string("\0\2\1", 3), "byte 1 is 2");
  put(folder / "d.mask", mask);
  CHECK(IndexedDataset(folder / "d").masked());
}

TEST_CASE("labels that do not count have no loss, and sequences without any are left out") {
  // Sequences of 3: [0 1 2], [3 4 5], [6 7 8], each followed by its last label.
  const auto data = tokens_of(
      {{{0, 1}, {1, 0}, {2, 1}, {3, 1}, {4, 0}}, {{5, 0}, {6, 0}, {7, 1}, {8, 0}, {9, 1}}});
  const GptDataset gpt(data, {.seq_length = 3, .shuffle = false});
  REQUIRE(gpt.size() == 2);
  CHECK(sample_of(gpt, 0).label == std::vector<int32_t>{-1, 2, 3});
  CHECK(sample_of(gpt, 1).input == std::vector<int32_t>{6, 7, 8});
  CHECK(sample_of(gpt, 1).label == std::vector<int32_t>{7, -1, 9});
  CHECK(sample_of(gpt, 2).label == sample_of(gpt, 0).label);  // the next epoch
  CHECK_THAT(gpt.note(), Contains("2 sequences of 3, 1 left out, since no label counts"));
  std::multiset<int32_t> firsts;
  const GptDataset shuffled(data, {.seq_length = 3, .seed = 5});
  for (int64_t i = 0; i < 2; ++i) firsts.insert(sample_of(shuffled, i).input[0]);
  CHECK(firsts == std::multiset<int32_t>{0, 6});

  const BlendDataset blend(
      {std::make_shared<GptDataset>(data, GptDatasetOptions{.seq_length = 3, .shuffle = false})},
      {1});
  CHECK(blend.size() == 2);
  CHECK(sample_of(blend, 1).label == std::vector<int32_t>{7, -1, 9});

  const auto no_label = tokens_of({{{0, 1}, {1, 0}, {2, 0}}});
  CHECK_THROWS_AS(GptDataset(no_label, {.seq_length = 2}), UserError);
  CHECK_THROWS_AS(PackedDataset(no_label, {.size = 2}), UserError);
}

TEST_CASE("documents are packed with their masks, and without those that teach nothing") {
  const auto data = tokens_of({{{10, 0}, {11, 0}, {12, 1}},
                               {{20, 1}, {21, 0}, {22, 0}},
                               {{30, 0}, {31, 1}, {32, 0}, {33, 0}, {34, 1}}});
  const PackedDataset packed(data, {.size = 6, .shuffle = false});
  REQUIRE(packed.size() == 1);
  const Sample sample = sample_of(packed, 0);
  CHECK(sample.input == std::vector<int32_t>{10, 11, 30, 31, 32, 33});
  CHECK(sample.label == std::vector<int32_t>{-1, 12, 31, -1, -1, 34});
  CHECK(sample.documents == std::vector<int64_t>{2, 4});
  CHECK_THAT(packed.note(), Contains("; masked; 1 pieces left out, since no label counts"));
}

TEST_CASE("where samples are not packed, each document can have one of its own") {
  const auto data = tokens_of({{{10, 0}, {11, 0}, {12, 1}},
                               {{20, 1}, {21, 0}, {22, 0}},
                               {{30, 0}, {31, 1}, {32, 0}, {33, 0}, {34, 1}}});
  const PackedDataset alone(data, {.size = 3, .shuffle = false, .alone = true});
  REQUIRE(alone.size() == 3);
  const Sample first = sample_of(alone, 0), rest = sample_of(alone, 2);
  CHECK(first.input == std::vector<int32_t>{10, 11, 0});
  CHECK(first.label == std::vector<int32_t>{-1, 12, -1});
  CHECK((first.documents.empty() && first.padding == 1));
  CHECK(rest.input == std::vector<int32_t>{33, 0, 0});  // the end of a document that is split
  CHECK(rest.label == std::vector<int32_t>{34, -1, -1});
  CHECK((rest.documents.empty() && rest.padding == 2));
}

TEST_CASE("an evaluation and a bigram table count the labels that count") {
  // Windows of 4 at 0, 3 and 6. The pairs that count: (1 2), (2 2), (2 3), (3 1).
  const auto data =
      tokens_of({{{1, 0}, {2, 1}, {3, 0}, {2, 0}, {2, 1}, {3, 1}, {1, 0}, {3, 0}, {1, 1}}});
  const StridedDataset windows(data, {.window = 4, .stride = 3});
  REQUIRE(windows.size() == 3);
  CHECK(sample_of(windows, 0).label == std::vector<int32_t>{2, -1, -1, -1});
  CHECK(sample_of(windows, 1).label == std::vector<int32_t>{2, 3, -1, -1});
  CHECK(sample_of(windows, 2).label == std::vector<int32_t>{-1, 1, -1, -1});
  const auto no_label = tokens_of({{{0, 1}, {1, 0}, {2, 0}}});
  CHECK_THROWS_WITH(StridedDataset(no_label, {.window = 2, .stride = 1}),
                    Contains("counts as a label"));

  for (const int64_t vocabulary : {4, 2000}) {  // a dense table, and a sparse one
    const BigramResult table = bigram_loss(*data, *data, vocabulary, {1.0});
    CHECK(table.pairs == 4);
    const double V = double(vocabulary);
    // n(1) = 1, n(2) = 2, n(3) = 1, and each of the four pairs was seen once.
    const double want = (2 * std::log(2 / (1 + V)) + 2 * std::log(2 / (2 + V))) / -4;
    CHECK(table.loss == Approx(want).epsilon(1e-12));
    CHECK_THROWS_WITH(bigram_loss(*data, *no_label, vocabulary), Contains("counts as a label"));
  }
}

}  // namespace data_masks_test
