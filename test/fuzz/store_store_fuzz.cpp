// Any bytes, before and after the proof of the token, are refused or answered within the bounds of
// the store's protocol. The first byte says whether the client knows the token; the rest arrives in
// pieces of several sizes, from two clients in turn.
#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "store/store_session.h"

using namespace mtrain;
using namespace mtrain::store;

namespace {

struct Client {
  Client(StoreTable& table, int id) : session(table, id, Nonce{}) {}

  void prove(const Token& token) {
    const Nonce own{};
    std::string hello(kStoreGreeting);
    const Proof proof = make_proof(token, StoreEnd::client, own, Nonce{});
    hello.append(bytes_of(own)).append(bytes_of(proof));
    open = session.receive(hello);
    MT_CHECK(open && session.knows_token());
    drain();
    open = session.receive(request_text(kEnter, "", "0"));
    drain();
  }
  void give(std::string_view bytes) {
    if (!open) return;
    open = session.receive(bytes);
    MT_CHECK(session.next_output().size() <= kMaxValueBytes + 16);
  }
  void drain() {
    while (open && !session.next_output().empty())
      open = session.sent(session.next_output().size());
  }
  StoreSession session;
  bool open = true;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Token token{};
  StoreTable table(token);
  {
    Client a(table, 0), b(table, 1);
    const uint8_t mode = data[0];
    if (mode & 1) a.prove(token);
    if (mode & 2) b.prove(token);
    const size_t piece = size_t(1) + (mode >> 2) * 7;
    for (size_t at = 1, turn = 0; at < size; at += piece, ++turn) {
      Client& c = turn % 2 ? b : a;
      c.give({reinterpret_cast<const char*>(data) + at, std::min(piece, size - at)});
      MT_CHECK((mode & 1) || !a.session.knows_token());
      MT_CHECK((mode & 2) || !b.session.knows_token());
      if (mode & 128) a.drain(), b.drain();
    }
  }
  MT_CHECK(table.take_woken().empty());  // its sessions are gone
  return 0;
}
