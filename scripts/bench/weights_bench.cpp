// Measures how fast the weights of a Hugging Face folder are read, beside dd on the same files, and
// the memory that reading a large model takes.
//   bench_weights [folder for temporary files, default .] [GB, default 2] [rounds, default 5]
//                 [sparse GB of 70B's shapes to read: 0 none, default all]
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/rng.h"
#include "test/unit/sparse_model.h"

using namespace mtrain;
using namespace mtrain::storage;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kPiece = 16 << 20;  // elements: 64 MiB in fp32
constexpr int kShards = 4;

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void write_dense_model(const fs::path& folder, double gigabytes) {
  const auto count = int64_t(gigabytes * 1e9 / 2 / kShards);
  std::vector<float> values(size_t(std::min(count, kPiece)));
  fill_normal(1, 0, int64_t(values.size()), 1.0f, values.data());
  const std::vector<bf16> halves(values.begin(), values.end());
  std::string map;
  for (int shard = 0; shard < kShards; ++shard) {
    std::vector<TensorInfo> infos;
    for (int64_t rest = count; rest > 0; rest -= int64_t(halves.size()))
      infos.push_back({fmt::format("{}.{}", shard, infos.size()),
                       DType::bf16,
                       {std::min(rest, int64_t(halves.size()))}});
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, kShards);
    SafetensorsWriter writer(folder / file, infos);
    for (const TensorInfo& t : infos) {
      writer.write(t.name, {halves.data(), t.shape.count(), DType::bf16});
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", t.name, file);
    }
    writer.commit();
  }
  write_file_atomic(folder / kIndexFile, R"({"weight_map":{)" + map + "}}");
}

// Lets the system forget what it has of the files in its memory.
void drop_cache(const SafetensorsFolder& model) {
  for (const auto& file : model.files()) {
    const int fd = ::open(file->path().c_str(), O_RDONLY);
    MT_CHECK(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
    ::close(fd);
  }
}

// Reads tensors until `bytes` are read, and returns the most anonymous memory seen.
int64_t read_model(const SafetensorsFolder& model, int64_t bytes, std::vector<float>& values) {
  int64_t most = 0;
  const int64_t end = model.bytes_read() + bytes;
  for (const StoredTensor* t : model.tensors())
    for (int64_t first = 0; first < t->count() && model.bytes_read() < end; first += kPiece) {
      model.read(t->name, first, std::min(kPiece, t->count() - first), values.data());
      most = std::max(most, anonymous_memory());
    }
  return most;
}

void dd(const SafetensorsFolder& model) {
  for (const auto& file : model.files()) {
    const std::string command =
        fmt::format("dd if='{}' of=/dev/null bs=1M status=none", file->path().string());
    MT_CHECK(std::system(command.c_str()) == 0, "{}", command);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, double otherwise) {
    return argc > i ? std::atof(argv[i]) : otherwise;
  };
  const fs::path folder =
      fs::path(argc > 1 ? argv[1] : ".") / fmt::format("bench_weights.{}", ::getpid());
  const double gigabytes = argument(2, 2);
  const auto rounds = int(argument(3, 5));
  std::vector<float> values(kPiece);
  fs::create_directories(folder / "dense");
  fs::create_directories(folder / "sparse");
  write_dense_model(folder / "dense", gigabytes);
  {
    const SafetensorsFolder model(folder / "dense");
    for (const bool cold : {true, false}) {
      std::vector<double> ours, theirs;
      for (int round = 0; round < rounds; ++round) {
        if (cold) drop_cache(model);
        theirs.push_back(seconds([&] { dd(model); }));
        if (cold) drop_cache(model);
        ours.push_back(seconds([&] { read_model(model, INT64_MAX / 2, values); }));
      }
      std::printf("%s: dd %.2f GB/s, mtrain %.2f GB/s (%.2f x dd), medians of %d\n",
                  cold ? "from the disk" : "from the page cache", gigabytes / median(theirs),
                  gigabytes / median(ours), median(theirs) / median(ours), rounds);
    }
  }
  const double sparse = argument(4, 1000);
  if (sparse > 0) {
    write_sparse_model(folder / "sparse", llama_70b(), 30);
    const SafetensorsFolder model(folder / "sparse");
    int64_t most = 0;
    const double s = seconds([&] { most = read_model(model, int64_t(sparse * 1e9), values); });
    std::printf(
        "70B's shapes in %zu sparse files: %.1f GB in %.1f s, at most %.0f MiB of anonymous "
        "memory\n",
        model.files().size(), double(model.bytes_read()) / 1e9, s, double(most) / (1 << 20));
  }
  fs::remove_all(folder);
}
