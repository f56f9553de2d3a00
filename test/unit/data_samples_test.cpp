// Rows of JSON lines that become tokens and labels, and the cache of their tokens.
#include <fstream>
#include <set>
#include <thread>

#include <cstring>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/dataset/indexed_dataset.h"
#include "data/dataset/mock_dataset.h"
#include "data/parquet/parquet_rows.h"
#include "data/samples/column_text.h"
#include "data/samples/sample_source.h"
#include "test/support/environment.h"
#include "test/support/temporary_folder.h"

namespace data_samples_test {

using namespace mtrain;
using namespace mtrain::data;
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

std::string rendered(const std::string& text, const Json& row) {
  LineFault fault;
  std::string out;
  const bool ok = ColumnText(text, "prompt").render(row, fault, out);
  return ok ? out : "fault: " + fault.why;
}

// The bytes of a document, with the labels in brackets.
std::string shown(const fs::path& prefix, int64_t document) {
  const IndexedDataset tokens(prefix);
  const int64_t begin = tokens.index().document_begin(document);
  std::vector<int32_t> ids(size_t(tokens.index().document_begin(document + 1) - begin));
  tokens.read(begin, ids);
  std::string out;
  bool in = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (const bool counts = tokens.counts(begin + int64_t(i)); counts != in)
      out += (in = counts) ? "[" : "]";
    out += ids[i] == 256 ? std::string("$") : std::string(1, char(ids[i]));
  }
  return out + (in ? "]" : "");
}

SampleSource pairs_of(const fs::path& file) {
  return {.format = SampleSource::Format::prompt_completion,
          .files = {file.string()},
          .prompt = "{q} ",
          .completion = "{a}",
          .tokenizer = "byte",
          .name = "dataset.train"};
}

void write_rows(const fs::path& file, int64_t rows) {
  std::ofstream out(file);
  for (int64_t i = 0; i < rows; ++i) out << "{\"q\": \"q" << i << "\", \"a\": \"a" << i << "\"}\n";
}

std::string error_of(const SampleSource& source, const fs::path& cache) {
  try {
    tokenize_samples(source, cache);
  } catch (const UserError& e) {
    return e.message() + " / " + e.hint();
  }
  return "none";
}

}  // namespace

TEST_CASE("a text of columns takes keys, items, items by number, and trims") {
  const Json row = Json::parse(R"({"ctx": "c", "label": "1", "endings": ["e", " f "],
                                   "n": 0, "answers": {"text": [" x ", "y"], "none": []}})");
  CHECK(rendered("A: {ctx} {{}}", row) == "A: c {}");
  CHECK(rendered("{endings[label]}", row) == " f ");
  CHECK(rendered("{endings[n]}{endings[1]|trim}", row) == "ef");
  CHECK(rendered("{answers.text[0]|trim}", row) == "x");
  CHECK(rendered("<{answers.none[0]}>", row) == "<>");
  CHECK(rendered("{contxt}", row) ==
        "fault: the row has no column \"contxt\", but ctx, label, endings, n, answers");
  CHECK(rendered("{n}", row) == "fault: {n} is not a text");
  CHECK(rendered("{endings[7]}", row) == "fault: {endings[7]} is not a text");
  for (const char* wrong : {"{a", "a}", "{}", "{a|upper}", "{[0]}", "{a[0}"})
    CHECK_THROWS_AS(ColumnText(wrong, "prompt"), UserError);
}

TEST_CASE("a split is a name with a slice of rows or percent") {
  const auto range = [](const char* text) { return parse_split(text)->range(200); };
  CHECK(range("train") == std::pair<int64_t, int64_t>{0, 200});
  CHECK(range("train[:10]") == std::pair<int64_t, int64_t>{0, 10});
  CHECK(range("train[190:]") == std::pair<int64_t, int64_t>{190, 200});
  CHECK(range("validation[10%:15%]") == std::pair<int64_t, int64_t>{20, 30});
  CHECK(range("[-5:]") == std::pair<int64_t, int64_t>{195, 200});
  CHECK(range("train[:999]") == std::pair<int64_t, int64_t>{0, 200});
  CHECK(parse_split("train[:10]")->name == "train");
  for (const char* wrong : {"train[10]", "train[:x]", "train[:10", "tr ain", "train[:101%]"})
    CHECK_FALSE(parse_split(wrong));
}

TEST_CASE("rows become tokens whose answers are labels, once for the same content") {
  const TemporaryFolder folder;
  write_rows(folder / "a.jsonl", 20);
  SampleSource source = pairs_of(folder / "a.jsonl");
  const TokenizedSamples first = tokenize_samples(source, folder / "cache");
  CHECK(first.built);
  CHECK(IndexedDataset(first.prefix).index().documents() == 20);
  CHECK(shown(first.prefix, 3) == "q3 [a3]");
  const TokenizedSamples again = tokenize_samples(source, folder / "cache");
  CHECK_FALSE(again.built);
  CHECK(again.prefix == first.prefix);
  write_rows(folder / "b.jsonl", 20);  // the same content under another name
  CHECK(tokenize_samples(pairs_of(folder / "b.jsonl"), folder / "cache").prefix == first.prefix);
  source.end_of_text = true;
  const TokenizedSamples ended = tokenize_samples(source, folder / "cache");
  CHECK(ended.built);
  CHECK(shown(ended.prefix, 3) == "q3 [a3$]");
  source.answers_only = false;
  CHECK(shown(tokenize_samples(source, folder / "cache").prefix, 3) == "[q3 a3$]");
  write_rows(folder / "a.jsonl", 21);
  CHECK(tokenize_samples(source, folder / "cache").built);
}

TEST_CASE("split, limit and shuffling choose rows, also across files and blank lines") {
  const TemporaryFolder folder;
  write_rows(folder / "a.jsonl", 10);
  std::ofstream(folder / "b.jsonl")
      << "\n{\"q\": \"x\", \"a\": \"y\"}\n\n{\"q\": \"u\", \"a\": \"v\"}";
  SampleSource source = pairs_of(folder / "a.jsonl");
  source.files.push_back((folder / "b.jsonl").string());
  source.split = *parse_split("train[9:11]");
  const auto nine = tokenize_samples(source, folder / "cache").prefix;
  CHECK(IndexedDataset(nine).index().documents() == 2);
  CHECK(shown(nine, 0) == "q9 [a9]");
  CHECK(shown(nine, 1) == "x [y]");
  source.limit = 1;
  CHECK(IndexedDataset(tokenize_samples(source, folder / "cache").prefix).index().documents() == 1);
  source.split = *parse_split("train[:6]"), source.limit.reset(), source.shuffle_seed = 4;
  SampleSource rest = source;
  rest.split = *parse_split("train[6:]");
  std::set<std::string> texts;
  for (const SampleSource& part : {source, rest}) {
    const auto prefix = tokenize_samples(part, folder / "cache").prefix;
    CHECK(IndexedDataset(prefix).index().documents() == 6);
    for (int64_t d = 0; d < 6; ++d) texts.insert(shown(prefix, d));
  }
  CHECK(texts.size() == 12);  // both parts follow one order
  rest.split = *parse_split("train[50:]");
  CHECK(error_of(rest, folder / "cache") ==
        "dataset.train: split and limit leave none of 12 rows / choose rows that the data have");
}

TEST_CASE("conversations of ShareGPT and lists of JSON are rows, and history can be left out") {
  const TemporaryFolder folder;
  const std::string turns =
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
          {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"},
          {"from": "gpt", "value": "d"}]})";
  write_file_atomic(folder / "chats.json", "[\n" + turns + ",\n" + turns + "\n]\n");
  SampleSource source{.format = SampleSource::Format::messages,
                      .files = {(folder / "chats.json").string()},
                      .column = "messages",
                      .chat_template =
                          "{% for m in messages %}{{ m.role[0] }}{{ m.content }};"
                          "{% endfor %}{% if add_generation_prompt %}a{% endif %}",
                      .tokenizer = "byte",
                      .name = "dataset.train"};
  const auto all = tokenize_samples(source, folder / "cache");
  CHECK(IndexedDataset(all.prefix).index().documents() == 2);
  CHECK(shown(all.prefix, 1) == "ss;ua;a[b;]uc;a[d;]");
  source.last_answer = true;
  const auto last = tokenize_samples(source, folder / "cache");
  CHECK(last.built);
  CHECK(shown(last.prefix, 1) == "ss;ua;ab;uc;a[d;]");
  write_file_atomic(folder / "chats.json", "[\n" + turns + ",\n5]");
  CHECK(error_of(source, folder / "cache").find("not a JSON object") != std::string::npos);
  write_file_atomic(folder / "chats.json", "[\n" + turns + ",");
  CHECK(error_of(source, folder / "cache").find("chats.json") != std::string::npos);
}

TEST_CASE("parts of a content are joined where messages are plain, and the cache keeps both") {
  const TemporaryFolder folder;
  std::ofstream(folder / "a.jsonl")
      << R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, )"
      << R"({"role": "assistant", "content": "yo"}]})";
  SampleSource source{.format = SampleSource::Format::messages,
                      .files = {(folder / "a.jsonl").string()},
                      .column = "messages",
                      .chat_template = "{% for m in messages %}{{ m.content | trim }};{% endfor %}",
                      .tokenizer = "byte",
                      .name = "dataset.train"};
  const auto as_given = tokenize_samples(source, folder / "cache").prefix;
  CHECK(shown(as_given, 0) == "[{'type': 'text', 'text': 'hi'}];[yo;]");
  source.plain_messages = true;
  CHECK(shown(tokenize_samples(source, folder / "cache").prefix, 0) == "hi;[yo;]");
}

TEST_CASE("a changed template makes new tokens, and a template's date is that of no day") {
  const TemporaryFolder folder;
  write_rows(folder / "a.jsonl", 2);
  fs::create_directories(folder / "template");
  SampleSource source = pairs_of(folder / "a.jsonl");
  source.chat_template = (folder / "template").string();
  const auto with = [&](const std::string& begin) {
    write_file_atomic(folder / "template/chat_template.jinja",
                      begin + "{% for m in messages %}{{ m.content }};{% endfor %}");
    return tokenize_samples(source, folder / "cache");
  };
  const auto first = with("<");
  CHECK(shown(first.prefix, 1) == "<q1 ;[a1;]");
  const auto second = with("{{ strftime_now('%a %d %b %Y ') }}");
  CHECK(second.prefix != first.prefix);
  CHECK(shown(second.prefix, 1) == "Fri 26 Jul 2024 q1 ;[a1;]");
  CHECK_FALSE(with("<").built);
  // The same template under another name has the same tokens.
  source.chat_template = read_file(folder / "template/chat_template.jinja");
  CHECK(tokenize_samples(source, folder / "cache").prefix == first.prefix);
}

TEST_CASE("token files of NanoGPT become documents, and other files are refused") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, std::vector<int32_t> header,
                         const std::string& ids) {
    header.resize(256);
    std::string bytes(1024, '\0');
    std::memcpy(bytes.data(), header.data(), bytes.size());
    write_file_atomic(folder / name, bytes + ids);
  };
  write("a_1.bin", {278895051, 1, 3, 2}, std::string("h\0i\0!\0", 6));
  write("a_2.bin", {20240520, 1, 2}, std::string("y\0o\0", 4));
  write("a_3.bin", {278895051, 1, 2, 4}, std::string("o\0\0\0k\0\0\0", 8));
  SampleSource source{.format = SampleSource::Format::tokens,
                      .files = {(folder / "a_*.bin").string()},
                      .tokenizer = "byte",
                      .name = "dataset.train"};
  const auto made = tokenize_samples(source, folder / "cache");
  CHECK(IndexedDataset(made.prefix).index().documents() == 3);
  CHECK(shown(made.prefix, 0) == "[hi!]");
  CHECK(shown(made.prefix, 2) == "[ok]");
  CHECK_FALSE(tokenize_samples(source, folder / "cache").built);
  struct Row {
    std::vector<int32_t> header;
    std::string ids, error;
  };
  for (const Row& row :
       {Row{{5, 1, 1, 2}, "ab", "begins with 5 instead of 278895051"},
        Row{{278895051, 2, 1, 2}, "ab", "the version 2"},
        Row{{278895051, 1, 1, 3}, "abc", "ids of 3 bytes"},
        Row{{278895051, 1, 2, 2}, "abc", "has 1027 bytes"}, Row{{278895051, 1, 0, 2}, "", "no ids"},
        Row{{278895051, 1, 1, 4}, "\xff\xff\xff\xff", "the id 4294967295"}}) {
    write("wrong.bin", row.header, row.ids);
    source.files = {(folder / "wrong.bin").string()};
    CHECK_THAT(error_of(source, folder / "cache"), Catch::Matchers::StartsWith("dataset.train: ") &&
                                                       Catch::Matchers::Contains(row.error));
  }
  source.files = {(folder / "none_*.bin").string()};
  CHECK_THAT(error_of(source, folder / "cache"), Catch::Matchers::Contains("no file matches"));
}

TEST_CASE("threads that start at once build the tokens once") {
  const TemporaryFolder folder;
  write_rows(folder / "a.jsonl", 5000);
  std::atomic<int> built = 0;
  std::vector<std::thread> runs;
  for (int i = 0; i < 6; ++i)
    runs.emplace_back([&] {
      const auto result = tokenize_samples(pairs_of(folder / "a.jsonl"), folder / "cache");
      built += result.built;
      if (IndexedDataset(result.prefix).index().documents() != 5000) built += 100;
    });
  for (std::thread& run : runs) run.join();
  CHECK(built == 1);
}

TEST_CASE("a process that waits for the tokens of another one shows that it is alive") {
  const TemporaryFolder folder;
  write_rows(folder / "a.jsonl", 2000);
  const SampleSource source = pairs_of(folder / "a.jsonl");
  int first_alive = 0, second_alive = 0, waits = 0;
  std::optional<std::thread> second;
  bool second_built = true;
  const auto progress = [&](const BuildProgress&) {
    if (second) return;
    second.emplace([&] {  // while the first has the lock
      second_built = tokenize_samples(source, folder / "cache",
                                      {.waits = [&] { ++waits; }, .alive = [&] { ++second_alive; }})
                         .built;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  };
  CHECK(tokenize_samples(source, folder / "cache",
                         {.progress = progress, .alive = [&] { ++first_alive; }})
            .built);
  second->join();
  CHECK_FALSE(second_built);
  CHECK(first_alive > 0);
  CHECK(second_alive > 5);
  CHECK(waits == 1);
}

TEST_CASE("a broken row is named by file and line, and leaves nothing in the cache") {
  const TemporaryFolder folder;
  write_rows(folder / "a.jsonl", 100000);
  std::string text = read_file(folder / "a.jsonl");
  text[text.find("\"q77123\"") - 3] = '?';
  write_file_atomic(folder / "a.jsonl", text);
  const std::string broken = error_of(pairs_of(folder / "a.jsonl"), folder / "cache");
  CHECK(broken.find("a.jsonl:77124:") != std::string::npos);
  CHECK(broken.ends_with("/ fix the line, or remove it"));
  for (const auto& entry : fs::directory_iterator(folder / "cache"))
    CHECK(entry.path().extension() == ".lock");
  write_rows(folder / "b.jsonl", 3);
  SampleSource source = pairs_of(folder / "b.jsonl");
  source.completion = "{answer}";
  const std::string columns = error_of(source, folder / "cache");
  CHECK(columns.find("b.jsonl:1: the row has no column \"answer\", but q, a") != std::string::npos);
}

TEST_CASE("the rows of a JSON list lie in a folder of the process, and those of dead ones go") {
  const TemporaryFolder folder;
  const auto list = [&](int rows) {
    std::string text;
    for (int i = 0; i < rows; ++i)
      text += fmt::format("{}{{\"q\": \"q{}\", \"a\": \"a\"}}", i == 0 ? "[" : ",\n", i);
    write_file_atomic(folder / "a.json", text + "]");
    return pairs_of(folder / "a.json");
  };
  const auto folders = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder / "cache"))
      count += entry.is_directory();
    return count;
  };
  const auto hash = tokenize_samples(list(3), folder / "cache").prefix;
  CHECK(folders() == 0);
  for (const char* part : {".bin", ".idx", ".mask", ".hash"}) fs::remove(fs::path(hash) += part);
  // One folder is of a process that was killed, one of another host's process, which may live.
  const std::string dead = hash.string() + ".rows.tmp.2147480000.0.";
  fs::create_directories(dead + host_name() + "/x"), fs::create_directories(dead + "elsewhere");
  CHECK(tokenize_samples(list(3), folder / "cache").built);
  CHECK(folders() == 1);
  CHECK(fs::exists(dead + "elsewhere"));
  write_file_atomic(folder / "a.json", "[{");  // the conversion fails
  CHECK(error_of(pairs_of(folder / "a.json"), folder / "cache") != "none");
  CHECK(folders() == 1);
}

TEST_CASE("an error in a row names the user's file, and settings of recipes") {
  const TemporaryFolder folder;
  const std::string chat = R"({"dialog": [{"role": "assistant", "content": "x"}]})";
  SampleSource source{.format = SampleSource::Format::messages,
                      .files = {(folder / "a.json").string()},
                      .column = "messages",
                      .chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}",
                      .tokenizer = "byte",
                      .name = "dataset.train"};
  write_file_atomic(folder / "a.json", "[" + chat + ", " + chat + "]");
  CHECK(error_of(source, folder / "cache") ==
        "dataset.train: " + (folder / "a.json, row 1: ").string() +
            "the line lacks the field \"messages\" / write dataset.train.column: dialog");
  source.column = "dialog";
  write_file_atomic(folder / "a.json", "[" + chat + ", 5]");
  CHECK_THAT(error_of(source, folder / "cache"), Catch::Matchers::Contains("a.json, row 2: not a"));
  if (!reads_parquet()) return;
  fs::copy_file(fs::path(MTRAIN_SOURCE_DIR) / "test/golden/rows/squad.parquet",
                folder / "rows.parquet");
  CHECK_THAT(error_of(pairs_of(folder / "rows.parquet"), folder / "cache"),
             Catch::Matchers::Contains((folder / "rows.parquet, row 1: ").string()));
}

TEST_CASE("Parquet has the rows of its JSON lines, or is refused with its conversion") {
  const fs::path golden = fs::path(MTRAIN_SOURCE_DIR) / "test/golden/rows";
  const TemporaryFolder folder;
  fs::create_directories(folder / "d/plain_text");
  fs::copy_file(golden / "squad.parquet", folder / "d/plain_text/train-00000-of-00001.parquet");
  SampleSource source = pairs_of(folder / "d");
  source.prompt = "{context} {question} ", source.completion = "{answers.text[0]|trim}";
  if (!reads_parquet()) {
    const std::string error = error_of(source, folder / "cache");
    CHECK(error.find("train-00000-of-00001.parquet is parquet") != std::string::npos);
    CHECK(error.find("pandas.read_parquet(") != std::string::npos);
    return;
  }
  const auto rows = tokenize_samples(source, folder / "cache").prefix;
  source.files = {(golden / "squad.jsonl").string()};
  const auto lines = tokenize_samples(source, folder / "cache").prefix;
  CHECK(rows != lines);
  for (int64_t d = 0; d < 8; ++d) CHECK(shown(rows, d) == shown(lines, d));
  for (const auto& entry : fs::directory_iterator(folder / "cache"))
    CHECK_FALSE(entry.is_directory());
  std::ofstream(folder / "broken.parquet") << "PAR1";
  source.files = {(folder / "broken.parquet").string()};
  CHECK(error_of(source, folder / "cache").find("cannot read") != std::string::npos);
}

TEST_CASE("files are those of the split and of the subset") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "d/data");
  write_rows(folder / "d/data/train-00000.jsonl", 3);
  write_rows(folder / "d/data/validation.jsonl", 2);
  SampleSource source = pairs_of(folder / "d");
  CHECK(files_of(source).at(0).filename() == "train-00000.jsonl");
  source.split = *parse_split("validation[:1]");
  CHECK(files_of(source).size() == 1);
  CHECK(files_of(source).at(0).filename() == "validation.jsonl");
  fs::create_directories(folder / "d/main");
  write_rows(folder / "d/main/train.jsonl", 1);
  source.split = *parse_split("train"), source.subset = "main";
  CHECK(files_of(source) == std::vector<fs::path>{folder / "d/main/train.jsonl"});
  source.subset = "";
  source.split = *parse_split("dev");
  CHECK(error_of(source, folder / "cache").find("no rows of the split `dev`") != std::string::npos);
  source.files = {"no_such_file.jsonl"};
  CHECK(error_of(source, folder / "cache").find("no_such_file.jsonl") != std::string::npos);
}

TEST_CASE("held-out files, other splits and other subsets are not training data") {
  const TemporaryFolder folder;
  SampleSource source = pairs_of(folder / "d");
  // Returns the names of the files of a split, of a folder that has these files alone.
  const auto chosen = [&](const std::vector<std::string>& files, const std::string& split) {
    fs::remove_all(folder / "d");
    for (const std::string& name : files) {
      fs::create_directories((folder / "d" / name).parent_path());
      write_rows(folder / "d" / name, 1);
    }
    source.split = split.empty() ? Split{} : *parse_split(split);
    std::string names;
    try {
      for (const fs::path& file : files_of(source))
        names += (names.empty() ? "" : " ") + file.lexically_relative(folder / "d").string();
    } catch (const UserError& e) {
      return e.message() + " / " + e.hint();
    }
    return names;
  };
  const std::vector<std::string> held_out{"data.jsonl", "dev.jsonl", "valid.jsonl", "eval_2.jsonl",
                                          "my-val.jsonl"};
  CHECK(chosen(held_out, "") == "data.jsonl");
  CHECK(chosen(held_out, "validation") == "dev.jsonl my-val.jsonl valid.jsonl");
  CHECK(chosen(held_out, "test") == "eval_2.jsonl");
  CHECK(chosen({"train1.jsonl", "train2.jsonl", "notes.json"}, "") == "train1.jsonl train2.jsonl");
  CHECK(chosen({"part1.jsonl", "part10.jsonl"}, "part1") == "part1.jsonl");
  CHECK(chosen({"train/a.jsonl", "train/dev.jsonl", "b.jsonl"}, "") == "train/a.jsonl");
  const std::vector<std::string> shards{"data/train_sft-00000-of-00001.jsonl",
                                        "data/train_gen-00000-of-00001.jsonl"};
  CHECK(chosen(shards, "train_gen") == shards[1]);
  CHECK_THAT(chosen(shards, "train"), Catch::Matchers::Contains("no rows of the split `train`") &&
                                          Catch::Matchers::EndsWith("has: train_gen, train_sft"));
  CHECK(chosen({"en-train-00000-of-00001.jsonl"}, "train") == "en-train-00000-of-00001.jsonl");
  const std::vector<std::string> subsets{"main/train-00000-of-00001.jsonl",
                                         "socratic/train-00000-of-00001.jsonl"};
  CHECK_THAT(chosen(subsets, "train"), Catch::Matchers::Contains("has `train` in several folders: "
                                                                 "main, socratic / write "
                                                                 "dataset.train.subset: FOLDER"));
  source.subset = "main";
  CHECK(chosen(subsets, "train") == subsets[0]);
  source.subset = "";
  if (reads_parquet())
    CHECK_THAT(chosen({"train.jsonl", "train.parquet"}, ""),
               Catch::Matchers::Contains("JSON lines (train.jsonl) and as Parquet"));
}

TEST_CASE("a data set of which some files were not downloaded is refused with the command") {
  const TemporaryFolder folder;
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  const fs::path repository = folder / "datasets--org--set",
                 data = repository / "snapshots" / commit / "data";
  const Environment cache{"HF_HUB_CACHE", folder.path.c_str()};
  fs::create_directories(repository / "refs"), fs::create_directories(data);
  write_file_atomic(repository / "refs/main", commit);
  const auto add = [&](const char* name) { write_rows(data / name, 2); };
  add("train-00000-of-00003-abc.jsonl"), add("train-00002-of-00003-ef.jsonl");
  add("test-00000-of-00001.jsonl");
  SampleSource source = pairs_of("org/set");
  const std::string error = error_of(source, folder / "cache");
  CHECK_THAT(error, Catch::Matchers::Contains("only 2 of the 3 files") &&
                        Catch::Matchers::Contains("data/train-*-of-00003.jsonl are there") &&
                        Catch::Matchers::Contains("`hf download org/set --repo-type dataset`"));
  source.split = *parse_split("test");
  CHECK(files_of(source).size() == 1);
  source.split = *parse_split("train");
  source.files = {(data / "train-00000-of-00003-abc.jsonl").string()};  // a part, on purpose
  CHECK(files_of(source).size() == 1);
  source.files = {data.string()};
  CHECK_THAT(error_of(source, folder / "cache"), Catch::Matchers::Contains("/ to use a part"));
  add("train-00001-of-00003-0.jsonl");
  source.files = {"org/set"};
  CHECK(files_of(source).size() == 3);
}

TEST_CASE("random tokens are below the vocabulary, and the last has no label") {
  const MockDataset mock({.seq_length = 8, .samples = 3, .vocab_size = 10, .seed = 1});
  Sample a, b, again;
  mock.sample(0, a), mock.sample(1, b), mock.sample(3, again);
  CHECK(a.input != b.input);
  CHECK(a.input == again.input);
  CHECK(a.label.back() == -1);
  CHECK(std::equal(a.label.begin(), a.label.end() - 1, a.input.begin() + 1));
  for (const int32_t id : a.input) CHECK((id >= 0 && id < 10));
}

}  // namespace data_samples_test
