// Folders whose config.json asks for something impossible, or has keys that a user ignores.
#include <sys/resource.h>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "test/support/interchange_testing.h"
#include "test/support/temporary_folder.h"

namespace interchange_limits_test {

using namespace mtrain;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Copies a folder, whose config.json `change` changes.
void copy_folder(const char* name, const fs::path& to, const std::function<void(json&)>& change) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(golden_hf() / name))
    fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
  json config = json::parse(read_file(to / "config.json"));
  change(config);
  write_file_atomic(to / "config.json", config.dump());
}

int64_t peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace

TEST_CASE("experts and layers that the folder has no tensors for are refused in little memory") {
  const struct {
    const char *family, *key;
    int64_t value;
  } rows[] = {{"qwen3_moe", "num_experts", int64_t{1} << 20},
              {"mixtral", "num_local_experts", int64_t{1} << 20},
              {"dots1", "n_routed_experts", int64_t{1} << 20},
              {"qwen3_moe", "num_hidden_layers", 100'000}};
  for (const auto& row : rows) {
    CAPTURE(row.family, row.key);
    const TemporaryFolder folder;
    copy_folder(row.family, folder.path, [&](json& c) { c[row.key] = row.value; });
    const int64_t before = peak_kib();
    const auto begin = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(interchange::open_hf_folder(folder.path), UserError);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    CHECK(took.count() < 5);
    CHECK(peak_kib() - before < 300 << 10);
  }
}

TEST_CASE("the error about many missing tensors has few lines") {
  const TemporaryFolder folder;
  copy_folder("llama", folder.path, [](json& c) { c["num_hidden_layers"] = 1000; });
  try {
    interchange::open_hf_folder(folder.path);
    FAIL("opened");
  } catch (const UserError& e) {
    CHECK_THAT(e.what(), Contains("missing: ") && Contains(" more"));
    CHECK(std::string(e.what()).size() < 20'000);
  }
}

TEST_CASE("keys that a user ignores are listed by the import, its description and its export") {
  const TemporaryFolder folder;
  copy_folder("llama", folder / "hf", [](json& c) { c["clip_qkv"] = 8; });
  CHECK_THROWS_WITH(interchange::open_hf_folder(folder / "hf"), Contains("--ignore-keys clip_qkv"));
  const auto hf = interchange::open_hf_folder(folder / "hf", {"clip_qkv"});
  CHECK_THAT(interchange::describe(hf), Contains("clip_qkv of config.json (model.ignore_keys)"));
  const fs::path checkpoint = interchange::import_hf(hf, folder / "imported");
  CHECK_THAT(read_file(checkpoint / "recipe.yaml"), Contains("ignore_keys: [clip_qkv]"));
  interchange::export_hf(checkpoint, folder / "exported", {});
  const json exported = json::parse(read_file(folder / "exported" / "config.json"));
  CHECK(exported.at("clip_qkv") == 8);
  CHECK(exported.at("_mtrain_ignored_keys") == json::array({"clip_qkv"}));
  CHECK_THROWS_AS(interchange::open_hf_folder(folder / "hf", {"hidden_size"}), UserError);
}

}  // namespace interchange_limits_test
