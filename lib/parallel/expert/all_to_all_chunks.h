// Rows that travel over an all-to-all in chunks; each chunk is a separate exchange. Before the
// first one leaves, all rows are copied from the order of the experts into the order of the chunks
// (chunk, rank, expert, token). When the last one has returned, they are copied back.
#pragma once
#include <memory>
#include <vector>

#include "ops/blocks.h"
#include "parallel/expert/expert_path.h"

namespace mtrain::parallel {

struct ChunkedPath {
  struct Chunk {
    ExpertPath path;
    model::ExpertChunk experts;
    int64_t first_leaving = 0;  // its first row among those that leave, in the order of chunks
  };
  std::vector<Chunk> chunks;
  int64_t leaving = 0;                    // rows that leave this rank
  std::vector<ops::CopyBlock> to_chunks;  // these copy the leaving rows into the order of chunks
};

// Divides the experts of each rank into chunks whose numbers of experts differ by one at most.
ChunkedPath chunked_path(Stream& compute, const ExpertComm& comm, int64_t chunks,
                         const RowsOf& rows);

// `path` and `comm` must outlive the result.
std::unique_ptr<model::ChunkedRows> chunked_rows(Stream& compute, const ExpertComm& comm,
                                                 const ChunkedPath& path, model::ExpertRows rows);

}  // namespace mtrain::parallel
