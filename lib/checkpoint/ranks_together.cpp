#include "checkpoint/ranks_together.h"

#include <filesystem>
#include <future>

#include "checkpoint/save_error.h"

namespace mtrain::checkpoint {

namespace {

constexpr std::chrono::milliseconds kBetweenMeetings{200};

constexpr char kSeparator = '\0';  // between an error's message and its hint

// Runs `work`, and converts errors of files.
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
  if (control.size() == 1) return with_save_errors([&] { work(meetings); });
  std::string own;
  try {
    with_save_errors([&] { work(meetings); });
  } catch (const SaveError& e) {
    own = e.message() + kSeparator + e.hint();
  }
  meetings.finish();
  const std::vector<std::string> errors = control.texts(own);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const size_t end = errors[rank].find(kSeparator);
    throw SaveError(fmt::format("rank {}: {}", rank, errors[rank].substr(0, end)),
                    errors[rank].substr(end + 1));
  }
}

}  // namespace mtrain::checkpoint
