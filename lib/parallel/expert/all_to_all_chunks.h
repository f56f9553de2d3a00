// Rows that travel over an all-to-all in chunks, each of which is an exchange of its own. Before
// the first one leaves, all rows are brought from the order of the experts into that of the chunks
// (chunk, rank, expert, token), and back when the last one has returned.
#pragma once
#include <memory>
#include <vector>

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
  std::vector<ops::CopyBlock> to_chunks;  // bring these into the order of chunks
};

// Divides the experts of each rank into chunks whose numbers of experts differ by one at most.
ChunkedPath chunked_path(Stream& compute, const ExpertComm& comm, int64_t chunks,
                         const RowsOf& rows);

// `path` and `comm` must outlive the result.
std::unique_ptr<model::ChunkedRows> chunked_rows(Stream& compute, const ExpertComm& comm,
                                                 const ChunkedPath& path, model::ExpertRows rows);

}  // namespace mtrain::parallel
