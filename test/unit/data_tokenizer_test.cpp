#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/decode_stream.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "test/support/temporary_folder.h"

namespace data_tokenizer_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;
using Json = nlohmann::json;

namespace {

const std::string kGolden = std::string(MTRAIN_SOURCE_DIR) + "/test/golden/tokenizer/";

std::vector<int32_t> ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> out;
  tokenizer.encode(text, out);
  return out;
}

Json golden(const std::string& name) { return Json::parse(read_file(kGolden + name + ".json")); }

// Returns the error for a tokenizer.json that `change` has damaged.
std::string complaint(const std::function<void(Json&)>& change) {
  Json json = golden("qwen2");
  change(json);
  try {
    make_bpe_tokenizer(json.dump(), "t.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::string random_bytes(std::mt19937& rng, size_t n) {
  std::string text(n, ' ');
  for (char& c : text) c = char(rng());
  return text;
}

// Returns words, marks, white space and malformed bytes, which reach every branch of the patterns.
std::string random_mixture(std::mt19937& rng, int pieces) {
  static const std::vector<std::string> parts = {"the",
                                                 "Ship",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\r\n",
                                                 "\t",
                                                 "'s",
                                                 "'LL",
                                                 "123",
                                                 "4",
                                                 ".",
                                                 "...",
                                                 "é",
                                                 "e\xCC\x81",
                                                 "世界",
                                                 "\xF0\x9F\x98\x80",
                                                 "\xFF",
                                                 "\xC3",
                                                 "\xED\xA0\x80",
                                                 "\xC2\xA0",
                                                 "<|endoftext|>",
                                                 "<tool>",
                                                 "<",
                                                 "x",
                                                 "_",
                                                 "\\"};
  std::string text;
  for (int i = 0; i < pieces; ++i) text += parts[rng() % parts.size()];
  return text;
}

}  // namespace

TEST_CASE("byte tokenizer: ids are the bytes") {
  const auto tokenizer = load_tokenizer("byte");
  REQUIRE(tokenizer->vocab_size() == 257);
  REQUIRE(tokenizer->eod() == 256);
  REQUIRE(ids(*tokenizer, std::string_view("a\0\xFF", 3)) == std::vector<int32_t>{97, 0, 255});
  REQUIRE(tokenizer->decode(std::vector<int32_t>{104, 105, 256}) == "hi");
  REQUIRE_THROWS_WITH(tokenizer->decode(std::vector<int32_t>{257}), Contains("257"));
  REQUIRE_THROWS_AS(tokenizer->decode(std::vector<int32_t>{-1}), UserError);
}

TEST_CASE("streamed text never splits a character") {
  const auto tokenizer = load_tokenizer("byte");
  const std::string text = "a\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80z";
  DecodeStream stream(*tokenizer);
  std::vector<std::string> parts;
  for (char c : text) parts.push_back(stream.push(uint8_t(c)));
  REQUIRE(parts == std::vector<std::string>{"a", "", "\xC3\xA9", "", "", "\xE4\xB8\x96", "", "", "",
                                            "\xF0\x9F\x98\x80", "z"});
  REQUIRE(stream.finish().empty());
  // Bytes that belong to no character are printed at once.
  DecodeStream malformed(*tokenizer);
  std::string out;
  for (char c : std::string_view("\xFF\xE4z\xE0\x80\xC3")) out += malformed.push(uint8_t(c));
  REQUIRE(out == "\xFF\xE4z\xE0\x80");
  REQUIRE(malformed.finish() == "\xC3");
  // A character that the context has begun is completed.
  const std::vector<int32_t> context = {'x', 0xC3};
  DecodeStream continued(*tokenizer, context);
  REQUIRE(continued.push(0xA9) == "\xC3\xA9");
}

TEST_CASE("the start of a character is distinguished from bytes that begin none") {
  // Every prefix of every character is unfinished by all of its bytes; no other bytes are.
  for (uint32_t c = 0x80; c < 0x110000; c += c < 0x3000 ? 1 : 61) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string character;
    append_utf8(c, character);
    REQUIRE(utf8_unfinished(character) == 0);
    for (size_t n = 1; n < character.size(); ++n)
      REQUIRE(utf8_unfinished("e" + character.substr(0, n)) == n);
  }
  for (const char* text : {"", "e", "\x80", "\xBF\xBF", "\xC0", "\xC1", "\xF5", "\xFF", "\xE0\x80",
                           "\xED\xA0", "\xF0\x80", "\xF4\x90", "\xE4\xB8z"})
    REQUIRE(utf8_unfinished(text) == 0);
}

TEST_CASE("ids equal those of the reference implementation") {
  const Json expected = golden("expected");
  const auto strings = expected["strings"].get<std::vector<std::string>>();
  REQUIRE(strings.size() >= 60);
  REQUIRE(expected["ids"].size() == 11);
  for (const auto& [name, lists] : expected["ids"].items()) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".json");
    REQUIRE(tokenizer->eod().has_value());
    for (size_t i = 0; i < strings.size(); ++i) {
      INFO(name << " " << Json(strings[i]).dump(-1, ' ', true));
      CHECK(Json(ids(*tokenizer, strings[i])) == lists[i]);
    }
  }
}

TEST_CASE("byte-level BPE gives every byte back") {
  std::mt19937 rng(1);
  for (const char* name : {"gpt2", "llama3", "starcoder"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".json");
    for (int i = 0; i < 300; ++i) {
      const std::string text = i % 2 ? random_mixture(rng, i / 4) : random_bytes(rng, size_t(i));
      INFO(name << " " << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
      const auto tokens = ids(*tokenizer, text);
      REQUIRE(tokenizer->decode(tokens) == text);
      for (int32_t token : tokens) REQUIRE((token >= 0 && token < tokenizer->vocab_size()));
    }
  }
}

TEST_CASE("long words merge as short ones do") {
  // The heap (long words) must find the merge that the scan (short words) finds: the leftmost of
  // the lowest rank, here with ties.
  const auto tokenizer = load_tokenizer(kGolden + "gpt2.json");
  Json json = golden("gpt2");
  std::map<std::pair<std::string, std::string>, int> rank;
  for (const auto& merge : json["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    rank.insert(
        {{text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)}, int(rank.size())});
  }
  std::mt19937 rng(2);
  for (size_t n : {40u, 47u, 48u, 49u, 50u, 200u, 1000u}) {
    std::string word;
    for (size_t i = 0; i < n; ++i) word += "theainsor"[rng() % 9];
    std::vector<std::string> symbols;
    for (char c : word) symbols.push_back(std::string(1, c));
    while (true) {  // the definition, spelt out
      size_t best = symbols.size();
      int lowest = int(rank.size());
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = rank.find({symbols[i], symbols[i + 1]});
        if (found != rank.end() && found->second < lowest) lowest = found->second, best = i;
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + int64_t(best) + 1);
    }
    std::vector<int32_t> expected;
    for (const auto& symbol : symbols)
      expected.push_back(json["model"]["vocab"][symbol].get<int32_t>());
    REQUIRE(ids(*tokenizer, word) == expected);
  }
}

TEST_CASE("text may be divided where safe_cut says") {
  std::mt19937 rng(3);
  for (const char* name : {"gpt2", "llama3", "qwen2", "starcoder"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".json");
    int cuts = 0;
    for (int i = 0; i < 2000; ++i) {
      const std::string text =
          random_mixture(rng, 12) + (i % 2 ? "d.\nThe" : "a the") + random_mixture(rng, 2);
      const size_t cut = tokenizer->safe_cut(text);
      if (cut == 0) continue;
      ++cuts;
      auto parts = ids(*tokenizer, text.substr(0, cut));
      tokenizer->encode(std::string_view(text).substr(cut), parts);
      INFO(name << " " << cut << " "
                << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
      REQUIRE(parts == ids(*tokenizer, text));
    }
    REQUIRE(cuts > 1500);
  }
  // Without ByteLevel's own pattern nothing divides words either: a merge may cross any place.
  const Json bytes_alone = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  for (const Json& pre :
       {bytes_alone, Json{{"type", "Sequence"}, {"pretokenizers", {digits, bytes_alone}}}}) {
    Json json = golden("gpt2");
    json["pre_tokenizer"] = pre;
    const auto tokenizer = make_bpe_tokenizer(json.dump(), "t.json");
    REQUIRE(tokenizer->safe_cut("one.\ntwo three") == 0);
  }
  // For unknown patterns no place is safe.
  REQUIRE(load_tokenizer(kGolden + "removed.json")->safe_cut("one.\ntwo three") == 0);
  REQUIRE(load_tokenizer(kGolden + "prefix.json")->safe_cut("one.\ntwo three") == 0);
  REQUIRE(load_tokenizer("byte")->safe_cut("one\n\ntwo\n") == 5);
  REQUIRE(load_tokenizer("byte")->safe_cut("one") == 0);
}

TEST_CASE("normal form C") {
  const auto tokenizer = load_tokenizer(kGolden + "qwen2.json");
  REQUIRE(tokenizer->decode(ids(*tokenizer, "cafe\u0301")) == "caf\u00e9");
  // Only the well-formed runs are composed; other bytes stay.
  REQUIRE(tokenizer->decode(ids(*tokenizer,
                                "\xFF"
                                "e\u0301\xC3<tool>")) == "\xFF\u00e9\xC3<tool>");
  REQUIRE(tokenizer->decode(ids(*tokenizer, "plain\xFF")) == "plain\xFF");
}

TEST_CASE("threads may share a tokenizer") {
  const auto tokenizer = load_tokenizer(kGolden + "llama3.json");
  std::mt19937 rng(4);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 50; ++i) {
    texts.push_back(random_mixture(rng, 40));
    alone.push_back(ids(*tokenizer, texts.back()));
  }
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int repeat = 0; repeat < 5; ++repeat)
        for (size_t i = 0; i < texts.size(); ++i) wrong[t] += ids(*tokenizer, texts[i]) != alone[i];
    });
  for (auto& thread : threads) thread.join();
  REQUIRE(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

TEST_CASE("the end-of-document token") {
  const Json json = golden("gpt2");
  const int32_t end = json["added_tokens"][0]["id"].get<int32_t>();
  REQUIRE(make_bpe_tokenizer(json.dump(), "t")->eod() == end);
  REQUIRE(make_bpe_tokenizer(json.dump(), "t", "<tool>")->eod() ==
          json["added_tokens"][1]["id"].get<int32_t>());
  REQUIRE_THROWS_WITH(make_bpe_tokenizer(json.dump(), "t", "<none>"), Contains("\"<none>\""));
  Json without = json;
  without.erase("added_tokens");
  REQUIRE(!make_bpe_tokenizer(without.dump(), "t")->eod().has_value());
}

TEST_CASE("a line of merges.txt that names its version is not a merge") {
  Json json = golden("gpt2");
  const auto ids = [](const Json& of) {
    std::vector<int32_t> all;
    make_bpe_tokenizer(of.dump(), "t")->encode("the quick brown fox", all);
    return all;
  };
  const std::vector<int32_t> plain = ids(json);
  Json& merges = json["model"]["merges"];
  merges.insert(merges.begin(), "#version: 0.2");
  REQUIRE(ids(json) == plain);
}

TEST_CASE("tokenizers that are deep or of another kind of file cost a message") {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const Json json = golden("gpt2");
  for (const char* key : {"normalizer", "pre_tokenizer", "decoder", "post_processor", "padding"}) {
    const std::string text = fmt::format("{{\"{}\": {}, ", key, deep) + json.dump().substr(1);
    REQUIRE_THROWS_WITH(make_bpe_tokenizer(text, "t.json"), Contains("t.json: not JSON at byte"));
  }
  REQUIRE_THROWS_WITH(make_bpe_tokenizer(json.dump(), "t.json", "", deep),
                      Contains("tokenizer_config.json beside t.json: not JSON at byte 65"));
  REQUIRE_THROWS_WITH(load_tokenizer("/dev/zero"), Contains("/dev/zero is not a regular file"));
}

TEST_CASE("unsupported and malformed parts are named") {
  REQUIRE_THROWS_WITH(load_tokenizer("/none/such"), Contains("/none/such"));
  REQUIRE_THROWS_WITH(make_bpe_tokenizer("{", "t.json"), Contains("t.json: not JSON at byte 2"));
  REQUIRE_THROWS_AS(make_bpe_tokenizer("[]", "t.json"), UserError);
  REQUIRE_THROWS_AS(make_bpe_tokenizer("{}", "t.json"), UserError);
  const auto says = [](const char* text, const std::function<void(Json&)>& change) {
    CHECK_THAT(complaint(change), Contains(text) && Contains("t.json"));
  };
  says("normalizer Nmt", [](Json& j) { j["normalizer"]["type"] = "Nmt"; });
  says("no text \"prepend\"", [](Json& j) { j["normalizer"]["type"] = "Prepend"; });
  says("pattern is empty", [](Json& j) {
    j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
  });
  says("\"Unigram\"", [](Json& j) { j["model"]["type"] = "Unigram"; });
  says("dropout 0.1", [](Json& j) { j["model"]["dropout"] = 0.1; });
  says("byte_fallback must be", [](Json& j) { j["model"]["byte_fallback"] = 1; });
  says("from_slow=True", [](Json& j) { j["model"]["type"] = "WordPiece"; });
  says("end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  says("BertPreTokenizer",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["type"] = "BertPreTokenizer"; });
  says("prepend_scheme sometimes", [](Json& j) {
    j["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}};
  });
  says("decoder CTC", [](Json& j) { j["decoder"] = {{"type", "CTC"}}; });
  says("after Fuse", [](Json& j) {
    j["decoder"] = {{"type", "Sequence"},
                    {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}};
  });
  says("after ByteLevel", [](Json& j) {
    j["decoder"] = {{"type", "Sequence"},
                    {"decoders", {{{"type", "ByteLevel"}}, {{"type", "ByteFallback"}}}}};
  });
  says("post_processor Wrap", [](Json& j) { j["post_processor"] = {{"type", "Wrap"}}; });
  says("has no text", [](Json& j) {
    j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}};
  });
  says("names the id 5000", [](Json& j) {
    j["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 5000}}};
  });
  says("after ByteLevel", [](Json& j) {
    auto& list = j["pre_tokenizer"]["pretokenizers"];
    list.push_back(list[0]);
  });
  says("behavior Sideways",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Sideways"; });
  for (const char* bad : {"(", "[z-a]", "\\w+", "\\bx", "[a[b]]", "[a&&b]", "\\", "\\u12", "[]",
                          // Oniguruma and PCRE2 interpret these differently.
                          "a{1,3}+", "a{1,3}*", "a{2}?", "a{,3}", "a{x}", "(?m)a", "(?s).",
                          "(?im:a)", "(?P<n>a)", "(?1)", "(*UTF)a"})
    says("regular expression",
         [&](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = bad; });
  for (const char* good : {"a{2}", "a{2,}b{1,3}?", "\\p{L}{1,3}", "\\x{41}", "(?i:a)|(?:b)",
                           "(?i)a", "a(?!b)(?=c)(?<!d)(?<=c)(?>e)", "[({]", "\\{,3}"})
    CHECK(complaint([&](Json& j) {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = good;
          }) == "no error");
  says("the tokenizers library gives it", [](Json& j) { j["added_tokens"][0]["id"] = 5000; });
  says("needs the token \"A\"", [](Json& j) { j["model"]["vocab"].erase("A"); });
  says("merge 3", [](Json& j) { j["model"]["merges"][3] = "a b c"; });
  says("merge 0", [](Json& j) { j["model"]["merges"][0] = {"a", "none-such"}; });
  says("id -1", [](Json& j) { j["model"]["vocab"]["A"] = -1; });
  says("id 99999999999", [](Json& j) { j["model"]["vocab"]["A"] = 99999999999; });
  says("id \"7\"", [](Json& j) { j["added_tokens"][0]["id"] = "7"; });
  CHECK(complaint([](Json&) {}) == "no error");
}

namespace {

const std::string kLayouts = kGolden + "layouts/";

std::vector<std::string> layouts() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kLayouts)) {
    const std::string file = entry.path().filename().string();
    const size_t end = file.find(".samples.json");
    if (end != std::string::npos) names.push_back(file.substr(0, end));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Expects the library's ids and text for each sample, also if the text comes token by token.
void expect_samples(const std::string& name, const Tokenizer& tokenizer, const Json& samples) {
  REQUIRE(samples.size() >= 8);
  for (const auto& sample : samples) {
    INFO(name << " " << sample[0].dump(-1, ' ', true));
    const auto tokens = ids(tokenizer, sample[0].get<std::string>());
    CHECK(Json(tokens) == sample[1]);
    CHECK(tokenizer.decode(tokens) == sample[2].get<std::string>());
    DecodeStream stream(tokenizer);
    std::string text;
    for (int32_t id : tokens) {
      const std::string part = stream.push(id);
      CHECK(utf8_run_end(part, 0, true) == part.size());
      text += part;
    }
    CHECK(text + stream.finish() == sample[2].get<std::string>());
  }
}

}  // namespace

TEST_CASE("layouts of real families give the ids and texts of the tokenizers library") {
  const auto names = layouts();
  REQUIRE(names.size() == 15);
  for (const std::string& name : names) {
    const auto tokenizer = load_tokenizer(kLayouts + name + ".json");
    const Json expected = Json::parse(read_file(kLayouts + name + ".samples.json"));
    expect_samples(name, *tokenizer, expected["samples"]);
    const auto prefix = tokenizer->text_prefix();
    CHECK(Json(std::vector<int32_t>(prefix.begin(), prefix.end())) == expected["prefix"]);
    CHECK(tokenizer->eod().has_value());
  }
}

TEST_CASE("each feature of tokenizer.json gives the ids and texts of the tokenizers library") {
  const Json file = Json::parse(read_file(kLayouts + "features.json"));
  REQUIRE(file["features"].size() >= 35);
  for (const auto& [name, feature] : file["features"].items()) {
    Json json = feature["tokenizer"];
    json["model"].update(file["words"][feature["words"].get<size_t>()]);
    expect_samples(name, *make_bpe_tokenizer(json.dump(), name), feature["samples"]);
  }
}

TEST_CASE("a document that is one word merges as a whole would") {
  // Only some pairs of characters can be inside a merge; the others cut the text into pieces.
  const Json json = Json::parse(read_file(kLayouts + "llama2.json"));
  const auto tokenizer = load_tokenizer(kLayouts + "llama2.json");
  std::map<std::pair<std::string, std::string>, int> rank;
  for (const auto& merge : json["model"]["merges"]) {
    const auto pair = merge.get<std::pair<std::string, std::string>>();
    rank[pair] = int(rank.size());
  }
  std::mt19937 rng(6);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += " theoinsar."[rng() % 11];
    std::vector<std::string> symbols = {"\u2581"};
    for (char c : text) symbols.push_back(c == ' ' ? "\u2581" : std::string(1, c));
    while (true) {
      size_t best = symbols.size();
      int lowest = std::numeric_limits<int>::max();
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = rank.find({symbols[i], symbols[i + 1]});
        if (found != rank.end() && found->second < lowest) lowest = found->second, best = i;
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + int64_t(best) + 1);
    }
    std::vector<int32_t> expected;
    for (const auto& symbol : symbols)
      expected.push_back(json["model"]["vocab"][symbol].get<int32_t>());
    REQUIRE(ids(*tokenizer, text) == expected);
  }
}

TEST_CASE("any bytes come back where bytes have tokens") {
  std::mt19937 rng(7);
  for (const char* name : {"llama2", "mistral_v3", "gemma"}) {
    const auto tokenizer = load_tokenizer(kLayouts + name + ".json");
    for (int i = 0; i < 200; ++i) {
      std::string text = "x" + (i % 2 ? random_mixture(rng, i / 4) : random_bytes(rng, size_t(i)));
      INFO(name << " " << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
      CHECK(tokenizer->decode(ids(*tokenizer, text)) == text);
    }
  }
}

TEST_CASE("bytes without a token get the ids of the tokenizers library") {
  const auto smollm2 = load_tokenizer(kLayouts + "smollm2.json");
  const std::vector<int32_t> without = {ids(*smollm2, "a")[0], ids(*smollm2, "z")[0]};
  REQUIRE(ids(*smollm2, "a\x04z") == without);  // it has no unknown token
  // An unknown token that the vocabulary lacks is an error only once it is needed.
  Json json = Json::parse(read_file(kLayouts + "smollm2.json"));
  json["model"]["unk_token"] = "<none>";
  const auto strict = make_bpe_tokenizer(json.dump(), "t.json");
  REQUIRE(ids(*strict, "az") == ids(*smollm2, "az"));
  REQUIRE_THROWS_WITH(ids(*strict, "a\x04z"), Contains("<none>"));
}

TEST_CASE("the tokens before a text follow the template and tokenizer_config.json") {
  const std::string llama2 = read_file(kLayouts + "llama2.json");
  const std::string qwen2 = read_file(kLayouts + "qwen2.json");
  const std::string glm4 = read_file(kLayouts + "glm4.json");
  const auto prefix = [](const std::string& json, const std::string& config) {
    const auto tokenizer = make_bpe_tokenizer(json, "t.json", "", config);
    return tokenizer->decode(tokenizer->text_prefix());
  };
  CHECK(prefix(llama2, "") == "<s>");
  CHECK(prefix(llama2, R"({"add_bos_token": false, "bos_token": "<s>"})").empty());
  CHECK(prefix(llama2, R"({"add_bos_token": true, "bos_token": {"content": "<s>"}})") == "<s>");
  CHECK(prefix(glm4, "") == "[gMASK]<sop>");
  CHECK(prefix(qwen2, "").empty());
  CHECK(prefix(qwen2, R"({"add_bos_token": false, "bos_token": null})").empty());
  CHECK(prefix(qwen2, R"({"add_bos_token": true, "bos_token": "<|im_start|>"})") == "<|im_start|>");
  REQUIRE_THROWS_WITH(prefix(qwen2, R"({"add_bos_token": true, "bos_token": null})"),
                      Contains("add_bos_token"));
  REQUIRE_THROWS_WITH(prefix(qwen2, "{"), Contains("tokenizer_config.json beside t.json"));

  CHECK(make_bpe_tokenizer(llama2, "t")->bos() == 1);
  CHECK(!make_bpe_tokenizer(qwen2, "t")->bos().has_value());
  CHECK(make_bpe_tokenizer(qwen2, "t", "", R"({"bos_token": "<|im_end|>"})")->bos().has_value());
  // The configuration's token ends documents; without one, a usual one does.
  CHECK(make_bpe_tokenizer(qwen2, "t", "", R"({"eos_token": "<|im_end|>"})")->eod() !=
        make_bpe_tokenizer(qwen2, "t")->eod());
  const auto gemma = Json::parse(read_file(kLayouts + "gemma.json"));
  CHECK(make_bpe_tokenizer(gemma.dump(), "t")->eod() ==
        gemma["model"]["vocab"]["<eos>"].get<int32_t>());
  Json nemo = Json::parse(read_file(kLayouts + "mistral_nemo.json"));
  nemo["added_tokens"][2]["content"] = "<end>";
  CHECK(!make_bpe_tokenizer(nemo.dump(), "t")->eod().has_value());
  CHECK(make_bpe_tokenizer(nemo.dump(), "t", "", R"({"eos_token": {"content": "<end>"}})")->eod() ==
        nemo["added_tokens"][2]["id"].get<int32_t>());
}

TEST_CASE("the ids that end generated text") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    write_file_atomic(folder.path / name, text);
  };
  const auto byte = make_byte_tokenizer();
  using Ids = std::vector<int32_t>;
  CHECK(read_eos_ids(folder.path, *byte) == Ids{256});
  write("config.json", R"({"eos_token_id": 7})");
  CHECK(read_eos_ids(folder.path, *byte) == Ids{7});
  write("generation_config.json", R"({"do_sample": true})");
  CHECK(read_eos_ids(folder.path, *byte) == Ids{7});
  write("generation_config.json", R"({"eos_token_id": [3, 9]})");
  CHECK(read_eos_ids(folder.path, *byte) == Ids{3, 9});
  for (const char* bad : {R"({"eos_token_id": "x"})", R"({"eos_token_id": [-1]})", "[]", "{"}) {
    write("generation_config.json", bad);
    REQUIRE_THROWS_WITH(read_eos_ids(folder.path, *byte), Contains("generation_config.json"));
  }
  write("generation_config.json", R"({"eos_token_id": 3, "eos_token_id": 9})");
  REQUIRE_THROWS_WITH(read_eos_ids(folder.path, *byte),
                      Contains("generation_config.json: the key `eos_token_id` is given twice"));
}

TEST_CASE("a key that a tokenizer's file has twice is named") {
  const std::string text = read_file(kLayouts + "llama2.json");
  const std::string begin = R"("vocab":{)";
  const size_t at = text.find(begin);
  REQUIRE(at != std::string::npos);
  const std::string twice =
      text.substr(0, at) + begin + R"("word":0,"word":1,)" + text.substr(at + begin.size());
  REQUIRE_THROWS_WITH(make_bpe_tokenizer(twice, "t.json", "", ""),
                      Contains("t.json: the key `model.vocab.word` is given twice"));
  REQUIRE_THROWS_WITH(
      make_bpe_tokenizer(text, "t.json", "", R"({"eos_token": "</s>", "eos_token": "<s>"})"),
      Contains("tokenizer_config.json beside t.json: the key `eos_token` is given twice"));
}

TEST_CASE("a file is read once, until it changes") {
  const TemporaryFolder folder;
  const auto path = folder.path / "tokenizer.json";
  write_file_atomic(path, read_file(kLayouts + "llama2.json"));
  const auto first = load_tokenizer(folder.path.string());
  REQUIRE(load_tokenizer(path.string()) == first);
  REQUIRE(first->text_prefix().size() == 1);
  write_file_atomic(folder.path / "tokenizer_config.json",
                    R"({"add_bos_token": false, "bos_token": "<s>"})");
  REQUIRE(load_tokenizer(path.string())->text_prefix().empty());
}

TEST_CASE("tokenizers in other files are refused with the call that converts them") {
  const TemporaryFolder folder;
  for (const char* name : {"tokenizer.model", "vocab.json", "tekken.json"}) {
    write_file_atomic(folder.path / name, "x");
    REQUIRE_THROWS_WITH(load_tokenizer(folder.path.string()),
                        Contains("save_pretrained('" + folder.path.string() + "')"));
    REQUIRE_THROWS_WITH(load_tokenizer((folder.path / "tokenizer.model").string()),
                        Contains("save_pretrained"));
    std::filesystem::remove(folder.path / name);
    write_file_atomic(folder.path / "tokenizer.model", "x");
  }
}

}  // namespace data_tokenizer_test
