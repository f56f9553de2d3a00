// Tests how conversations become tokens with a mask: what the assistant says counts as labels.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/build/build.h"
#include "data/chat/encode_chat.h"
#include "data/dataset/indexed_dataset.h"
#include "test/support/temporary_folder.h"

namespace data_chat_test {

using namespace mtrain;
using namespace mtrain::data;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const char* const kPlain =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";
const char* const kMarked =
    "{% for m in messages %}<{{ m.role[0] }}>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}"
    "{% else %}{{ m.content }};{% endif %}{% endfor %}";

Conversation conversation_of(const std::string& row) {
  return read_conversation(parse_ordered_json(row, "the row"), "messages");
}

// Returns the text with brackets around the assistant's parts.
std::string marked(const ChatTemplate& chat, const std::string& row, bool headers = false) {
  const ChatText text = chat.training_text(conversation_of(row), headers);
  std::string out = text.text;
  for (auto span = text.spans.rbegin(); span != text.spans.rend(); ++span)
    out.insert(span->second, "]"), out.insert(span->first, "[");
  return out;
}

const std::string kTwoTurns =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]})";

// Returns the error of a build of these lines with a template.
std::string refusal(const std::string& lines, const char* source = kPlain) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "a.jsonl", lines);
  const BuildOptions options{.inputs = {folder / "a.jsonl"},
                             .output = folder / "out",
                             .messages_field = "messages",
                             .chat = std::make_shared<const ChatTemplate>(source, "T"),
                             .append_eod = false};
  try {
    build_dataset(options, *make_byte_tokenizer());
  } catch (const UserError& e) {
    return std::string(e.what()).substr(e.message().rfind('/', e.message().find(".jsonl")) + 1);
  }
  return "no error";
}

}  // namespace

TEST_CASE("the assistant's text is found by prefixes, and by blocks of generation") {
  const std::string expected = "<u>hi;<a>[yo;]<u>b;<a>[c;]";
  CHECK(marked(ChatTemplate(kPlain, "T"), kTwoTurns) == expected);
  CHECK(marked(ChatTemplate(kMarked, "T"), kTwoTurns) == expected);
  CHECK(marked(ChatTemplate(kPlain, "T"), kTwoTurns, true) == "<u>hi;[<a>yo;]<u>b;[<a>c;]");
  CHECK(marked(ChatTemplate(kMarked, "T"), kTwoTurns, true) == expected);
  // Without a prompt for the answer, the name of the role belongs to it.
  CHECK(marked(ChatTemplate("{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}",
                            "T"),
               kTwoTurns) == "<u>hi[<a>yo]<u>b[<a>c]");
}

TEST_CASE("plain messages reach the template as texts, as AutoModel's ChatDataset writes them") {
  const char* const source =
      "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content + ';' }}"
      "{% for c in m.tool_calls %}{{ c.id }} {{ c.type }} {{ c.function.arguments }};{% endfor %}"
      "{{ '<' + m.reasoning_content + '>' if m.reasoning_content is defined }}{% endfor %}";
  const auto written = [&](const std::string& messages, const std::string& more = "") {
    const auto row = parse_ordered_json("{\"messages\": [" + messages + "]" + more + "}", "row");
    return ChatTemplate(source, "T").render(read_conversation(row, "messages", true), false);
  };
  CHECK(written(R"({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]})") ==
        "a b;");
  CHECK(written(R"({"role": "user", "content": null}, {"role": "tool"},
                   {"from": "gpt", "value": "x"})") == ";;x;");
  CHECK(written(R"({"role": "assistant", "content": "", "reasoning_content": null, "tool_calls": [
                   {"function": {"name": "f", "arguments": {"x": [1, "\u00e9"]}}},
                   {"id": "c", "function": {"name": "g", "arguments": "{}"}}]})") ==
        ";call_0 function {\"x\": [1, \"\\u00e9\"]};c function {};<>");
  CHECK(written(R"({"role": "user", "content": "a"})", R"(, "tools": "[{\"name\": \"f\"}]")") ==
        "[{\"name\": \"f\"}]a;");
  CHECK(written(R"({"role": "user", "content": "a"})", R"(, "tools": "[]")") == "a;");
  CHECK_THROWS_WITH(written(R"({"role": "user", "content": [{"type": "image"}]})"),
                    Contains("mtrain reads texts alone"));
  CHECK_THROWS_WITH(written(R"({"role": "user", "content": "a"})", R"(, "tools": "[")"),
                    Contains("\"tools\": not JSON"));
}

TEST_CASE("a template that changes earlier turns is refused without blocks of generation") {
  const ChatTemplate last_only(
      "{% for m in messages %}{{ m.content if loop.last or m.role == 'user' }};{% endfor %}", "T");
  CHECK_THROWS_WITH(last_only.training_text(conversation_of(kTwoTurns)),
                    Contains("T writes the messages before number 3 differently") &&
                        Contains("{% generation %}"));
}

TEST_CASE("conversations become tokens with a mask, wherever the input is divided") {
  const TemporaryFolder folder;
  std::string line = kTwoTurns;
  std::erase(line, '\n');
  write_file_atomic(folder / "a.jsonl", line + "\n\n" + line + "\n");
  BuildOptions options{.inputs = {folder / "a.jsonl"},
                       .output = folder / "out",
                       .messages_field = "messages",
                       .chat = std::make_shared<const ChatTemplate>(kMarked, "T"),
                       .append_eod = false,
                       .threads = 2};
  options.chunk_bytes = GENERATE(1, 1000);
  const BuildResult result = build_dataset(options, *make_byte_tokenizer());
  CHECK(result.parts[0].documents == 2);
  CHECK(result.parts[0].tokens == 2 * 22);
  CHECK(result.parts[0].labels == 2 * 5);
  const std::string mask = read_file(folder / "out.mask");
  std::string expected(22, '\0');  // of <u>hi;<a>yo;<u>b;<a>c;
  for (const size_t label : {9, 10, 11, 20, 21}) expected[label] = 1;
  CHECK(mask == expected + expected);
}

TEST_CASE("a token that crosses the end of an answer counts as a label") {
  // In this tokenizer each text begins with a space of its own, and merges cross the places.
  const auto tokenizer =
      load_tokenizer(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/tokenizer/layouts/llama2.json");
  const ChatText chat{"one two three four five", {{4, 7}, {14, 23}}};
  std::vector<int32_t> tokens, whole;
  std::vector<uint8_t> labels;
  encode_chat(chat, *tokenizer, tokens, labels);
  tokenizer->encode(chat.text, whole);
  CHECK(tokens == whole);
  REQUIRE(labels.size() == tokens.size());
  // Each token with a byte of a span is a label, and no other.
  std::string before;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string through = tokenizer->decode(std::span(tokens).first(i + 1));
    const size_t begin = before.size(), end = through.size();
    const bool inside = (begin < 7 && end > 4) || (begin < 23 && end > 14);
    INFO(i << " " << tokens[i] << " [" << begin << "," << end << ") " << through);
    CHECK(bool(labels[i]) == inside);
    before = through;
  }
}

TEST_CASE("each mistake of a conversation has an error with its line") {
  const auto one = [](const std::string& messages) { return "{\"messages\": " + messages + "}\n"; };
  const std::string good =
      one(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])");
  struct Row {
    std::string line, error;
  };
  const Row rows[] = {
      {"{", "a.jsonl:2: the line: not JSON at byte"},
      {"[]", "a.jsonl:2: not a JSON object"},
      {"{\"text\": \"x\"}", "a.jsonl:2: the line lacks the field \"messages\""},
      {R"({"chat": [{"role": "user"}]})", "give --messages-field chat"},
      {one("5"), "\"messages\" is a number, not a list of messages"},
      {one("[]"), "\"messages\" has no message"},
      {one("[5]"), "message 1: it is a number, not an object"},
      {one(R"([{"content":"a"}])"), "message 1: it has no \"role\""},
      {one(R"([{"from":"human","value":"a"}])"), "has no message of the assistant"},
      {one(R"([{"from":"humna","value":"a"}])"), "message 1: its role is \"humna\""},
      {one(R"([{"role":5,"content":"a"}])"), "message 1: its role is a number, not a text"},
      {one(R"([{"role":"asistant","content":"a"}])"), "did you mean \"assistant\"?"},
      {one(R"([{"role":"gpt","content":"a"}])"), "did you mean \"assistant\"?"},
      {one(R"([{"role":"user"}])"), "message 1: it has no \"content\""},
      {one(R"([{"role":"user","content":null}])"), "message 1: it has no \"content\""},
      {one(R"([{"role":"user","content":5}])"), "message 1: its content is a number, not a text"},
      {one(R"([{"role":"user","content":[{"type":"image"}]}])"), "mtrain reads texts alone"},
      {one(R"([{"role":"user","content":[{"type":"text"}]}])"), "has no \"text\""},
      {one(R"([{"role":"user","content":"a"}])"), "has no message of the assistant"},
      {R"({"messages":[{"role":"assistant","content":"a"}],"tools":5})", "\"tools\" is a number"},
  };
  for (const Row& row : rows) {
    const std::string error = refusal(good + row.line);
    CHECK_THAT(error, Contains(row.error) && Catch::Matchers::StartsWith("a.jsonl:2: "));
  }
  CHECK_THAT(refusal(good, "\n{{ raise_exception('no systems') }}"),
             Contains("a.jsonl:1: T, line 2: the template says: no systems"));
  CHECK_THAT(refusal(good, "{{ messages[0].foo.bar }}"), Contains("a.jsonl:1: T, line 1: "));
}

TEST_CASE("one broken conversation among 100,000 is named by its line") {
  std::string lines;
  for (int i = 1; i <= 100'000; ++i)
    lines += i == 73'210 ? "{\"messages\": [{\"content\": \"x\"}]}\n"
                         : "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}\n";
  CHECK_THAT(refusal(lines), Contains("a.jsonl:73210: message 1: it has no \"role\""));
}

TEST_CASE("a tokenizer's folder has the template and its special tokens") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "tokenizer.json", "{}");
  write_file_atomic(folder / "tokenizer_config.json",
                    R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template":
                        [{"name": "tool_use", "template": "no"},
                         {"name": "default", "template": "{{ bos_token }}{{ eos_token }}{{ tools is none }}"}]})");
  const Conversation empty;
  const std::string file = (folder / "tokenizer.json").string();
  for (const std::string& tokenizer : {std::string(folder / ""), file})
    CHECK(load_chat_template("", tokenizer)->render(empty, false) == "<s></s>True");
  write_file_atomic(folder / "chat_template.jinja", "file{{ bos_token }}");
  CHECK(load_chat_template("", file)->render(empty, false) == "file<s>");
  CHECK(load_chat_template("x{{ eos_token }}", file)->render(empty, false) == "x</s>");
  CHECK(
      load_chat_template((folder / "chat_template.jinja").string(), "byte")->render(empty, false) ==
      "file");
  CHECK_THROWS_WITH(load_chat_template("", "byte"),
                    Contains("the tokenizer byte has no chat template"));
  CHECK_THROWS_WITH(load_chat_template("nope.jinja", "byte"),
                    Contains("the chat template nope.jinja does not exist"));
}

TEST_CASE("a template may be the key chat_template of a JSON file") {
  const TemporaryFolder folder;
  const std::string file = (folder / "t.json").string();
  const auto rendered = [&](const std::string& text) {
    write_file_atomic(file, text);
    return load_chat_template(file, "byte")->render({}, false);
  };
  CHECK(rendered(R"( {"chat_template": "a\n{{ messages | length }}"})") == "a\n0");
  CHECK(rendered(R"({"chat_template": [{"name": "default", "template": "b"}]})") == "b");
  CHECK(rendered("{# a comment #}{{ 'c' }}") == "c");
  CHECK(rendered("{{ 'd' }}") == "d");
  CHECK_THROWS_WITH(rendered(R"({"template": "a"})"), Contains("has no key \"chat_template\""));
  CHECK_THROWS_WITH(rendered(R"({"chat_template": )"), Contains("not JSON"));
}

TEST_CASE("the end of a turn is what the template writes after an answer") {
  CHECK(ChatTemplate(kPlain, "T").end_of_turn() == ";");
  CHECK(ChatTemplate("{% for m in messages %}{{ m.content }}<|end|>\n{% endfor %}", "T")
            .end_of_turn() == "<|end|>");
  CHECK(ChatTemplate("{% for m in messages %}{{ m.content }}\n\n{% endfor %}", "T").end_of_turn() ==
        "\n\n");
  CHECK(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "T")
            .end_of_turn()
            .empty());
}

}  // namespace data_chat_test
