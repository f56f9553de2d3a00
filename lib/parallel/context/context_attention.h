// The attention cores of context parallelism. Each rank has some positions of every sequence. Its
// queries must attend to all earlier keys, also those on other ranks. `heads` are the heads that
// this rank's linears compute, which may be a tensor-parallel share. All communication of a core is
// enqueued through its `comm`.
#pragma once
#include <memory>

#include "comm/group.h"
#include "parallel/context/context_comm.h"
#include "parallel/context/sequence.h"

namespace mtrain::parallel {

// Keys and values go around a ring of ranks. The next ones, and in backward their gradients, travel
// while attention is computed with the current ones (Liu et al. 2023). It supports no sliding
// window.
std::unique_ptr<model::AttentionCore> p2p_attention(std::shared_ptr<ContextComm> comm, Group cp,
                                                    const model::HeadConfig& heads);

// Every rank gathers all keys and values, for one of `head_chunks` equal parts of the heads at a
// time ("The Llama 3 herd of models", 2024).
std::unique_ptr<model::AttentionCore> all_gather_attention(std::shared_ptr<ContextComm> comm,
                                                           Group cp, const model::HeadConfig& heads,
                                                           int64_t head_chunks);

// Ranks exchange positions for heads, compute attention over full sequences with a share of the
// heads, and exchange back (Jacobs et al. 2023). heads.G is a multiple of the ranks. The heads that
// a rank gets are split into `head_chunks` equal parts; one travels while another is computed.
std::unique_ptr<model::AttentionCore> a2a_attention(std::shared_ptr<ContextComm> comm, Group cp,
                                                    const model::HeadConfig& heads,
                                                    int64_t head_chunks);

// The ranks of `level`, which are neighbours, exchange positions for heads. Keys and values then go
// around `ring`, which has one rank of each level. heads.G is a multiple of the ranks of `level`.
std::unique_ptr<model::AttentionCore> a2a_p2p_attention(std::shared_ptr<ContextComm> comm,
                                                        Group level, Group ring,
                                                        const model::HeadConfig& heads);

}  // namespace mtrain::parallel
