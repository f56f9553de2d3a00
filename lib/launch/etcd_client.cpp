#include "launch/etcd_client.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/json.h"

namespace mtrain::launch {

namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kEtcdConnectTime = 2s, kEtcdAnswerTime = 5s;
constexpr auto kEtcdWholeAnswer = 8s;  // below the lease of a leader

// Codes of gRPC in etcd's errors.
constexpr int kInvalid = 3, kNotFound = 5, kDenied = 7, kPrecondition = 9, kUnauthenticated = 16;
constexpr size_t kLargestReply = size_t(8) << 20;
constexpr int kHttpOk = 200, kHttpNotFound = 404;

std::string authority(const EtcdOptions::Server& s) {
  return s.host.find(':') == std::string::npos ? fmt::format("{}:{}", s.host, s.port)
                                               : fmt::format("[{}]:{}", s.host, s.port);
}

// The gateway writes numbers of 64 bits as texts, and leaves out those that are 0.
int64_t etcd_number(const json& j, const char* key) {
  if (!j.is_object() || !j.contains(key)) return 0;
  const json& value = j[key];
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_string()) return 0;
  const auto& text = value.get_ref<const std::string&>();
  int64_t n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

// Not by a URL: the library reads no IPv6 address in it.
std::unique_ptr<httplib::ClientImpl> client_of(const EtcdOptions& o,
                                               const EtcdOptions::Server& server) {
  std::unique_ptr<httplib::ClientImpl> client;
  if (o.tls) {
    client =
        std::make_unique<httplib::SSLClient>(server.host, server.port, o.cert_file, o.key_file);
    if (!o.ca_file.empty()) client->set_ca_cert_path(o.ca_file);
    client->enable_server_certificate_verification(true);
  } else {
    client = std::make_unique<httplib::ClientImpl>(server.host, server.port);
  }
  client->set_connection_timeout(kEtcdConnectTime);
  client->set_read_timeout(kEtcdAnswerTime);
  client->set_write_timeout(kEtcdAnswerTime);
  client->set_keep_alive(true);
  client->set_tcp_nodelay(true);
  return client;
}

std::string reason_of(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection: return "no connection";
    case httplib::Error::ConnectionTimeout: return "no connection in time";
    case httplib::Error::Read: return "no answer to a request";
    case httplib::Error::SSLConnection: return "no connection by TLS";
    case httplib::Error::SSLLoadingCerts: return "the certificates of TLS cannot be read";
    case httplib::Error::SSLServerVerification: return "TLS does not trust its certificate";
    default: return httplib::to_string(error);
  }
}

json guarded(const std::string& guard, int64_t created, const std::string& key,
             const std::string& value, int64_t lease) {
  return {{"compare", json::array({{{"key", to_base64(guard)},
                                    {"target", "CREATE"},
                                    {"result", "EQUAL"},
                                    {"create_revision", std::to_string(created)}}})},
          {"success", json::array({{{"request_put",
                                     {{"key", to_base64(key)},
                                      {"value", to_base64(value)},
                                      {"lease", std::to_string(lease)}}}}})}};
}

bool succeeded(const json& reply) {
  return reply.contains("succeeded") && reply["succeeded"].is_boolean() &&
         reply["succeeded"].get<bool>();
}

}  // namespace

struct EtcdClient::Reply {
  int status = 0;  // of HTTP; 0: no server has answered
  std::string body, why;
  int code = 0;  // of an error

  bool lacks_lease() const { return code == kNotFound; }
  // The token of a session is forgotten after 5 minutes without requests, and by a restart.
  bool lacks_session() const {
    return code == kUnauthenticated || why.find("auth: revision") != std::string::npos;
  }
};

EtcdClient::EtcdClient(EtcdOptions options)
    : o_(std::move(options)), connections_(o_.servers.size()) {}
EtcdClient::~EtcdClient() = default;

// A server may have closed a connection that was not used for a while. All requests may be sent
// twice: an attempt whose answer is lost looks the same.
EtcdClient::Reply EtcdClient::post(size_t server, const std::string& path,
                                   const std::string& body) {
  auto& connection = connections_[server];
  if (!connection) connection = client_of(o_, o_.servers[server]);
  const bool is_old = connection->is_socket_open() != 0;
  const auto began = std::chrono::steady_clock::now();
  Reply reply = post_once(server, path, body);
  if (reply.status != 0 || !is_old || std::chrono::steady_clock::now() - began > kEtcdConnectTime)
    return reply;
  return post_once(server, path, body);
}

EtcdClient::Reply EtcdClient::post_once(size_t at, const std::string& path,
                                        const std::string& body) {
  const EtcdOptions::Server& server = o_.servers[at];
  const auto deadline = std::chrono::steady_clock::now() + kEtcdWholeAnswer;
  Reply reply;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v3/" + path;
  request.headers.emplace("Host", authority(server));
  request.headers.emplace("Content-Type", "application/json");
  if (!auth_token_.empty()) request.headers.emplace("Authorization", auth_token_);
  request.body = body;
  request.response_handler = [&](const httplib::Response& response) {
    reply.status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, size_t bytes, uint64_t, uint64_t) {
    // The library's own limit begins again with every byte.
    if (std::chrono::steady_clock::now() > deadline) return false;
    if (reply.body.size() + bytes > kLargestReply) return false;
    reply.body.append(data, bytes);
    return true;
  };
  const auto result = connections_[at]->send(request);
  // The gateway ends its errors with trailers, which the library cannot read: the error is
  // complete.
  if (!result && (reply.status == 0 || reply.status == kHttpOk)) {
    reply.status = 0;
    reply.why = fmt::format("{}: {}", authority(server), reason_of(result.error()));
    return reply;
  }
  if (reply.status == kHttpOk) return reply;
  try {
    const json error = parse_json(reply.body, "etcd");
    reply.code = int(etcd_number(error, "code"));
    for (const char* key : {"message", "error"})  // versions differ
      if (error.is_object() && error.contains(key) && error[key].is_string())
        reply.why = error[key].get<std::string>();
  } catch (const UserError&) {
  }
  return reply;
}

EtcdClient::Reply EtcdClient::post_to_any(const std::string& path, const std::string& body) {
  std::vector<std::string> reasons;
  for (size_t i = 0; i < o_.servers.size(); ++i) {
    const size_t at = (server_ + i) % o_.servers.size();
    Reply reply = post(at, path, body);
    // A server that is about to end, or cannot reach the others of its cluster, answers 5xx.
    if (reply.status != 0 && reply.status < 500) {
      server_ = at;
      return reply;
    }
    reasons.push_back(reply.why.empty() ? fmt::format("status {}", reply.status) : reply.why);
  }
  throw CommError(fmt::format("etcd at {} does not answer: {}", where(), fmt::join(reasons, "; ")));
}

void EtcdClient::refuse(const Reply& reply) const {
  const std::string at = fmt::format("etcd at {}", where());
  if (reply.status == kHttpNotFound && reply.code == 0)
    throw UserError(fmt::format("{} is not an etcd of version 3.4 or later", at),
                    "--rdzv_endpoint needs the address for clients, usually port 2379");
  if (reply.code == kDenied)
    throw UserError(
        fmt::format("{}: user {} may not use the job's keys", at, o_.user),
        "grant it: etcdctl role grant-permission ROLE --prefix=true readwrite /mtrain/");
  if (reply.code == kPrecondition)
    throw UserError(fmt::format("{} knows no users", at), "leave user out of --rdzv_conf");
  if (o_.user.empty() && (reply.code == kInvalid || reply.code == kUnauthenticated))
    throw UserError(fmt::format("{} needs a user: {}", at, reply.why),
                    "--rdzv_conf=user=NAME,password_file=FILE");
  if (reply.code == kInvalid || reply.code == kUnauthenticated)
    throw UserError(fmt::format("{} refuses user {}: {}", at, o_.user, reply.why),
                    "check user and password_file of --rdzv_conf");
  throw CommError(fmt::format("{} answers {} {}", at, reply.status, reply.why));
}

void EtcdClient::authenticate() {
  auth_token_.clear();
  const json request{{"name", o_.user}, {"password", o_.password}};
  const Reply reply = post_to_any("auth/authenticate", request.dump());
  if (reply.status != kHttpOk) refuse(reply);
  const json found = parse_json(reply.body, "etcd");
  if (found.is_object() && found.contains("token") && found["token"].is_string())
    auth_token_ = found["token"].get<std::string>();
}

// Returns null if the lease of the request has expired.
json EtcdClient::call(const std::string& path, const json& request) {
  const std::lock_guard lock(mutex_);
  try {
    if (!o_.user.empty() && auth_token_.empty()) authenticate();
    Reply reply = post_to_any(path, request.dump());
    if (reply.lacks_session() && !o_.user.empty()) {
      authenticate();
      reply = post_to_any(path, request.dump());
    }
    if (reply.lacks_lease()) return nullptr;
    if (reply.status != kHttpOk) refuse(reply);
    return parse_json(reply.body, "etcd");
  } catch (const nlohmann::json::exception& e) {
    throw CommError(fmt::format("etcd at {} sends a malformed answer: {}", where(), e.what()));
  }
}

std::optional<EtcdEntry> EtcdClient::get(const std::string& key) {
  const json reply = call("kv/range", {{"key", to_base64(key)}});
  if (!reply.is_object() || !reply.contains("kvs") || !reply["kvs"].is_array() ||
      reply["kvs"].empty())
    return std::nullopt;
  const json& found = reply["kvs"][0];
  EtcdEntry entry{.created = etcd_number(found, "create_revision"),
                  .lease = etcd_number(found, "lease")};
  if (found.contains("value") && found["value"].is_string())
    entry.value = from_base64(found["value"].get_ref<const std::string&>()).value_or("");
  return entry;
}

bool EtcdClient::create(const std::string& key, const std::string& value, int64_t lease) {
  return put_if(key, 0, key, value, lease);
}

bool EtcdClient::put_if(const std::string& guard, int64_t created, const std::string& key,
                        const std::string& value, int64_t lease) {
  return succeeded(call("kv/txn", guarded(guard, created, key, value, lease)));
}

int64_t EtcdClient::grant(int seconds) {
  const int64_t lease = etcd_number(call("lease/grant", {{"TTL", std::to_string(seconds)}}), "ID");
  if (lease == 0) throw CommError(fmt::format("etcd at {} grants no lease", where()));
  return lease;
}

bool EtcdClient::keep_alive(int64_t lease) {
  const json reply = call("lease/keepalive", {{"ID", std::to_string(lease)}});
  return reply.is_object() && reply.contains("result") && etcd_number(reply["result"], "TTL") > 0;
}

std::chrono::seconds EtcdClient::time_to_live(int64_t lease) {
  const json reply = call("lease/timetolive", {{"ID", std::to_string(lease)}});
  return std::chrono::seconds(std::max<int64_t>(0, etcd_number(reply, "TTL")));
}

void EtcdClient::revoke(int64_t lease) { call("lease/revoke", {{"ID", std::to_string(lease)}}); }

std::string EtcdClient::where() const {
  std::vector<std::string> all;
  for (const EtcdOptions::Server& s : o_.servers) all.push_back(authority(s));
  return fmt::format("{}", fmt::join(all, ","));
}

std::string EtcdClient::own_address() const {
  for (const EtcdOptions::Server& s : o_.servers) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_DGRAM;  // such a socket sends nothing when it connects
    if (getaddrinfo(s.host.c_str(), std::to_string(s.port).c_str(), &hints, &found) != 0) continue;
    std::string address;
    for (const addrinfo* a = found; a && address.empty(); a = a->ai_next) {
      const int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      sockaddr_storage own{};
      socklen_t size = sizeof own;
      char text[NI_MAXHOST];
      if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
          getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
          getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0)
        address = text;
      if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    if (!address.empty()) return address;
  }
  return "";
}

}  // namespace mtrain::launch
