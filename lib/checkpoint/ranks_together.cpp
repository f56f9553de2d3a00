#include "checkpoint/ranks_together.h"

#include <future>

#include "base/error.h"

namespace mtrain::checkpoint {

namespace {

constexpr std::chrono::milliseconds kBetweenMeetings{200};

// The text of an error: its kind, its message, and its hint after the separator.
constexpr char kUser = 'u', kRun = 'r', kSeparator = '\0';

std::string text_of(char kind, const Error& e) {
  return kind + e.message() + kSeparator + e.hint();
}

}  // namespace

void Meetings::during_work() {
  if (control_.size() == 1) return;
  if (const auto now = std::chrono::steady_clock::now(); now - last_ >= kBetweenMeetings) {
    control_.any(true);
    last_ = std::chrono::steady_clock::now();
  }
}

void Meetings::finish() {
  while (control_.any(false)) {
  }
}

void Meetings::run(const std::function<void()>& work) {
  if (control_.size() == 1) return work();
  std::future<void> end = std::async(std::launch::async, work);
  while (end.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) during_work();
  end.get();
}

void all_together(const comm::HostCollectives& control,
                  const std::function<void(Meetings& meetings)>& work) {
  Meetings meetings(control);
  if (control.size() == 1) return work(meetings);
  std::string own;
  try {
    work(meetings);
  } catch (const UserError& e) {
    own = text_of(kUser, e);
  } catch (const RunError& e) {
    own = text_of(kRun, e);
  }
  meetings.finish();
  const std::vector<std::string> errors = control.texts(own);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const size_t end = errors[rank].find(kSeparator);
    const std::string message = fmt::format("rank {}: {}", rank, errors[rank].substr(1, end - 1)),
                      hint = errors[rank].substr(end + 1);
    if (errors[rank][0] == kUser) throw UserError(message, hint);
    throw RunError(message, hint);
  }
}

}  // namespace mtrain::checkpoint
