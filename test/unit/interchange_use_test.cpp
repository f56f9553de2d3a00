// Hugging Face folders are evaluated and continued directly, with the results of transformers
// (scripts/golden/hf_use.py), under every layout.
#include <cmath>
#include <map>
#include <mutex>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/dataset/indexed_dataset.h"
#include "interchange/import.h"
#include "run/evaluate_model.h"
#include "run/generate_text.h"
#include "storage/safetensors.h"
#include "test/support/comm_testing.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"

namespace interchange_use_test {

using namespace mtrain;
using Catch::Contains;
using generate::End;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const json& expected() {
  static const json use = json::parse(read_file(golden_hf() / "expected/use.json"));
  return use;
}

using Settings = std::vector<std::string>;

// The committed tokens, and folders made of the committed models.
struct Lab : TemporaryFolder {
  Lab() {
    data::IndexedDatasetWriter writer(path / "text", data::TokenType::u16);
    writer.add_tokens(expected()["ids"].get<std::vector<int32_t>>());
    writer.finish();
  }
  run::EvaluateJob job(const fs::path& model, int64_t stride, Settings settings = {}) const {
    settings.insert(settings.begin(),
                    {fmt::format("dataset.seq_length={}", expected()["window"].get<int64_t>()),
                     "train.threads=1"});
    return {.model = model.string(),
            .data = {(path / "text").string()},
            .stride = stride,
            .overrides = std::move(settings)};
  }
  // Makes a folder of a model with the tokenizer, and these ids as its ends of a text.
  fs::path with_tokenizer(const std::string& name, const json& eos) const {
    const fs::path folder = path / fmt::format("{}-{}", name, eos.size());
    if (fs::exists(folder)) return folder;
    fs::copy(golden_hf() / name, folder);
    for (const auto& file : fs::directory_iterator(golden_hf() / "expected/tokenizer"))
      fs::copy(file.path(), folder / file.path().filename());
    write_file_atomic(folder / "generation_config.json", json{{"eos_token_id", eos}}.dump());
    return folder;
  }
};

struct Written {
  std::string text;
  End end = End::context;
  bool operator==(const Written&) const = default;
};

Written write(run::GenerateJob job, const generate::GenerateOptions& options) {
  Written written;
  run::generate_text(job, options,
                     {.text = [&](size_t, std::string_view bytes) { written.text += bytes; },
                      .end = [&](size_t, End end) { written.end = end; }});
  return written;
}

generate::GenerateOptions greedy() {
  return {.tokens = expected()["tokens"].get<int64_t>(),
          .sampling = {.temperature = 0},
          .echo_prompt = false};
}

std::string prompt(const json& text) { return text["prompt"].get<std::string>(); }

Written want(const json& text) {
  return {text["text"].get<std::string>(),
          text["ended"].get<bool>() ? End::end_of_text : End::tokens};
}

}  // namespace

TEST_CASE("the loss of a folder's model is transformers', with and without overlapping windows") {
  const Lab lab;
  const auto names = golden_hf_cases();
  REQUIRE(names.size() == expected()["cases"].size());
  for (const std::string& name : names)
    for (const auto& [stride, nats] : expected()["cases"][name]["nats"].items()) {
      INFO(name << ", stride " << stride);
      const auto e = run::evaluate_model(lab.job(golden_hf() / name, std::stoll(stride)));
      CHECK(std::abs(e.nats_per_token - nats.get<double>()) < 1e-5);
      CHECK(e.perplexity() == Approx(std::exp(nats.get<double>())).epsilon(1e-4));
      CHECK(e.tokens == (stride == "5" ? 149 : 140));
      CHECK(e.bytes == 0);  // these folders have no tokenizer
    }
}

TEST_CASE("the loss of a folder's model is the same under every layout") {
  const Lab lab;
  struct Row {
    std::string model;
    int ranks;
    Settings layout;
  };
  for (const Row& row : std::vector<Row>{
           {"llama", 2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
           {"gpt2", 2, {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"}},
           {"phi3_tied",
            2,
            {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
             "distributed.pipeline={}"}},
           {"qwen3", 2, {"distributed.strategy=fsdp2"}},
           {"mixtral", 2, {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"}},
           {"qwen3_moe",
            4,
            {"distributed.strategy=fsdp2", "distributed.ep_size=2", "distributed.tp_size=2"}},
           {"dots1", 2, {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"}},
           {"dots1_window",
            2,
            {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
             "distributed.pipeline={}"}},
           {"glm4_moe",
            4,
            {"distributed.strategy=fsdp2", "distributed.ep_size=2", "distributed.tp_size=2"}},
           {"mistral", 2, {}}}) {
    CAPTURE(row.model, row.layout);
    std::mutex mutex;
    std::vector<run::Evaluation> all;
    run_ranks(row.ranks, "thread", [&](TestRank& rank) {
      run::EvaluateJob job = lab.job(golden_hf() / row.model, 5, row.layout);
      job.world = rank.world;
      const auto e = run::evaluate_model(job);
      const std::lock_guard lock(mutex);
      all.push_back(e);
    });
    const double nats = expected()["cases"][row.model]["nats"]["5"].get<double>();
    REQUIRE(all.size() == size_t(row.ranks));
    for (const run::Evaluation& e : all) {
      CHECK(std::abs(e.nats_per_token - nats) < 1e-5);
      CHECK(e.tokens == 149);
    }
  }
}

TEST_CASE("the likeliest tokens of a folder's model are transformers', up to its ends of a text") {
  const Lab lab;
  for (const auto& [name, use] : expected()["cases"].items())
    for (const json& text : use["texts"]) {
      INFO(name << " " << text);
      const fs::path folder = lab.with_tokenizer(name, text["eos"]);
      const run::GenerateJob job{.model = folder.string(), .prompts = {prompt(text)}};
      // LongRoPE's factors for short texts limit the context, in this folder to 4 tokens.
      if (name == "phi3_longrope_long")
        CHECK_THROWS_WITH(write(job, greedy()), Contains("the model's context is 4"));
      else
        CHECK(write(job, greedy()) == want(text));
    }
  for (const std::string name : {"llama", "gpt2", "mixtral", "dots1", "glm4_moe"}) {
    INFO(name);
    const json& text = expected()["cases"][name]["texts"][0];
    const fs::path folder = lab.with_tokenizer(name, text["eos"]);
    run_ranks(2, "thread", [&](TestRank& rank) {
      CHECK(write({.model = folder.string(), .prompts = {prompt(text)}, .world = rank.world},
                  greedy()) == want(text));
    });
  }
}

TEST_CASE("a prompt begins as the tokenizer's configuration says") {
  const Lab lab;
  const json& text = expected()["cases"]["qwen2"]["texts"][0];
  const std::string folder = lab.with_tokenizer("qwen2", text["eos"]).string();
  auto options = greedy();
  options.bos = data::BeginOfText::none;
  CHECK(write({.model = folder, .prompts = {prompt(text)}}, options) != want(text));
  CHECK(write({.model = folder, .prompts = {"<s>" + prompt(text)}}, options) == want(text));
  options.bos = data::BeginOfText::always;  // not twice
  CHECK(write({.model = folder, .prompts = {prompt(text)}}, options) == want(text));
  // With a token that begins all texts a prompt may be empty.
  CHECK(write({.model = folder, .prompts = {""}}, greedy()).text.size() > 0);
  options.bos = data::BeginOfText::none;
  CHECK_THROWS_WITH(write({.model = folder, .prompts = {""}}, options), Contains("is empty"));
}

TEST_CASE("an imported checkpoint computes what its folder does") {
  const Lab lab;
  const json& text = expected()["cases"]["qwen2_moe"]["texts"].back();
  const fs::path folder = lab.with_tokenizer("qwen2_moe", text["eos"]);
  const fs::path imported =
      interchange::import_hf(interchange::open_hf_folder(folder), lab / "imported");
  const auto direct = run::evaluate_model(lab.job(folder, 5));
  const auto through = run::evaluate_model(lab.job(lab / "imported", 5));
  CHECK(direct.nats_per_token == through.nats_per_token);
  CHECK(direct.bytes == through.bytes);
  // Each of its tokens is a character, apart from those that begin and end documents.
  const auto tokenizer = data::load_tokenizer(folder.string());
  const auto ids = expected()["ids"].get<std::vector<int32_t>>();
  int64_t bytes = 0, framing = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] == tokenizer->bos() || ids[i] == tokenizer->eod())
      ++framing;
    else
      bytes += int64_t(tokenizer->decode({&ids[i], 1}).size());
  }
  CHECK(framing > 0);
  CHECK(direct.bytes == bytes);
  CHECK(write({.model = imported.string(), .prompts = {prompt(text)}}, greedy()) == want(text));
}

TEST_CASE("a model sees as many tokens as it has positions") {
  const Lab lab;
  const json& text = expected()["cases"]["llama"]["texts"][0];
  const std::string folder = lab.with_tokenizer("llama", text["eos"]).string();
  auto options = greedy();
  options.tokens = 1000;
  const auto written = write({.model = folder, .prompts = {std::string(62, 'a')}}, options);
  // 64 positions hold <s>, the prompt and one more token.
  CHECK(written.end == End::context);
  CHECK_THROWS_WITH(write({.model = folder, .prompts = {std::string(63, 'a')}}, options),
                    Contains("the prompt has 64 tokens, and the model's context is 64"));
}

// Two folders with the same sizes and name, each on its own host.
TEST_CASE("ranks that see different folders are refused, and the rank is named") {
  const Lab lab;
  const fs::path one = lab.with_tokenizer("llama", {62}), two = lab / "two";
  fs::copy(one, two);
  const auto all_ranks_say = [&](const auto& f) {
    std::mutex mutex;
    std::vector<std::string> said;
    CHECK_THROWS(run_ranks(2, "thread", [&](TestRank& rank) {
      try {
        f(rank, (rank.world.rank() == 0 ? one : two).string());
      } catch (const UserError& e) {
        const std::lock_guard lock(mutex);
        said.emplace_back(e.what());
        throw;
      }
    }));
    REQUIRE_FALSE(said.empty());  // the first to throw may interrupt the other
    for (const std::string& text : said)
      CHECK_THAT(text, Contains("rank 1 has a different model in") && Contains("from rank 0"));
  };
  const auto evaluate = [&](TestRank& rank, const std::string& model) {
    run::EvaluateJob job = lab.job(model, 5);
    job.world = rank.world;
    run::evaluate_model(job);
  };
  const auto generate = [&](TestRank& rank, const std::string& model) {
    write({.model = model, .prompts = {"a"}, .world = rank.world}, greedy());
  };
  std::string weights = read_file(two / "model.safetensors");
  weights.back() ^= 1;
  write_file_atomic(two / "model.safetensors", weights);
  all_ranks_say(evaluate);
  all_ranks_say(generate);
  weights.back() ^= 1;
  {
    const storage::SafetensorsReader file(one / "model.safetensors");
    const auto middle = size_t(file.tensors()[file.tensors().size() / 2].begin);
    REQUIRE((middle > weights.size() / 4 && middle < weights.size() * 3 / 4));
    weights[middle] ^= 1;
  }
  write_file_atomic(two / "model.safetensors", weights);
  all_ranks_say(evaluate);
  fs::copy_file(one / "model.safetensors", two / "model.safetensors",
                fs::copy_options::overwrite_existing);
  write_file_atomic(two / "config.json", read_file(one / "config.json") + "\n");
  all_ranks_say(evaluate);
  fs::copy_file(one / "config.json", two / "config.json", fs::copy_options::overwrite_existing);
  run_ranks(2, "thread",
            [&](TestRank& rank) { evaluate(rank, (rank.world.rank() ? two : one).string()); });
}

TEST_CASE("folders that cannot be used are refused with the reason") {
  const Lab lab;
  CHECK_THROWS_WITH(write({.model = (golden_hf() / "llama").string(), .prompts = {"a"}}, greedy()),
                    Contains("no tokenizer at") && Contains("tokenizer.json"));
  CHECK_THROWS_WITH(run::evaluate_model(lab.job("org/model", 5)),
                    Contains("no model in the caches") && Contains("nothing is downloaded"));
  const fs::path folder = lab.with_tokenizer("llama", {62});
  fs::remove(folder / "model.safetensors");
  CHECK_THROWS_WITH(run::evaluate_model(lab.job(folder, 5)), Contains(folder.string()));
  write_file_atomic(folder / "model.gguf", "x");
  CHECK_THROWS_WITH(run::evaluate_model(lab.job(folder, 5)), Contains("GGUF"));
  // Without a config.json, too, which such folders lack.
  fs::remove(folder / "config.json");
  const auto complaint = [&] {
    try {
      run::evaluate_model(lab.job(folder, 5));
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("(none)");
  };
  CHECK_THAT(complaint(), Contains("GGUF") && !Contains("config.json"));
  fs::rename(folder / "model.gguf", folder / "__0_0.distcp");
  CHECK_THAT(complaint(), Contains("(DCP)") && !Contains("config.json"));
  fs::rename(folder / "__0_0.distcp", folder / "pytorch_model.bin");
  CHECK_THAT(complaint(), Contains("pickle") && !Contains("config.json"));
  CHECK_THROWS_WITH(
      run::evaluate_model(lab.job(golden_hf() / "gpt2", 5, {"dataset.seq_length=17"})),
      Contains("17") && Contains("max_position_embeddings 16"));
}

}  // namespace interchange_use_test
