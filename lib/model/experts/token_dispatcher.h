// The interface that brings tokens to the ranks and rows of their experts, and back. Its default is
// that of a rank which has all experts.
//
// Forward and backward are one path, which tokens go in forward and gradients in backward:
//
//   to_rows | send | by_expert, the experts, from_experts | send_back | to_tokens
//
// send() and send_back() only enqueue communication, on a stream of their own, and the others
// compute. A step that reads what has travelled waits for it, so that other work can run meanwhile.
// All ranks that share experts make the same calls in the same order, also for rows of which a rank
// has none.
//
// A dispatcher may bring rows in chunks, so that some travel while others are computed:
//
//   to_rows | in_chunks: send | arrive, a chunk's experts, send_back, ... | returned, to_tokens
#pragma once
#include <memory>

#include "model/step.h"

namespace mtrain::model {

// T tokens, K experts of a token, R rows, H hidden
struct ExpertRows {
  Tensor x_RH;
  // fp32, optional: the router's weight of each row, or its gradient. (R, K) if a row that travels
  // between ranks serves several of its token's choices.
  Tensor weight_R = {};
  // The rows may be used after this event: they have arrived from other ranks, or a kernel has
  // written them and they may be sent. Without an event, rows are sent after all work that is on
  // the compute stream by then.
  Event ready = {};
};
struct TokenSums {
  Tensor sum_TH;     // the sum of each token's rows
  Tensor weight_TK;  // the weights that travelled with the rows; absent without
};

// What a dispatcher keeps of the choices of a micro-batch, from the router's forward to its
// backward.
class TokenRoute {
 public:
  virtual ~TokenRoute() = default;
};

// A range of this rank's experts, and their rows.
struct ExpertChunk {
  int64_t first_expert, experts;
  int64_t first_row, rows;  // among the rows of all of this rank's experts
  Tensor first_E1;          // int32: where each expert's rows begin among those of the chunk
};

// Rows on their way to the experts and back. A chunk has all rows of a range of experts of each
// rank, so that an expert's rows stay together. Each chunk is sent, arrives and is sent back in
// this order, and chunks in theirs; all ranks interleave these calls alike.
class ChunkedRows {
 public:
  virtual ~ChunkedRows() = default;
  virtual int64_t chunks() const = 0;
  virtual const ExpertChunk& chunk(int64_t c) const = 0;
  // send() and send_back() only enqueue communication. What send_back() is given lies in the order
  // of experts, as arrive() leaves rows.
  virtual void send(Step& step, int64_t c) = 0;
  // Waits for a chunk, and writes it to `rows`, which are those of the chunk.
  virtual void arrive(Step& step, int64_t c, const ExpertRows& rows) = 0;
  virtual void send_back(Step& step, int64_t c, const ExpertRows& rows) = 0;
  // Waits for the last chunk. Returns all rows that have come back in the order of to_rows().
  virtual ExpertRows returned(Step& step) = 0;

  // How many rows this rank's experts have.
  int64_t rows() const {
    const ExpertChunk& last = chunk(chunks() - 1);
    return last.first_row + last.rows;
  }
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  // Each token goes to its K experts (int32). `capacity` is how many tokens an expert takes at
  // most, on each rank that calls this; 0: any number.
  virtual std::shared_ptr<TokenRoute> route(Step& step, const Tensor& expert_TK,
                                            int64_t capacity) = 0;
  // Returns what leaves this rank. weight_TK is optional.
  virtual ExpertRows to_rows(Step& step, TokenRoute& route, const Tensor& x_TH,
                             const Tensor& weight_TK) = 0;
  // Brings to_rows() to the ranks of the experts.
  virtual ExpertRows send(Step&, TokenRoute&, ExpertRows rows) { return rows; }
  // Returns the rows of this rank's experts: expert e has the rows [first[e], first[e + 1]).
  virtual ExpertRows by_expert(Step&, TokenRoute&, ExpertRows arrived) { return arrived; }
  virtual Tensor first_E1(const TokenRoute& route) const = 0;  // int32; known after by_expert()
  // Returns what goes back to the tokens' ranks, from rows in the order of by_expert().
  virtual ExpertRows from_experts(Step&, TokenRoute&, ExpertRows rows) { return rows; }
  // Brings from_experts() back to the ranks of the tokens.
  virtual ExpertRows send_back(Step&, TokenRoute&, ExpertRows rows) { return rows; }
  // Returns the sums of each token's rows, in the order of k unless the dispatcher says otherwise.
  virtual TokenSums to_tokens(Step& step, TokenRoute& route, ExpertRows arrived) = 0;

  // In how many chunks rows can travel; 1: in_chunks() is not to be called.
  virtual int64_t chunks() const { return 1; }
  // Takes what leaves this rank. `route` must outlive the result.
  virtual std::unique_ptr<ChunkedRows> in_chunks(Step&, TokenRoute&, ExpertRows) {
    throw BugError("a dispatcher without chunks");
  }
};

// `experts` is the number of all experts, which this rank has.
std::unique_ptr<TokenDispatcher> local_dispatcher(int64_t experts);

}  // namespace mtrain::model
