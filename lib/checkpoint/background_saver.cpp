#include "checkpoint/background_saver.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "checkpoint/ranks_together.h"
#include "storage/free_space.h"

namespace mtrain::checkpoint {

namespace {

struct GivenUp {};  // ends the thread of a save that is given up

// The first letter of a text about a rank's work.
constexpr char kDone = '+', kFailed = '-';

// Runs `work`, and returns its error of files as print_error(); empty if there is none.
std::string error_in(const std::function<void()>& work) {
  try {
    with_save_errors(work);
    return "";
  } catch (const SaveError& e) {
    return print_error(e);
  }
}

}  // namespace

BackgroundSaver::BackgroundSaver(Device& device, const CheckpointParts& t,
                                 std::shared_ptr<comm::Mailbox> mailbox)
    : rank_(t.control.rank()),
      ranks_(t.control.size()),
      control_(t.control),
      mailbox_(std::move(mailbox)),
      own_bytes_(shard_bytes(t)),
      total_bytes_(bytes_of_all_ranks(t)),
      snapshot_(std::make_shared<Snapshot>(device)) {
  MT_CHECK(mailbox_, "ranks without a mailbox");
  snapshot_->reserve(snapshot_bytes(t));
}

BackgroundSaver::~BackgroundSaver() {
  give_up_ = true;
  if (pending_.valid()) pending_.wait();
}

Event BackgroundSaver::begin(const CheckpointParts& t, const TrainProgress& progress,
                             SaveOptions options) {
  MT_CHECK(!saving_, "another checkpoint is being written");
  const Event copied = snapshot_->stage(t);
  const std::string folder =
      rank_ == 0
          ? storage::temporary_checkpoint(options.root, progress.steps_done, options.job).string()
          : "";
  Work work{.number = ++saves_,
            .folder = control_.texts(folder)[0],
            .state = saved_state(t, progress),
            .io_threads = t.io_threads,
            .options = std::move(options)};
  moment(work, "stage");
  first_keys_ = {key(work, "folder"), key(work, "added")};
  written_ = 0;
  adding_ = false;
  result_.reset();
  saving_ = true;
  pending_ = std::async(std::launch::async, [this, work = std::move(work)] { return run(work); });
  return copied;
}

bool BackgroundSaver::ended(std::chrono::milliseconds longest) {
  if (!saving_) return false;
  if (pending_.valid() && pending_.wait_for(rank_ == 0 ? longest : std::chrono::milliseconds(0)) ==
                              std::future_status::ready)
    result_ = pending_.get();
  if (result_ && result_->failure) std::rethrow_exception(result_->failure);
  return rank_ == 0 && result_;
}

BackgroundSaver::Saved BackgroundSaver::take() {
  MT_CHECK(saving_, "no checkpoint is being written");
  if (pending_.valid()) result_ = pending_.get();
  if (result_->failure) std::rethrow_exception(result_->failure);
  const Result own = *std::exchange(result_, {});
  saving_ = false;
  // Every rank's thread has ended when all are here.
  const std::string error = control_.texts(own.error)[0];
  if (rank_ == 0 && ranks_ > 1)
    for (const std::string& of_all : first_keys_) mailbox_->remove(of_all);
  if (!error.empty()) throw parse_error(error);
  return own.saved;
}

BackgroundSaver::Result BackgroundSaver::run(const Work& work) {
  Result result;
  try {
    write(work, result);
  } catch (const GivenUp&) {
    result.failure = std::make_exception_ptr(BugError("the save was given up"));
  } catch (...) {
    result.failure = std::current_exception();
  }
  return result;
}

// Rank 0 makes the folder, and the others wait for it. All ranks write their files and report to
// rank 0, which then commits. A failure of one rank lets the others finish their files, since the
// folder must not vanish under them.
void BackgroundSaver::write(const Work& work, Result& result) {
  if (rank_ > 0) return write_part(work);
  std::optional<storage::CheckpointWriter> writer;
  const std::string error = error_in([&] {
    writer.emplace(work.options.root, work.state.progress.steps_done, work.options.keep,
                   work.options.job);
    storage::require_space(writer->folder(), total_bytes_);
  });
  send_to_all(work, "folder", error.empty() ? std::string(1, kDone) : std::string(1, kFailed));
  if (!error.empty()) {
    result.error = of_rank(0, error);
    return;
  }
  Clock::time_point began;
  std::string files;
  const std::string own = error_in([&] { files = write_own(work, began); });
  std::vector<std::string> reports{own.empty() ? kDone + files : kFailed + own};
  result.error = take_reports(work, "", reports);
  const auto on_first = [&](const std::function<void()>& step) {
    const std::string failure = error_in(step);
    if (!failure.empty()) result.error = of_rank(0, failure);
  };
  if (result.error.empty())
    on_first([&] {
      SaveOptions options = work.options;
      prepare_commit(*writer, work.state, reports, options, [this] { go_on(); });
    });
  if (work.options.added) {
    const auto before = Clock::now();
    add_files(work, result.error.empty());
    began += Clock::now() - before;  // the rate of the save does not count them
  }
  if (!result.error.empty()) return;
  on_first([&] { result.saved.checkpoint = writer->commit(); });
  result.saved.seconds = std::chrono::duration<double>(Clock::now() - began).count();
}

// What ranks other than 0 do.
void BackgroundSaver::write_part(const Work& work) {
  if (await_text(key(work, "folder"))[0] == kFailed) return;
  std::string files;
  Clock::time_point began;
  const std::string error = error_in([&] { files = write_own(work, began); });
  moment(work, "report");
  report(work, "", error.empty() ? kDone + files : kFailed + error);
  if (!work.options.added) return;
  const std::string text = await_text(key(work, "added"));
  if (text[0] == kFailed) return;
  const std::string of_added =
      error_in([&] { work.options.added.write(work.folder, text.substr(1), [this] { go_on(); }); });
  report(work, "added ", of_added.empty() ? std::string(1, kDone) : kFailed + of_added);
}

// What rank 0 does for the files that are added. `saved`: the others are complete; else no rank
// adds any.
void BackgroundSaver::add_files(const Work& work, bool saved) {
  const AddedFiles& added = work.options.added;
  adding_ = saved;
  std::string text, error;
  if (saved) error = error_in([&] { text = added.begin(work.folder); });
  const bool begun = saved && error.empty();
  send_to_all(work, "added", begun ? kDone + text : std::string(1, kFailed));
  if (!saved) return;
  if (!begun) error = of_rank(0, error);
  if (begun) {
    const std::string own = error_in([&] { added.write(work.folder, text, [this] { go_on(); }); });
    std::vector<std::string> reports{own.empty() ? std::string(1, kDone) : kFailed + own};
    error = take_reports(work, "added ", reports);
  }
  if (error.empty()) {
    const std::string last = error_in(added.end);
    if (!last.empty()) error = of_rank(0, last);
  }
  if (!error.empty()) added.failed(parse_error(error).message());
}

void BackgroundSaver::send_to_all(const Work& work, const char* what, const std::string& text) {
  if (ranks_ > 1) mailbox_->put(key(work, what), text);
}

void BackgroundSaver::report(const Work& work, const std::string& about, const std::string& text) {
  mailbox_->put(key(work, about + std::to_string(rank_)), text);
}

// Adds the reports of the other ranks to that of rank 0, and removes their first letters. Returns
// print_error() of the first error; empty if all ranks have done their work.
std::string BackgroundSaver::take_reports(const Work& work, const std::string& about,
                                          std::vector<std::string>& reports) {
  for (int rank = 1; rank < ranks_; ++rank) {
    const std::string own = key(work, about + std::to_string(rank));
    reports.push_back(await_text(own));
    mailbox_->remove(own);  // the store holds a limited number of bytes
  }
  std::string error;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank][0] == kFailed && error.empty())
      error = of_rank(int(rank), reports[rank].substr(1));
    reports[rank].erase(0, 1);
  }
  return error;
}

std::string BackgroundSaver::write_own(const Work& work, Clock::time_point& began) {
  await_folder(work.folder, [this] { go_on(); });
  snapshot_->wait();
  began = Clock::now();
  moment(work, "write");
  return shards_text(
      write_shards(*snapshot_, rank_, work.folder, work.io_threads, [&](int64_t done, int64_t) {
        written_ = done;
        moment(work, "block");
        go_on();
      }));
}

std::string BackgroundSaver::of_rank(int rank, const std::string& error) const {
  return ranks_ == 1 ? error : print_error(error_of_rank(size_t(rank), error));
}

void BackgroundSaver::moment(const Work& work, std::string_view name) {
  if (work.options.on_commit) work.options.on_commit(name);
}

std::string BackgroundSaver::await_text(const std::string& key) {
  constexpr std::chrono::milliseconds kFirst{2}, kLongest{100};
  for (auto time = kFirst;; time = std::min(2 * time, kLongest)) {
    if (const auto text = mailbox_->find(key)) return *text;
    pause(time);
  }
}

// The folder's name has rank 0's job, attempt and step. Launchers of other hosts may have other ids
// of the job.
std::string BackgroundSaver::key(const Work& work, const std::string& what) {
  return fmt::format("save/{}/{}/{}", work.number, work.folder.filename().string(), what);
}

void BackgroundSaver::pause(std::chrono::milliseconds time) const {
  if (give_up_) throw GivenUp();
  if (time.count() > 0) std::this_thread::sleep_for(time);
}

}  // namespace mtrain::checkpoint
