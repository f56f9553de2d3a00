// For tests of the store's table, without sockets.
#pragma once
#include <string>
#include <string_view>

#include <catch2/catch.hpp>

#include "store/store_session.h"

namespace mtrain::store {

// A client that knows the token.
struct Client {
  Client(StoreTable& table, int id, int64_t round = 0) : session(table, id, Nonce{}) {
    const Proof proof = make_proof(Token{}, StoreEnd::client, Nonce{}, Nonce{});
    std::string hello(kStoreGreeting);
    hello.append(kNonceBytes, '\0').append(bytes_of(proof));
    REQUIRE(session.receive(hello));
    replies();
    entered = ask(request_text(kEnter, "", std::to_string(round)));
  }
  std::string replies() {
    std::string all;
    while (!session.next_output().empty()) {
      all += session.next_output();
      if (!session.sent(session.next_output().size())) return "ended";
    }
    return all;
  }
  // Returns the reply to one request, "ended" or "waits".
  std::string ask(std::string_view request) {
    if (!session.receive(request)) return "ended";
    const std::string all = replies();
    return all.size() < 5 ? all.empty() ? "waits" : all : all.substr(4);
  }
  StoreSession session;
  std::string entered;  // the reply to the first request
};

}  // namespace mtrain::store
