// What the launchers of a job write for each other into the store: notes of each launcher about
// itself, and news of the one that leads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::launch {

// Why a round, a start of all ranks of the job, has failed, as one launcher sees it.
struct RoundCause {
  // The cause with the lowest weight comes first. 0: a rank died, or a host is gone; 1: a rank's
  // own error; 2: a rank has lost a peer; 3: ranks were ended.
  int weight = 3;
  int exit_code = 1;
  bool interrupted = false;  // a signal has ended the ranks
  int64_t step = 0;
  std::optional<int> rank;
  std::string host, message;
  std::string text;  // lines to print
};

// The note of a launcher, under the key note_key().
struct LauncherNote {
  enum class State { waiting, running, failed, ended };
  std::string id, host;
  int node = 0, ranks = 1;
  int64_t beat = 0;  // changes every kBeat: the launcher is alive
  State state = State::waiting;
  int64_t round = -1;            // that it runs, or has ended
  bool well = false;             // all its ranks have ended well
  int signal = 0;                // of a request to end; 0: none
  bool second = false;           // a second request has come: all ranks are killed
  std::optional<int> straggler;  // the rank of the round that was named as too slow
  std::optional<RoundCause> cause;
};

// The ranks that a host runs in a round.
struct RoundMember {
  int node = 0;
  std::string id;
  int first_rank = 0, ranks = 0;
};

// News of the leader. All launchers print the lines.
struct LauncherNews {
  enum class Kind {
    run,     // begin the round; with an `id`, this launcher alone
    end,     // end the ranks of the round
    kill,    // the same, at once
    signal,  // pass the signal on to the ranks
    cause,   // the round has failed, with the agreed cause; or lines to print
    over,    // the job has ended with this exit code
    refuse   // the launcher `id` cannot join
  };
  Kind kind = Kind::run;
  int64_t round = 0;
  std::vector<RoundMember> members;  // of a round; empty: each host as its command line says
  int world = 0;                     // ranks of the round
  int restarts_left = 0;             // if it fails before a new checkpoint
  int signal = 0, code = 0;
  bool restarts = false;  // after `cause`, all ranks begin again
  double delay_s = 0;     // until then
  std::string id;
  std::string job = {};       // identifies the job of a round; "": each launcher does by itself
  int64_t counted_from = -1;  // as in RoundFacts
  std::optional<RoundCause> cause;
  std::vector<std::string> lines;
};

// The launcher that leads a job, as the others find it in etcd (etcd_election.h).
struct LeaderRecord {
  std::string id, host;
  int node = 0;
  std::string address;    // of its store
  uint16_t port = 0;      // 0: it does not serve yet
  std::string job_token;  // a fingerprint of the job's token
};

// What is known about the rounds of a job when one begins. It outlives the launcher that leads.
struct RoundFacts {
  std::string leader, leader_host;  // its id, and the name of its host
  int leader_node = 0;
  std::string leader_address = {};  // of its store
  uint16_t leader_port = 0;
  std::string job_token = {};  // as in LeaderRecord
  std::string job = {};        // the id of the job, which its first leader has made
  int64_t round = 0;
  std::vector<RoundMember> members;      // as in LauncherNews
  int64_t counted_from = -1;             // restarts are counted since this checkpoint
  std::optional<int64_t> began_with;     // the newest checkpoint when the round began
  int restarts = 0, failures = 0;        // as RoundLeader counts them
  std::vector<std::string> proven = {};  // ids of hosts with which the job has trained
  bool over = false;                     // the job has ended with this exit code
  int code = 0;
};

// Whether the launcher `id` has nothing to do: another one begins, or cannot join.
bool is_of_other(const LauncherNews& news, const std::string& id);

std::string note_key(const LauncherNote& note);
// News have the numbers 1, 2, ... A launcher that joins begins with the number under kFirstNews.
std::string news_key(int64_t number);
constexpr const char* kFirstNews = "news/first";

std::string text_of(const LauncherNote& note);
std::string text_of(const LauncherNews& news);
std::string text_of(const LeaderRecord& record);
std::string text_of(const RoundFacts& facts);
// Return nothing for a text that is malformed or out of range.
std::optional<LauncherNote> parse_note(std::string_view text);
std::optional<LauncherNews> parse_news(std::string_view text);
std::optional<LeaderRecord> parse_leader(std::string_view text);
std::optional<RoundFacts> parse_facts(std::string_view text);

}  // namespace mtrain::launch
