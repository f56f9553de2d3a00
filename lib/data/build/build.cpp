#include "data/build/build.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/build/chunk_reader.h"
#include "data/build/input_check.h"
#include "data/build/json_line.h"
#include "data/chat/encode_chat.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {
namespace {

// The documents of a chunk as tokens.
struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> labels;  // whether each token counts as a label; empty without a mask
  std::vector<size_t> ends;     // the end of each document in `tokens`; the last may be incomplete
  bool ends_document = true, validation = false;
  bool text = false;  // of a text file
  int64_t bytes_through = 0, bad_lines = 0, without_token = 0;
  // Thrown when this chunk is the next to write: the first error of the input must be reported.
  std::exception_ptr error;
};

class Builder {
 public:
  Builder(const BuildOptions& options, const Tokenizer& tokenizer,
          const std::function<void(const BuildProgress&)>& progress)
      : options_(options),
        tokenizer_(tokenizer),
        progress_(progress),
        begin_(begin_of(options, tokenizer)),
        fields_(options.prompt_field.empty()
                    ? std::vector{options.json_field}
                    : std::vector{options.prompt_field, options.answer_field}),
        reader_(options, tokenizer),
        prefixes_(output_prefixes(options)) {
    const TokenType type = token_type_for(tokenizer.vocab_size());
    for (const auto& prefix : prefixes_)
      writers_.push_back(std::make_unique<IndexedDatasetWriter>(prefix, type, masked()));
  }

  BuildResult run() {
    const int threads = options_.threads > 0
                            ? options_.threads
                            : std::max(1, int(std::thread::hardware_concurrency()));
    window_ = 4 * threads;
    std::vector<std::thread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back([this] { work(); });
    work();
    for (std::thread& helper : helpers) helper.join();
    if (error_) std::rethrow_exception(error_);
    return finish();
  }

 private:
  bool pairs() const { return fields_.size() == 2; }  // of prompts and answers
  bool chats() const { return !options_.messages_field.empty(); }
  bool masked() const { return options_.lines ? options_.lines->masked() : pairs() || chats(); }

  // A chat template writes the beginning of its texts.
  static std::vector<int32_t> begin_of(const BuildOptions& options, const Tokenizer& tokenizer) {
    const bool none = !options.messages_field.empty() && options.bos == BeginOfText::automatic;
    return begin_of_text(none ? BeginOfText::none : options.bos, tokenizer);
  }

  // Every thread takes the next chunk, encodes it, and writes the chunks that are next in order. To
  // bound the memory, a thread waits if it is ahead of the writing by more than the window.
  void work() {
    Chunk chunk;
    while (take(chunk)) {
      Encoded encoded;
      try {
        encoded = encode(chunk);
      } catch (...) {
        encoded.error = std::current_exception();
      }
      deliver(chunk.number, std::move(encoded));
    }
  }

  bool take(Chunk& chunk) {
    std::unique_lock lock(mutex_);
    space_.wait(lock, [&] { return stop_ || taken_ - written_ < window_; });
    if (stop_) return false;
    try {
      if (!reader_.next(chunk)) return false;
    } catch (...) {
      error_ = std::current_exception();
      stop_ = true;
      space_.notify_all();
      return false;
    }
    ++taken_;
    return true;
  }

  void deliver(int64_t number, Encoded encoded) {
    std::lock_guard lock(mutex_);
    waiting_.emplace(number, std::move(encoded));
    for (auto it = waiting_.begin(); it != waiting_.end() && it->first == written_ && !stop_;
         it = waiting_.erase(it)) {
      try {
        if (it->second.error) std::rethrow_exception(it->second.error);
        write(it->second);
      } catch (...) {
        error_ = std::current_exception();
        stop_ = true;
        break;
      }
      ++written_;
    }
    space_.notify_all();
  }

  Encoded encode(const Chunk& chunk) const {
    Encoded out;
    out.ends_document = chunk.ends_document;
    out.validation = chunk.validation;
    out.bytes_through = chunk.bytes_through;
    out.text = chunk.format != InputFormat::jsonl;
    if (chunk.format == InputFormat::jsonl) {
      encode_lines(chunk, out);
    } else if (masked()) {
      throw UserError(fmt::format("{} is read as text, which has no {}", chunk.file.string(),
                                  chats() ? "messages" : "prompts and answers"),
                      "give JSON lines; --format jsonl reads files of any name as such");
    } else {
      refuse_invalid_text(chunk);
      for (std::string_view document : split_documents(chunk.text, options_)) {
        tokenizer_.encode(document, out.tokens);
        out.ends.push_back(out.tokens.size());
      }
    }
    return out;
  }

  void encode_lines(const Chunk& chunk, Encoded& out) const {
    const std::string_view text = chunk.text;
    int64_t line_number = chunk.first_line;
    for (size_t at = 0; at < text.size(); ++line_number) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(at, end - at);
      at = end + 1;
      if (trim(line).empty()) continue;
      if (options_.lines && !options_.lines->wants(chunk.file, line_number)) continue;
      LineFault fault;
      if (encode_line(line, chunk, fault, out)) {
        out.ends.push_back(out.tokens.size());
      } else if (options_.skip_bad_lines) {
        ++out.bad_lines;
      } else {
        throw UserError(fmt::format("{}:{}: {}", chunk.file.string(), line_number, fault.why),
                        fault.hint);
      }
    }
  }

  // Returns false, and sets `fault`, if the line cannot be used.
  bool encode_line(std::string_view line, const Chunk& chunk, LineFault& fault,
                   Encoded& out) const {
    if (options_.lines) return options_.lines->encode(line, fault, out.tokens, out.labels);
    if (chats()) {
      const auto chat = chat_of_line(line, options_.messages_field, *options_.chat, fault);
      if (chat) encode_chat(*chat, tokenizer_, out.tokens, out.labels);
      return chat.has_value();
    }
    const bool earlier = chunk.first_line > 1 || !out.ends.empty();
    const auto texts = texts_of_line(line, fields_, earlier, fault);
    if (!texts) return false;
    size_t before = 0;  // where the last text begins; the labels are in it
    for (size_t i = 0; i < texts->size(); ++i) {
      before = out.tokens.size();
      tokenizer_.encode((*texts)[i], out.tokens);
      if (pairs()) out.labels.resize(out.tokens.size(), i == 1);  // the answer
    }
    out.without_token += out.tokens.size() == before;
    return true;
  }

  // The part of a document is chosen at its first token, and kept in later chunks.
  void write(const Encoded& encoded) {
    size_t begin = 0;
    for (size_t i = 0; i < encoded.ends.size(); ++i) {
      const size_t end = encoded.ends[i];
      const bool unfinished = i + 1 == encoded.ends.size() && !encoded.ends_document;
      if (end > begin) {
        if (!open_) {
          open_ = writers_[pick_part(encoded.validation)].get();
          add_tokens(begin_, std::vector<uint8_t>(begin_.size(), 0));
        }
        add_tokens(
            std::span(encoded.tokens).subspan(begin, end - begin),
            std::span(encoded.labels).subspan(masked() ? begin : 0, masked() ? end - begin : 0));
      }
      if (!unfinished) end_document();
      begin = end;
    }
    bad_lines_ += encoded.bad_lines;
    without_token_ += encoded.without_token;
    text_ = text_ || encoded.text;
    bytes_ = encoded.bytes_through;
    report();
  }

  // `labels` is used only with a mask.
  void add_tokens(std::span<const int32_t> tokens, std::span<const uint8_t> labels) {
    if (masked())
      open_->add_tokens(tokens, labels);
    else
      open_->add_tokens(tokens);
  }

  void end_document() {
    if (!open_) return;  // the document has no token
    if (options_.append_eod) {
      const int32_t eod = *tokenizer_.eod();
      open_->add_tokens({&eod, 1});
    }
    open_->end_document();
    open_ = nullptr;
    ++documents_;
  }

  size_t pick_part(bool validation) const {
    if (writers_.size() == 1) return 0;
    if (options_.validation_split == ValidationSplit::tail) return validation;
    constexpr uint64_t kOne = uint64_t(1) << 53;
    const uint64_t draw =
        uniform_below(rng_key(options_.seed, "validation split"), uint64_t(documents_), kOne);
    return double(draw) < options_.validation_fraction * double(kOne);
  }

  void report() const {
    if (!progress_) return;
    BuildProgress now{
        .bytes_done = bytes_, .bytes_total = reader_.bytes_total(), .documents = documents_};
    for (const auto& writer : writers_) now.tokens += writer->tokens();
    progress_(now);
  }

  std::string hint_for_empty_part() const {
    if (writers_.size() == 1) return "give an input with text in it";
    if (text_ && options_.split == DocumentSplit::file &&
        options_.validation_split == ValidationSplit::documents)
      return "a text file is one document: add --validation-split tail to hold out the end of the "
             "input, or --split blank-line for a document between blank lines";
    return "use a larger input, another fraction, or split off the tail";
  }

  BuildResult finish() {
    BuildResult result{.bytes = bytes_, .bad_lines = bad_lines_, .without_token = without_token_};
    for (size_t i = 0; i < writers_.size(); ++i) {
      const BuildResult::Part part{prefixes_[i], writers_[i]->documents(), writers_[i]->tokens(),
                                   writers_[i]->labels()};
      if (part.tokens == 0)
        throw UserError(
            fmt::format("{} would have no document ({} in the input, {} bad lines skipped)",
                        part.prefix.string(), documents_, bad_lines_),
            hint_for_empty_part());
      result.parts.push_back(part);
    }
    // All parts are complete on the disk before an older one is replaced.
    for (auto& writer : writers_) writer->prepare();
    for (auto& writer : writers_) writer->finish();
    return result;
  }

  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  const std::function<void(const BuildProgress&)>& progress_;
  const std::vector<int32_t> begin_;       // the tokens before each document
  const std::vector<std::string> fields_;  // of a JSON line: its text, or its prompt and its answer

  std::mutex mutex_;  // guards the members below
  std::condition_variable space_;
  ChunkReader reader_;
  int64_t taken_ = 0, written_ = 0, window_ = 0;  // chunks
  std::map<int64_t, Encoded> waiting_;
  bool stop_ = false;
  std::exception_ptr error_;
  const std::vector<std::filesystem::path> prefixes_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
  IndexedDatasetWriter* open_ = nullptr;  // the part that gets the open document
  bool text_ = false;                     // a part of the input is a text file
  int64_t documents_ = 0, bytes_ = 0, bad_lines_ = 0, without_token_ = 0;
};

void check(const BuildOptions& o, const Tokenizer& tokenizer) {
  if (!(o.validation_fraction >= 0 && o.validation_fraction < 1))
    throw UserError(fmt::format("the validation fraction is {}, expected 0 <= fraction < 1",
                                o.validation_fraction));
  if (o.append_eod && !tokenizer.eod())
    throw UserError(fmt::format("the tokenizer {} has no end-of-document token", tokenizer.name()),
                    "build without end-of-document tokens: --no-eod");
  begin_of_text(o.bos, tokenizer);  // throws if there is no such token
  if (o.prompt_field.empty() != o.answer_field.empty())
    throw UserError(
        fmt::format("the {} has no field", o.prompt_field.empty() ? "prompt" : "answer"),
        "name both fields: --prompt-field and --answer-field");
  MT_CHECK(o.messages_field.empty() || (o.chat && o.prompt_field.empty()),
           "the messages' template");
  if (!o.prompt_field.empty() && o.prompt_field == o.answer_field)
    throw UserError(fmt::format("prompt and answer are the same field, \"{}\"", o.prompt_field),
                    "name two fields: --prompt-field and --answer-field");
  if (o.threads < 0)
    throw UserError(fmt::format("the number of threads is {}", o.threads), "0 means one per core");
  if (o.chunk_bytes < 1) throw UserError(fmt::format("the chunk size is {} bytes", o.chunk_bytes));
  if (o.split == DocumentSplit::separator && o.separator.empty())
    throw UserError("the separator line is empty", "split at blank lines instead");
  if (o.output.filename().empty()) throw UserError("no output prefix");
}

}  // namespace

std::vector<std::filesystem::path> output_prefixes(const BuildOptions& options) {
  std::vector<std::filesystem::path> prefixes;
  const bool split = options.validation_fraction > 0;
  for (const char* suffix : split ? std::vector{"_train", "_valid"} : std::vector{""}) {
    prefixes.push_back(options.output);
    prefixes.back() += suffix;
  }
  return prefixes;
}

BuildResult build_dataset(const BuildOptions& options, const Tokenizer& tokenizer,
                          const std::function<void(const BuildProgress&)>& progress) {
  check(options, tokenizer);
  return Builder(options, tokenizer, progress).run();
}

}  // namespace mtrain::data
