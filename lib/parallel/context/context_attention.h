// The attention cores of context parallelism: each rank has some positions of every sequence, and
// all of its queries must meet all keys before them. `heads` are this rank's, which may be a
// tensor-parallel rank's share. All communication of a core is enqueued through its `comm`.
#pragma once
#include <memory>

#include "comm/group.h"
#include "parallel/context/context_comm.h"
#include "parallel/context/sequence.h"

namespace mtrain::parallel {

// Keys and values go around a ring of ranks. The next ones travel while attention is computed with
// those at hand, and so do their gradients (Liu et al. 2023). It has no sliding window.
std::unique_ptr<model::AttentionCore> p2p_attention(std::shared_ptr<ContextComm> comm, Group cp,
                                                    const model::HeadConfig& heads);

// Every rank gathers all keys and values, one of `head_chunks` equal parts of the heads at a time
// (Llama 3, 2024).
std::unique_ptr<model::AttentionCore> all_gather_attention(std::shared_ptr<ContextComm> comm,
                                                           Group cp, const model::HeadConfig& heads,
                                                           int64_t head_chunks);

// Ranks exchange positions for heads, attend to whole sequences with a share of the heads, and
// exchange back (Jacobs et al. 2023). heads.G is a multiple of the ranks. The heads that a rank
// gets are cut into `head_chunks` equal parts, of which one travels while another is computed.
std::unique_ptr<model::AttentionCore> a2a_attention(std::shared_ptr<ContextComm> comm, Group cp,
                                                    const model::HeadConfig& heads,
                                                    int64_t head_chunks);

// The ranks of `level`, the nearest ones, exchange positions for heads, and `ring` is a ring across
// levels. heads.G is a multiple of the ranks of `level`.
std::unique_ptr<model::AttentionCore> a2a_p2p_attention(std::shared_ptr<ContextComm> comm,
                                                        Group level, Group ring,
                                                        const model::HeadConfig& heads);

}  // namespace mtrain::parallel
