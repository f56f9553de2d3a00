#include "run/chat.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/ignore_sigpipe.h"
#include "base/log.h"
#include "data/chat/chat_template.h"
#include "run/loaded_model.h"
#include "run/stored_model.h"

namespace mtrain::run {

namespace {

struct Turn {
  std::string role, text;
};

struct Interrupted {};

// Returns the path of the model's tokenizer, the argument of load_chat_template().
std::string tokenizer_of(const StoredModel& stored) {
  const auto& path = stored.saved.tokenizer.path;
  return path ? *path : "byte";
}

class Chat {
 public:
  Chat(const ChatJob& job, generate::GenerateOptions options, const StoredModel& stored,
       const data::ChatTemplate& words, LoadedModel& model, const ChatPartner& partner)
      : options_(std::move(options)),
        tokenizer_(stored.text_tokenizer()),
        words_(words),
        model_(model),
        partner_(partner) {
    if (!job.system.empty()) turns_.push_back({"system", job.system});
    first_ = turns_.size();
  }

  void run() {
    while (const auto message = partner_.next()) {
      turns_.push_back({"user", *message});
      turns_.push_back({"assistant", answer()});
    }
  }

 private:
  std::string prompt() const {
    data::Conversation conversation;
    for (const Turn& turn : turns_) data::add_message(conversation, turn.role, turn.text);
    return words_.render(conversation, true);
  }

  int64_t tokens_of(const std::string& text) const {
    std::vector<int32_t> ids;
    tokenizer_.encode(text, ids);
    return int64_t(ids.size());
  }

  // Returns the prompt. Forgets the first messages, with their answers, while it has no room for
  // an answer.
  std::string fitting_prompt() {
    std::string text = prompt();
    const int64_t room = std::min(options_.tokens, options_.context / 4);
    bool forgotten = false;
    while (tokens_of(text) + room > options_.context && turns_.size() > first_ + 1) {
      turns_.erase(turns_.begin() + int64_t(first_), turns_.begin() + int64_t(first_) + 2);
      text = prompt();
      forgotten = true;
    }
    if (forgotten)
      log::info(
          fmt::format("the conversation fills the context of {} tokens: its first messages "
                      "are forgotten",
                      options_.context));
    return text;
  }

  std::string answer() {
    std::string text;
    const generate::Request request{
        .prompt = fitting_prompt(), .sample = answers_++, .name = "the conversation"};
    const auto stop_if_asked = [&] {
      if (partner_.interrupts()) throw Interrupted();
    };
    const generate::Listener listener{.text =
                                          [&](size_t, std::string_view piece) {
                                            text += piece;
                                            partner_.text(piece);
                                            stop_if_asked();
                                          },
                                      .end = [&](size_t, generate::End end) { partner_.end(end); }};
    try {
      generate::generate(model_.cached(), tokenizer_, {request}, options_, listener);
    } catch (const Interrupted&) {
      partner_.stopped();
    }
    return text;
  }

  const generate::GenerateOptions options_;
  const data::Tokenizer& tokenizer_;
  const data::ChatTemplate& words_;
  LoadedModel& model_;
  const ChatPartner& partner_;
  std::vector<Turn> turns_;
  size_t first_ = 0;  // the first turn that may be forgotten
  uint64_t answers_ = 0;
};

}  // namespace

void chat(const ChatJob& job, generate::GenerateOptions options, const ChatPartner& partner) {
  const IgnoreSigpipe pipes;
  if (job.generate.job.size > 1)
    throw UserError(fmt::format("a chat runs on one rank, not on {}", job.generate.job.size),
                    "start it without a launcher");
  const StoredModel stored = open_model(job.generate.model, job.generate.machine,
                                        job.generate.tokenizer, job.generate.adapter);
  stored.text_tokenizer();  // throws if there is none
  const auto words = data::load_chat_template(job.chat_template, tokenizer_of(stored));
  options.context = std::min(stored.context(), kLongestChat);
  options.echo_prompt = false;
  if (options.bos == data::BeginOfText::automatic) options.bos = data::BeginOfText::none;
  for (const int32_t id : stored.end_ids()) options.eos.push_back(id);
  if (const std::string end = words->end_of_turn(); !end.empty()) options.stop.push_back(end);
  report(stored);
  comm::World world = comm::World::alone();
  LoadedModel model(world, job.generate.job, stored, job.generate.dtype, 1, options.context);
  Chat(job, std::move(options), stored, *words, model, partner).run();
}

}  // namespace mtrain::run
