#include "base/hub_cache.h"

#include <catch2/catch.hpp>

#include "base/file.h"
#include "test/support/environment.h"
#include "test/support/temporary_folder.h"

namespace base_hub_cache_test {

using namespace mtrain;

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// A cache with one model, as huggingface_hub writes it.
struct Cache {
  Cache() {
    fs::create_directories(repository / "refs" / "refs");
    fs::create_directories(repository / "blobs");
    fs::create_directories(repository / "snapshots" / commit);
    write_file_atomic(repository / "refs" / "main", commit);
    write_file_atomic(repository / "refs" / "refs" / "pr", commit + "\n");
    write_file_atomic(repository / "blobs" / "b1", "{}");
    link("config.json", "b1");
  }
  void link(const char* name, const char* blob) {
    fs::create_symlink(fs::path("../../blobs") / blob, repository / "snapshots" / commit / name);
  }

  const TemporaryFolder folder;
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  const fs::path repository = folder / "models--org--small-1.5";
  const Environment cache{"HF_HUB_CACHE", folder.path.c_str()};
  const Environment home{"HF_HOME", nullptr}, xdg{"XDG_CACHE_HOME", nullptr};
};

TEST_CASE("a name of the Hub is a repository, and perhaps a revision") {
  CHECK(parse_hub_name("org/name")->repository == "org/name");
  CHECK(parse_hub_name("org/name")->revision.empty());
  CHECK(parse_hub_name("org/na.me-1@refs/pr/1")->revision == "refs/pr/1");
  CHECK(parse_hub_name("gpt2"));
  for (const char* text :
       {"", "/", "/org/name", "org/", "a/b/c", "./name", "../name", "org/name@", "org/name@../x",
        "org/na me", "~/name", "data/tokenizer.json", "data/tokenizer.model"}) {
    INFO(text);
    CHECK_FALSE(parse_hub_name(text));
  }
}

TEST_CASE("a model is found by its name and revision") {
  const Cache cache;
  const fs::path snapshot = cache.repository / "snapshots" / cache.commit;
  for (const std::string& name :
       {std::string("org/small-1.5"), std::string("org/small-1.5@main"),
        std::string("org/small-1.5@refs/pr"), "org/small-1.5@" + cache.commit,
        "org/small-1.5@" + cache.commit.substr(0, 7)}) {
    INFO(name);
    CHECK(hub_model_folder(name) == snapshot);
    CHECK_FALSE(hub_problem(name));
  }
}

TEST_CASE("a folder goes before a model of the same name") {
  const Cache cache;
  const fs::path here = fs::current_path();
  fs::current_path(cache.folder.path);
  fs::create_directories("org/small-1.5");
  CHECK(hub_model_folder("org/small-1.5") == "org/small-1.5");
  CHECK_FALSE(hub_problem("org/small-1.5"));
  // A path below a folder that exists is a folder, too, unless the cache has such a model.
  CHECK_FALSE(hub_problem("org/absent"));
  fs::current_path(here);
}

TEST_CASE("a model without organization is found") {
  const Cache cache;
  fs::create_directories(cache.folder / "models--gpt2" / "refs");
  fs::create_directories(cache.folder / "models--gpt2" / "snapshots" / cache.commit);
  write_file_atomic(cache.folder / "models--gpt2" / "refs" / "main", cache.commit);
  CHECK(hub_model_folder("gpt2").filename() == cache.commit);
  CHECK(hub_model_folder("gpt3") == "gpt3");
  CHECK_FALSE(hub_problem("gpt3"));
}

TEST_CASE("caches are looked through in their order") {
  const Cache cache;
  const TemporaryFolder home;
  const Environment at_home{"HOME", home.path.c_str()}, hf{"HF_HOME", home.path.c_str()},
      xdg{"XDG_CACHE_HOME", home.path.c_str()};
  CHECK(hub_cache_folders() == std::vector<fs::path>{cache.folder.path, home / "hub",
                                                     home / "huggingface" / "hub",
                                                     home / ".cache" / "huggingface" / "hub"});
  const Environment none{"HF_HUB_CACHE", nullptr};
  fs::create_directories(home / ".cache" / "huggingface" / "hub");
  fs::rename(cache.repository, home / ".cache" / "huggingface" / "hub" / "models--org--small-1.5");
  CHECK(hub_model_folder("org/small-1.5").string().starts_with((home / ".cache").string()));
}

TEST_CASE("a model that cannot be used is named with the command that fetches it") {
  Cache cache;
  const auto problem = hub_problem("org/other");
  REQUIRE(problem);
  CHECK_THAT(problem->message, Contains("org/other") && Contains(cache.folder.path.string()));
  CHECK_THAT(problem->hint, Contains("`hf download org/other`"));

  const auto revision = hub_problem("org/small-1.5@v2");
  REQUIRE(revision);
  CHECK_THAT(revision->message, Contains("no revision v2 of org/small-1.5"));
  CHECK_THAT(revision->hint, Contains("`hf download org/small-1.5 --revision v2`"));

  cache.link("model.safetensors", "absent");
  const auto half = hub_problem("org/small-1.5");
  REQUIRE(half);
  CHECK_THAT(half->message, Contains("incomplete") && Contains("model.safetensors"));

  // A download that was stopped before its first file.
  fs::remove_all(cache.repository / "snapshots");
  CHECK_THAT(hub_problem("org/small-1.5")->message, Contains("no revision main"));
}

TEST_CASE("files that a snapshot lacks are fetched by the model's name and revision") {
  const Cache cache;
  const fs::path snapshots = cache.repository / "snapshots";
  const std::string gist = "`hf download org/small-1.5";
  CHECK_THAT(hub_missing_files_hint(snapshots / cache.commit), Contains(gist + "` fetches"));
  CHECK_THAT(hub_missing_files_hint(snapshots / cache.commit / ""), Contains(gist + "` fetches"));
  CHECK_THAT(hub_missing_files_hint(snapshots / "fedcba9"),
             Contains(gist + " --revision fedcba9`"));
  for (const fs::path& other : {fs::path(), fs::path("model"), cache.repository, fs::path("/"),
                                fs::path("snapshots/x"), fs::path("models/snapshots/x")}) {
    INFO(other);
    CHECK(hub_missing_files_hint(other).empty());
  }
}

TEST_CASE("a reference cannot lead out of the cache") {
  const Cache cache;
  write_file_atomic(cache.repository / "refs" / "main", "../../../../etc");
  CHECK(hub_model_folder("org/small-1.5") == "org/small-1.5");
  CHECK(hub_problem("org/small-1.5"));
}

}  // namespace base_hub_cache_test
