// Texts are printed in full characters, up to a stop string, and do not depend on the texts that
// are generated with them.
#include <map>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "device/device.h"
#include "generate/generate.h"
#include "generate/text_stream.h"
#include "test/support/small_spec.h"

namespace generate_text_test {

using namespace mtrain;
using generate::End;
using generate::TextStream;

namespace {

// Returns the output of a stream after each byte of `text`, and at the end the bytes that it held
// back.
std::vector<std::string> shown(const std::string& text, const std::vector<std::string>& stop = {}) {
  const auto tokenizer = data::make_byte_tokenizer();
  TextStream stream(*tokenizer, {}, stop);
  std::vector<std::string> pieces;
  for (const char c : text) {
    pieces.push_back(stream.push(static_cast<unsigned char>(c)));
    if (stream.stopped()) break;
  }
  pieces.push_back(stream.finish());
  return pieces;
}

using Pieces = std::vector<std::string>;

constexpr int64_t kContext = 48;

struct Texts {
  std::map<size_t, std::string> text;
  std::map<size_t, End> end;
};

// A model of bytes with random weights, and few slots.
struct Writer {
  explicit Writer(int64_t slots) : cache(slots, kContext) {
    spec::ModelSpec spec = small_spec(
        1, 32, 257, {.attention = rotating_heads(2, 2, 16), .mlp = spec::DenseMlp{.ffn = 48}});
    spec.init_std = 0.3;
    impls.attention_core = cache.cores();
    impls.latent_core = cache.latent_cores();
    gpt = std::make_unique<model::Gpt>(stream, params, spec, kContext, model::Recompute{}, impls);
    params.materialize(stream, DType::f32, false);
    params.initialize(stream, 3);
  }
  Texts write(const std::vector<generate::Request>& requests, generate::GenerateOptions options) {
    options.context = kContext;
    generate::CachedModel model(stream, *gpt, cache);
    Texts texts;
    generate::generate(
        model, *tokenizer, requests, options,
        {.text = [&](size_t i, std::string_view bytes) { texts.text[i] += bytes; },
         .end = [&](size_t i, End end) { REQUIRE(texts.end.emplace(i, end).second); }});
    REQUIRE(texts.end.size() == requests.size());
    return texts;
  }

  std::unique_ptr<Device> device = Device::cpu(1);
  Stream& stream = device->stream(device::StreamKind::compute);
  std::unique_ptr<data::Tokenizer> tokenizer = data::make_byte_tokenizer();
  generate::KeyValueCache cache;
  model::ModelImpls impls{.padded_vocab = 320};
  model::ParamStore params;
  std::unique_ptr<model::Gpt> gpt;
};

const std::vector<generate::Request> kRequests{
    {"Hello", 0}, {"a", 1}, {"a much longer prompt, in chunks", 2}, {"Hello", 3}, {"b", 4}};

}  // namespace

TEST_CASE("characters are shown whole") {
  CHECK(shown("aé€😀b") == Pieces{"a", "", "é", "", "", "€", "", "", "", "😀", "b", ""});
  CHECK(shown("\xe2\x82") == Pieces{"", "", "\xe2\x82"});  // the rest never comes
  CHECK(shown("\xe2\x41") == Pieces{"", "\xe2\x41", ""});  // not a character
  CHECK(shown("\x80\x80\x80\x80") == Pieces{"\x80", "\x80", "\x80", "\x80", ""});
}

TEST_CASE("a text ends before a stop string, and shows no beginning of it") {
  CHECK(shown("abcd", {"bc"}) == Pieces{"a", "", "", ""});
  CHECK(shown("abd", {"bc"}) == Pieces{"a", "", "bd", ""});
  CHECK(shown("aab", {"ab"}) == Pieces{"", "a", "", ""});
  CHECK(shown("ab", {"abc"}) == Pieces{"", "", "ab"});          // never complete
  CHECK(shown("xyz", {"z", "yz"}) == Pieces{"x", "", "", ""});  // the one that begins first
}

TEST_CASE("a request's text does not depend on the others, nor on slots and chunks") {
  const generate::GenerateOptions options{.tokens = 9, .sampling = {.temperature = 1, .seed = 5}};
  Texts alone;
  for (size_t i = 0; i < kRequests.size(); ++i)
    alone.text[i] = Writer(1).write({kRequests[i]}, options).text[0];
  CHECK(alone.text[0] != alone.text[3]);  // the same prompt, another stream of draws
  for (int64_t slots : {1, 2, 5})
    for (int64_t chunk : {1, 7, 512}) {
      auto in_chunks = options;
      in_chunks.chunk = chunk;
      CHECK(Writer(slots).write(kRequests, in_chunks).text == alone.text);
    }
}

TEST_CASE("every reason to end a text is reported") {
  Writer w(2);
  const generate::GenerateOptions greedy{.tokens = 12, .sampling = {.temperature = 0}};
  const std::string whole = w.write({{"Hello", 0}}, greedy).text[0];
  CHECK(whole.size() == 5 + 12);
  CHECK(w.write({{"Hello", 0}}, greedy).end[0] == End::tokens);

  auto stop = greedy;
  stop.stop = {whole.substr(8, 2)};
  const auto stopped = w.write({{"Hello", 0}}, stop);
  CHECK(stopped.end.at(0) == End::stop_string);
  CHECK(stopped.text.at(0) == whole.substr(0, whole.find(stop.stop[0], 5)));

  auto eos = greedy;
  eos.eos = {300, static_cast<unsigned char>(whole[9])};
  eos.echo_prompt = false;
  const auto ended = w.write({{"Hello", 0}}, eos);
  CHECK(ended.end.at(0) == End::end_of_text);
  CHECK(ended.text.at(0) == whole.substr(5, whole.find(whole[9], 5) - 5));

  auto longer = greedy;
  longer.tokens = 1000;
  const auto full = w.write({{"Hello", 0}, {std::string(size_t(kContext - 1), 'x'), 1}}, longer);
  CHECK(full.end.at(0) == End::context);
  CHECK(full.text.at(0).size() == size_t(kContext));
  CHECK(full.text.at(0).starts_with(whole));
  CHECK(full.text.at(1).size() == size_t(kContext));
}

TEST_CASE("an unfinished character at the end of a prompt is shown with its continuation") {
  Writer w(1);
  generate::CachedModel model(w.stream, *w.gpt, w.cache);
  std::vector<std::string> pieces;
  const auto say = [&](size_t, std::string_view bytes) { pieces.emplace_back(bytes); };
  generate::generate(model, *w.tokenizer, {{"a\xe2\x82", 0}}, {.tokens = 3, .context = kContext},
                     {.text = say, .end = [](size_t, End) {}});
  REQUIRE(pieces.size() >= 2);
  CHECK(pieces[0] == "a");
  CHECK(pieces[1].starts_with("\xe2\x82"));
}

TEST_CASE("a cache needs room for the longest request alone") {
  const auto tokenizer = data::make_byte_tokenizer();
  const std::vector<generate::Request> requests{{"ab", 0}, {"abcde", 1}, {"", 2}};
  CHECK(generate::longest(*tokenizer, requests, {.tokens = 4, .context = 100}) == 9);
  CHECK(generate::longest(*tokenizer, requests, {.tokens = 4, .context = 7}) == 7);
}

TEST_CASE("prompts that cannot be continued are refused before any text") {
  Writer w(1);
  std::string said;
  const auto refuse = [&](const std::string& prompt, const char* why) {
    generate::CachedModel model(w.stream, *w.gpt, w.cache);
    CHECK_THROWS_WITH(
        generate::generate(model, *w.tokenizer, {{"fine", 0}, {prompt, 1}}, {.context = kContext},
                           {.text = [&](size_t, std::string_view bytes) { said += bytes; },
                            .end = [](size_t, End) {}}),
        Catch::Contains(why));
  };
  refuse("", "the prompt is empty");
  refuse(std::string(size_t(kContext), 'x'), "the prompt has 48 tokens");
  CHECK(said.empty());
}

}  // namespace generate_text_test
