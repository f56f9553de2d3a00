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
  MT_CHECK(!options.before_commit, "files of others are only added while training waits");
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
  made_key_ = key(work, "folder");
  written_ = 0;
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
  if (rank_ == 0 && ranks_ > 1) mailbox_->remove(made_key_);
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
  std::optional<storage::CheckpointWriter> writer;
  if (rank_ > 0) {
    if (await_text(key(work, "folder"))[0] == kFailed) return;
  } else {
    const std::string error = error_in([&] {
      writer.emplace(work.options.root, work.state.progress.steps_done, work.options.keep,
                     work.options.job);
      storage::require_space(writer->folder(), total_bytes_);
    });
    if (ranks_ > 1)
      mailbox_->put(key(work, "folder"), std::string(1, error.empty() ? kDone : kFailed));
    if (!error.empty()) result.error = of_rank(0, error);
    if (!error.empty()) return;
  }
  std::string files;
  Clock::time_point began;
  const std::string error = error_in([&] { files = write_own(work, began); });
  const std::string own = error.empty() ? kDone + files : kFailed + error;
  if (rank_ > 0) {
    moment(work, "report");
    return mailbox_->put(key(work, std::to_string(rank_)), own);
  }
  std::vector<std::string> reports{own};
  for (int rank = 1; rank < ranks_; ++rank) {
    const std::string of_rank = key(work, std::to_string(rank));
    reports.push_back(await_text(of_rank));
    mailbox_->remove(of_rank);  // the store holds a limited number of bytes
  }
  for (size_t rank = 0; rank < reports.size() && result.error.empty(); ++rank) {
    if (reports[rank][0] == kFailed) result.error = of_rank(int(rank), reports[rank].substr(1));
    reports[rank].erase(0, 1);
  }
  if (!result.error.empty()) return;
  result.error = error_in([&] {
    SaveOptions options = work.options;
    prepare_commit(*writer, work.state, reports, options,
                   [&] { pause(std::chrono::milliseconds(0)); });
    result.saved.checkpoint = writer->commit();
  });
  if (!result.error.empty()) result.error = of_rank(0, result.error);
  result.saved.seconds = std::chrono::duration<double>(Clock::now() - began).count();
}

std::string BackgroundSaver::write_own(const Work& work, Clock::time_point& began) {
  const auto go_on = [&] { pause(std::chrono::milliseconds(0)); };
  await_folder(work.folder, go_on);
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
