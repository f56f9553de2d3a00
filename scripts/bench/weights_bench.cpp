// Measures how fast the weights of a Hugging Face folder are read as mtrain's tensors, converted to
// fp32 and checked, beside dd on the same files; and the memory that reading a large model takes.
//   bench_weights [folder for temporary files, default .] [GB, default 2] [rounds, default 5]
//                 [sparse GB of 70B's shapes to read: 0 none, default all]
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/rng.h"
#include "interchange/hf_folder.h"
#include "model/param/param_uploader.h"
#include "test/unit/sparse_model.h"

using namespace mtrain;
using namespace mtrain::storage;
namespace fs = std::filesystem;

namespace {

// Elements of a half of the buffer that ranks read into.
constexpr int64_t kHalf = model::ParamUploader::kBufferBytes / 2 / int64_t(sizeof(float));
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

// Writes a llama of so many bytes with random weights.
void write_dense_model(const fs::path& folder, double gigabytes) {
  LlamaSizes sizes{1, 2048, 5632, 16, 4, 32000};
  const auto bytes = [](const BrainTensors& tensors) {
    double sum = 0;
    for (const auto& [name, shape] : tensors) sum += 2.0 * double(shape.count());
    return sum;
  };
  const double one = bytes(llama_tensors(sizes));
  sizes.layers = 2;
  const double layer = bytes(llama_tensors(sizes)) - one;
  sizes.layers = 1 + std::max(int64_t{0}, int64_t((gigabytes * 1e9 - one) / layer));
  const BrainTensors tensors = llama_tensors(sizes);
  std::vector<float> values(kHalf);
  fill_normal(1, 0, kHalf, 1.0f, values.data());
  const std::vector<bf16> halves(values.begin(), values.end());
  std::string map;
  for (size_t shard = 0; shard < kShards; ++shard) {
    std::vector<TensorInfo> infos;
    for (size_t i = tensors.size() * shard / kShards; i < tensors.size() * (shard + 1) / kShards;
         ++i)
      infos.push_back({tensors[i].first, DType::bf16, tensors[i].second});
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, kShards);
    SafetensorsWriter writer(folder / file, infos);
    for (const TensorInfo& t : infos) {
      for (int64_t first = 0; first < t.shape.count(); first += kHalf)
        writer.write_part(t.name,
                          {halves.data(), std::min(kHalf, t.shape.count() - first), DType::bf16});
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", t.name, file);
    }
    writer.commit();
  }
  write_file_atomic(folder / kIndexFile, R"({"weight_map":{)" + map + "}}");
  write_file_atomic(folder / "config.json", llama_config(sizes));
}

// Removes the files from the system's page cache.
void drop_cache(const SafetensorsFolder& model) {
  for (const auto& file : model.files()) {
    const int fd = ::open(file->path().c_str(), O_RDONLY);
    MT_CHECK(fd >= 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
    ::close(fd);
  }
}

// Reads tensors until `bytes` are read, and returns the most anonymous memory seen.
int64_t read_model(const interchange::HfFolder& model, int64_t bytes, std::vector<float>& values) {
  const auto source = model.source();
  const int64_t end = model.tensors->bytes_read() + bytes;
  int64_t most = 0, runs = 0;
  for (const interchange::MappedTensor& t : model.map.tensors())
    for (int64_t first = 0; first < t.shape.count() && model.tensors->bytes_read() < end;
         first += kHalf) {
      source->read(t.name, first, std::min(kHalf, t.shape.count() - first),
                   values.data() + runs++ % 2 * kHalf);
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
  std::vector<float> values(2 * kHalf);
  fs::create_directories(folder / "dense");
  fs::create_directories(folder / "sparse");
  write_dense_model(folder / "dense", gigabytes);
  {
    const interchange::HfFolder model = interchange::open_hf_folder(folder / "dense");
    double bytes = 0;
    for (const StoredTensor* t : model.tensors->tensors()) bytes += double(t->bytes);
    for (const bool cold : {true, false}) {
      std::vector<double> ours, theirs;
      for (int round = 0; round < rounds; ++round) {
        if (cold) drop_cache(*model.tensors);
        theirs.push_back(seconds([&] { dd(*model.tensors); }));
        if (cold) drop_cache(*model.tensors);
        ours.push_back(seconds([&] { read_model(model, INT64_MAX / 2, values); }));
      }
      std::printf("%s: dd %.2f GB/s, mtrain %.2f GB/s (%.2f x dd), medians of %d\n",
                  cold ? "from the disk" : "from the page cache", bytes / 1e9 / median(theirs),
                  bytes / 1e9 / median(ours), median(theirs) / median(ours), rounds);
    }
  }
  const double sparse = argument(4, 1000);
  if (sparse > 0) {
    write_sparse_model(folder / "sparse", llama_tensors(kLlama70b), 30);
    write_file_atomic(folder / "sparse" / "config.json", llama_config(kLlama70b));
    const interchange::HfFolder model = interchange::open_hf_folder(folder / "sparse");
    int64_t most = 0;
    const double s = seconds([&] { most = read_model(model, int64_t(sparse * 1e9), values); });
    std::printf(
        "70B's shapes in %zu sparse files: %.1f GB in %.1f s, at most %.0f MiB of anonymous "
        "memory\n",
        model.tensors->files().size(), double(model.tensors->bytes_read()) / 1e9, s,
        double(most) / (1 << 20));
  }
  fs::remove_all(folder);
}
