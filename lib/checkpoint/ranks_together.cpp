#include "checkpoint/ranks_together.h"

#include <filesystem>
#include <future>

#include "checkpoint/save_error.h"

namespace mtrain::checkpoint {

namespace {

constexpr std::chrono::milliseconds kBetweenMeetings{200};

constexpr char kSeparator = '\0';  // between an error's message and its hint

}  // namespace

void with_save_errors(const std::function<void()>& work) {
  try {
    work();
  } catch (const RunError& e) {
    throw SaveError(e.message(), e.hint());
  } catch (const UserError& e) {  // a file cannot be read back
    throw SaveError(e.message(), e.hint());
  } catch (const std::filesystem::filesystem_error& e) {
    throw SaveError(e.what());
  }
}

std::string print_error(const SaveError& error) {
  return error.message() + kSeparator + error.hint();
}

SaveError parse_error(const std::string& text) {
  const size_t end = text.find(kSeparator);
  return SaveError(text.substr(0, end), text.substr(end + 1));
}

SaveError error_of_rank(size_t rank, const std::string& text) {
  const SaveError error = parse_error(text);
  return SaveError(fmt::format("rank {}: {}", rank, error.message()), error.hint());
}

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
  if (control.size() == 1) return with_save_errors([&] { work(meetings); });
  std::string own;
  try {
    with_save_errors([&] { work(meetings); });
  } catch (const SaveError& e) {
    own = print_error(e);
  }
  meetings.finish();
  const std::vector<std::string> errors = control.texts(own);
  for (size_t rank = 0; rank < errors.size(); ++rank)
    if (!errors[rank].empty()) throw error_of_rank(rank, errors[rank]);
}

}  // namespace mtrain::checkpoint
