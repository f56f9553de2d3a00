// Checkpoints that are written again with another number of files.
#include <catch2/catch.hpp>

#include "interchange/export.h"
#include "interchange/hf_folder.h"
#include "interchange/import.h"
#include "storage/reshard_checkpoint.h"
#include "storage/verify_checkpoint.h"
#include "test/support/saved_training.h"
#include "test/support/temporary_folder.h"

namespace checkpoint_reshard_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const Changes kSmallBatch{"train.global_batch_size=12"};

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder).string()] = read_file(entry.path());
  return files;
}

std::map<std::string, DType> types_of(const fs::path& checkpoint, storage::TensorSet set) {
  std::map<std::string, DType> types;
  const auto tensors = open_checkpoint_tensors(checkpoint, set);
  for (const auto& t : tensors->entries()) types[t.name] = t.dtype.value();
  return types;
}

}  // namespace

TEST_CASE("a checkpoint in any number of files has the same tensors, and trains as before") {
  struct Row : SavedLayout {
    bool format_1 = false;
  };
  for (const Row& row : std::vector<Row>{
           {{"fsdp", 4, kFsdp2}},
           {{"one rank", 1}},
           {{"format 1", 1}, true},
           {{"tied and bf16", 2,
             with(kFsdp2, {"model.share_embeddings_and_output_weights=true",
                           "mixed_precision.name=bf16_mixed", "optimizer.master_weights=false"})}},
           {{"moments in bf16", 2, with(kFsdp2, {"optimizer.moments=bf16"})}},
           {{"experts", 2, with(kSavedExperts, {"distributed.ep_size=2"})}}}) {
    const TemporaryFolder folder;
    const auto straight = train_and_save(kSmallBatch, row, 3, {}, {});
    train_and_save(kSmallBatch, row, 2, {}, folder / "run");
    const fs::path source = saved_in(folder / "run");
    if (row.format_1) make_format_1(source, 2);
    const auto before = contents(source);
    for (const int files : {1, 3, 16}) {
      INFO(row.name << ", " << files << " files");
      const fs::path output = folder / std::to_string(files);
      const storage::Resharded made = storage::reshard_checkpoint(source, output, {.files = files});
      CHECK(made.checkpoint == saved_in(output));
      CHECK((made.step == 2 && made.files == 2 * files));
      CHECK(storage::verify_checkpoint(made.checkpoint).faults.empty());
      CHECK(same_training(source, made.checkpoint));
      for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
        CHECK(types_of(source, set) == types_of(made.checkpoint, set));
      for (const char* name : {"state.json", "recipe.yaml"})
        CHECK(read_file(made.checkpoint / name) == read_file(source / name));
      // Equal parts of the bytes, up to an element and the names of the header.
      int64_t least = INT64_MAX, most = 0;
      for (int i = 0; i < files; ++i) {
        const storage::SafetensorsReader file(
            made.checkpoint / storage::shard_file_name(storage::TensorSet::weights, i));
        int64_t bytes = 0;
        for (const storage::StoredTensor& t : file.tensors()) bytes += t.bytes;
        least = std::min(least, bytes), most = std::max(most, bytes);
      }
      CHECK(most - least <= 8);
      CHECK(train_and_save(kSmallBatch, row, 1, made.checkpoint, {})[0] == straight[2]);
      // And back into one of the first kind.
      const auto back = storage::reshard_checkpoint(
          made.checkpoint, folder / ("b" + std::to_string(files)), {.files = row.ranks});
      CHECK(same_training(source, back.checkpoint));
    }
    CHECK(contents(source) == before);
  }
}

TEST_CASE("an imported model keeps its types and its other files in other files") {
  const TemporaryFolder folder;
  const fs::path golden = fs::path(MTRAIN_SOURCE_DIR) / "test/golden/hf/llama";
  const fs::path source =
      interchange::import_hf(interchange::open_hf_folder(golden, {}), folder / "imported");
  const auto made = storage::reshard_checkpoint(source, folder / "out", {.files = 2});
  CHECK((made.step == 0 && made.files == 2));
  CHECK(same_tensors(source, made.checkpoint, storage::TensorSet::weights));
  interchange::export_hf(source, folder / "first", {});
  interchange::export_hf(made.checkpoint, folder / "second", {});
  CHECK(contents(folder / "first") == contents(folder / "second"));
}

TEST_CASE("what cannot be written again leaves nothing, and the source as it was") {
  const TemporaryFolder folder;
  train_and_save(kSmallBatch, {"one", 1}, 1, {}, folder / "run");
  const fs::path source = saved_in(folder / "run");
  const auto before = contents(source);
  const auto left = [&] {
    int entries = 0;
    for (const auto& entry : fs::directory_iterator(folder.path)) entries += entry.exists();
    return entries - 1;  // without the run
  };
  // As Ctrl-C ends it.
  const auto ends = [](int64_t done, int64_t) {
    if (done > 0) throw RunError("Ctrl-C");
  };
  CHECK_THROWS_WITH(
      storage::reshard_checkpoint(source, folder / "out", {.files = 2, .progress = ends}),
      Contains("Ctrl-C"));
  CHECK(left() == 0);
  CHECK_THROWS_WITH(storage::reshard_checkpoint(folder / "run", folder / "out", {}),
                    Contains("is not a checkpoint"));
  {
    const FlippedBit damage(source / "optimizer-00000.safetensors", 20'000, 3);
    CHECK_THROWS_WITH(storage::reshard_checkpoint(source, folder / "out", {}),
                      Contains("optimizer-00000.safetensors is damaged"));
  }
  {
    const FlippedBit damage(source / "state.json", 20, 3);
    CHECK_THROWS_WITH(storage::reshard_checkpoint(source, folder / "out", {}),
                      Contains("state.json is damaged"));
  }
  CHECK(left() == 0);
  CHECK_THROWS_WITH(storage::reshard_checkpoint(source, folder / "run", {}),
                    Contains("exists already"));
  CHECK_THROWS_WITH(storage::reshard_checkpoint(source, source, {}), Contains("exists already"));
  CHECK(contents(source) == before);
}

}  // namespace checkpoint_reshard_test
