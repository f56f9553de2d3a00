// Speed of tokenizers, and the ids that scripts/check_tokenizers.sh compares.
//   bench_tokenizer TOKENIZER TEXT [--seconds 5]
//     prints MB of text per second of processor time, and the time to load
//
//   bench_tokenizer --answer TOKENIZER
//     for each line of stdin, a JSON text or a JSON list of ids, prints the ids, a tab, and the
//     decoded bytes in hexadecimal digits
#include <sys/resource.h>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/tokenizer.h"

using namespace mtrain;

namespace {

double processor_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return double(use.ru_utime.tv_sec) + 1e-6 * double(use.ru_utime.tv_usec);
}

void answer(const std::string& path) {
  const auto tokenizer = data::load_tokenizer(path);
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto question = nlohmann::json::parse(line);
    std::vector<int32_t> ids;
    if (question.is_string())
      tokenizer->encode(question.get_ref<const std::string&>(), ids);
    else
      ids = question.get<std::vector<int32_t>>();
    std::string out;
    for (int32_t id : ids) out += fmt::format("{} ", id);
    out += '\t';
    for (char c : tokenizer->decode(ids)) out += fmt::format("{:02x}", uint8_t(c));
    fmt::print("{}\n", out);
  }
}

void measure(const std::string& path, const std::string& file, double seconds) {
  const double begin = processor_seconds();
  const auto tokenizer = data::load_tokenizer(path);
  const double loaded = processor_seconds() - begin;
  const std::string text = read_file(file);
  if (text.empty()) throw UserError(file + " is empty");
  // Documents of a megabyte, as `mtrain data build` has them.
  constexpr size_t kDocument = 1000000;
  std::vector<int32_t> ids;
  double used = 0;
  size_t bytes = 0, tokens = 0;
  while (used < seconds) {
    for (size_t at = 0; at < text.size() && used < seconds; at += kDocument) {
      const std::string_view document = std::string_view(text).substr(at, kDocument);
      ids.clear();
      const double start = processor_seconds();
      tokenizer->encode(document, ids);
      used += processor_seconds() - start;
      bytes += document.size();
      tokens += ids.size();
    }
  }
  fmt::print("{}: {} ids, loaded in {:.3f} s, {:.1f} MB/s, {:.2f} bytes per token\n", path,
             tokenizer->vocab_size(), loaded, 1e-6 * double(bytes) / used,
             double(bytes) / double(tokens));
}

}  // namespace

int main(int count, char** arguments) try {
  const std::vector<std::string> a(arguments + 1, arguments + count);
  if (a.size() == 2 && a[0] == "--answer") {
    answer(a[1]);
  } else if (a.size() == 2 || (a.size() == 4 && a[2] == "--seconds")) {
    measure(a[0], a[1], a.size() == 4 ? std::stod(a[3]) : 5);
  } else {
    fmt::print(stderr,
               "usage: bench_tokenizer TOKENIZER TEXT [--seconds S] | --answer TOKENIZER\n");
    return 2;
  }
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
