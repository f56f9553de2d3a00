#include "generate/generate.h"

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/dataset/id_check.h"
#include "data/tokenizer/utf8.h"
#include "generate/text_stream.h"

namespace mtrain::generate {

namespace {

// The tokens of a prompt: the beginning of all texts, then its own.
struct Prompt {
  std::vector<int32_t> ids;
  size_t begin = 0;  // where its own text begins
};

Prompt encode(const data::Tokenizer& tokenizer, const std::string& text,
              const GenerateOptions& options) {
  Prompt p{.ids = data::begin_of_text(options.bos, tokenizer)};
  p.begin = p.ids.size();
  tokenizer.encode(text, p.ids);
  return p;
}

// A request that has a slot of the cache.
struct Sequence {
  size_t request;
  int64_t slot;
  std::vector<int32_t> ids;  // prompt, then new tokens
  int64_t prompt = 0;        // tokens of the prompt
  int64_t computed = 0;      // tokens whose keys and values are in the cache
  TextStream text;
};

class Generation {
 public:
  Generation(CachedModel& model, const data::Tokenizer& tokenizer,
             const std::vector<Request>& requests, const GenerateOptions& options,
             const Listener& listener)
      : model_(model), tokenizer_(tokenizer), requests_(requests), o_(options), to_(listener) {
    for (const Request& r : requests) {
      prompts_.push_back(encode(tokenizer, r.prompt, options));
      check(r.name, prompts_.back().ids);
    }
    for (int64_t s = 0; s < model.cache().slots(); ++s) free_slots_.push_back(s);
  }

  // Prompts come first: as many sequences as possible then share the steps of one token.
  void run() {
    while (next_ < requests_.size() || !active_.empty()) {
      while (next_ < requests_.size() && !free_slots_.empty()) admit(next_++);
      const bool prompts = std::ranges::any_of(active_, in_prompt);
      step(prompts ? prompt_pieces() : single_pieces());
    }
  }

 private:
  static bool in_prompt(const Sequence& s) { return s.computed < s.prompt; }

  void check(const std::string& name, const std::vector<int32_t>& ids) const {
    if (ids.empty()) throw UserError(name + " is empty", "give at least one character");
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] >= model_.vocabulary())
        throw UserError(
            fmt::format("token {} of {} has the {}, but the model's vocabulary has {} ids", i, name,
                        data::describe_id(ids[i], &tokenizer_), model_.vocabulary()),
            "leave that token out, or use the tokenizer with which the model was trained");
    if (int64_t(ids.size()) >= o_.context)
      throw UserError(fmt::format("{} has {} tokens, and the model's context is {}", name,
                                  ids.size(), o_.context),
                      "give a shorter prompt: new tokens need room, too");
  }

  void admit(size_t request) {
    const Prompt& prompt = prompts_[request];
    const auto own_text = std::span(prompt.ids).subspan(prompt.begin);
    active_.push_back({.request = request,
                       .slot = free_slots_.front(),
                       .ids = prompt.ids,
                       .prompt = int64_t(prompt.ids.size()),
                       .text = TextStream(tokenizer_, own_text, o_.stop)});
    free_slots_.pop_front();
    if (!o_.echo_prompt) return;
    // An incomplete character at its end is shown with the tokens that complete it.
    const std::string_view text = requests_[request].prompt;
    to_.text(request, text.substr(0, text.size() - data::utf8_unfinished(text)));
  }

  struct Work {
    Sequence* sequence;
    Piece piece;
  };
  static Work work_on(Sequence& s, int64_t count) {
    return {&s,
            {s.slot, s.computed, std::span(s.ids).subspan(size_t(s.computed), size_t(count)),
             in_prompt(s)}};
  }
  // Fills a forward with parts of prompts, in the order of requests.
  std::vector<Work> prompt_pieces() {
    std::vector<Work> work;
    int64_t room = o_.chunk;
    for (Sequence& s : active_) {
      if (!in_prompt(s) || room == 0) continue;
      const int64_t count = std::min(room, s.prompt - s.computed);
      work.push_back(work_on(s, count));
      room -= count;
    }
    return work;
  }
  std::vector<Work> single_pieces() {
    std::vector<Work> work;
    for (Sequence& s : active_) work.push_back(work_on(s, 1));
    return work;
  }

  void step(const std::vector<Work>& work) {
    std::vector<Piece> pieces;
    for (const Work& w : work) pieces.push_back(w.piece);
    const auto logits = model_.forward(pieces);
    for (size_t i = 0; i < work.size(); ++i) {
      Sequence& s = *work[i].sequence;
      s.computed += int64_t(work[i].piece.ids.size());
      if (s.computed < int64_t(s.ids.size())) continue;  // the prompt continues in the next step
      if (const auto end = add_token(s, logits[i])) finish(s, *end);
    }
    std::erase_if(active_, [](const Sequence& s) { return s.slot < 0; });
  }

  // Draws the next token of a sequence. Returns why the text ends with it, if it does.
  std::optional<End> add_token(Sequence& s, const std::vector<float>& logits) {
    const int64_t added = int64_t(s.ids.size()) - s.prompt;
    const auto known = std::min(int64_t(logits.size()), tokenizer_.vocab_size());
    const int32_t id = draw(std::span(logits).first(size_t(known)), s.ids, o_.sampling,
                            requests_[s.request].sample, uint64_t(added));
    if (std::ranges::find(o_.eos, id) != o_.eos.end()) return End::end_of_text;
    s.ids.push_back(id);
    say(s, s.text.push(id));
    if (s.text.stopped()) return End::stop_string;
    if (added + 1 == o_.tokens) return End::tokens;
    if (int64_t(s.ids.size()) == o_.context) return End::context;
    return {};
  }

  void finish(Sequence& s, End end) {
    say(s, s.text.finish());
    to_.end(s.request, end);
    free_slots_.push_back(std::exchange(s.slot, -1));
  }

  void say(const Sequence& s, const std::string& text) const {
    if (!text.empty()) to_.text(s.request, text);
  }

  CachedModel& model_;
  const data::Tokenizer& tokenizer_;
  const std::vector<Request>& requests_;
  const GenerateOptions& o_;
  const Listener& to_;
  std::vector<Prompt> prompts_;  // prompts of the requests
  size_t next_ = 0;              // the next request to get a slot
  std::deque<int64_t> free_slots_;
  std::list<Sequence> active_;  // in the order of requests
};

}  // namespace

const char* end_name(End end) {
  switch (end) {
    case End::tokens: return "tokens";
    case End::end_of_text: return "end_of_text";
    case End::stop_string: return "stop_string";
    case End::context: return "context";
  }
  throw BugError("an end of a text");
}

int64_t longest(const data::Tokenizer& tokenizer, const std::vector<Request>& requests,
                const GenerateOptions& options) {
  size_t most = 0;
  for (const Request& r : requests)
    most = std::max(most, encode(tokenizer, r.prompt, options).ids.size());
  return std::min(int64_t(most) + options.tokens, options.context);
}

void generate(CachedModel& model, const data::Tokenizer& tokenizer,
              const std::vector<Request>& requests, const GenerateOptions& options,
              const Listener& listener) {
  check(options.sampling);
  Generation(model, tokenizer, requests, options, listener).run();
}

}  // namespace mtrain::generate
