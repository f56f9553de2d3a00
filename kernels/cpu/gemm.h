// Our own matrix multiplication: packed panels and a register tile, after Goto & van de Geijn,
// "Anatomy of High-Performance Matrix Multiplication" (2008), and BLIS. An element of C is a sum
// over k whose order depends on K and the instructions alone, cut at multiples of a block: its bits
// do not depend on the number of threads, on M, on N, or on how a caller splits M or N.
//
// gemm() takes fp32 and bf16; bf16 operands become fp32 while they are packed, and cost little
// extra. gemm_bf16() takes bf16 operands as they are: AVX512_BF16's dot product multiplies two k at
// once and adds them to an fp32 sum, at half or twice the speed of gemm(), by the CPU. That
// instruction rounds to nearest even whatever the mode, and takes denormal operands, products and
// sums for zero; so does its rounding of C to bf16.
//
// gemm_amx() multiplies on AMX tiles, 16 rows x 32 k at once, several times as fast as gemm(). An
// instruction sums its 32 k by itself and adds that to the tile, so that the last bits differ from
// gemm_bf16()'s; it rounds, and takes denormals for zero, as gemm_bf16() does.
#pragma once
#include <cstdint>

#include "kernels/cpu/dispatch.h"
#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

// On the current thread pool.
void gemm(const Matmul& m, Isa isa);
void gemm_bf16(const Matmul& m);  // a and b bf16; only where the next function says so
bool gemm_bf16_supported();       // this build has it and this CPU can run it
void gemm_amx(const Matmul& m);   // a and b bf16; only where the next function says so
bool gemm_amx_supported();        // the same, and the system lets this process use AMX tiles

// What one instruction set brings: kernels/cpu/vector/gemm.cpp defines one table in each,
// kernels/cpu/vector_bf16/gemm.cpp that of gemm_bf16 and kernels/cpu/vector_amx/gemm.cpp that of
// gemm_amx. Packed panels consist of words, as large as a float: an fp32 element, or bf16 elements
// of consecutive k, with zeros beyond the last k.
struct GemmKernels {
  int rows, columns;   // the register tile; panels are this high or wide
  int depth;           // how many k a word holds
  int word_multiple;   // a packed k block has a multiple of so many words
  int64_t row_stride;  // words between the rows of a packed row-major A panel: the longest k
                       // block, padded
  int64_t max_words;   // the longest k block

  // How the work is cut, which no bit of the result depends on.
  int64_t max_packed_b;    // words of B that are packed at once
  int64_t most_columns;    // of such a block; A is packed anew for every one
  int64_t fewest_columns;  // of such a block, where C has as many
  int64_t unit_words;      // of A in a unit of work, which packs them for itself
  int64_t fewest_unit_panels, most_unit_panels;
  int64_t few_rows;  // with at most so many rows of C, it is cheaper to transpose tiles of C than a
                     // B stored (N, K)

  // Panels of A, k0 <= k < k1, where k0 is the first k of a word. Where trans, A is stored (K, M)
  // and the panels are packed k-major.
  struct PackA {
    const void* a;  // element (row[0], k 0)
    DType dtype;
    int64_t ld;
    bool trans;
    const int64_t* row;  // row[p] .. row[p + 1]: rows of panel p, at most the tile's
    int64_t panels;
    int64_t rows_to_end;  // rows of the matrix from row[0]
    int64_t k0, k1, K;
    float* out;  // rows * row_stride words for each panel
  };
  void (*pack_a)(const PackA&);
  // Whether block() can read these panels where they are, not packed; null: it never can.
  bool (*a_in_place)(const PackA&);

  // Panels of B, k-major and padded with zeros to the tile's width. Where trans, B is stored (N,
  // K).
  struct PackB {
    const void* b;  // element (k 0, column 0 of the first panel)
    DType dtype;
    int64_t ld;
    bool trans;
    int64_t columns;  // of all panels
    int64_t k0, k1;
    float* out;
    int64_t panel_stride;  // floats from panel to panel: all words of the k block, of which k0 ..
                           // k1 may be a piece
  };
  void (*pack_b)(const PackB&);

  // out = A B (+ in) (+ bias) for a block of panels. Element (row, column) of in and out is at row
  // * ld + column, or at column * ld + row where transposed.
  struct Block {
    const void* a;  // first packed panel of A, or where not packed, element (row[0], k0)
    int64_t a_ld;   // 0: packed
    bool a_k_major;
    const float* b;      // first packed panel of B
    int64_t words;       // of k
    const int64_t* row;  // row[p] .. row[p + 1]: rows of A panel p, for p in [0, panels)
    int64_t panels, b_panels;
    int64_t columns;  // valid columns of the block
    bool transposed;
    const float* in;  // element of row[0], or null: nothing is added
    int64_t in_ld;
    void* out;  // element of row[0]
    DType out_type;
    int64_t out_ld;
    const float* bias;  // of the block's first column (first row, where transposed), or null
    // What this thread will probably read of A next, as it is stored, or null: element (row, k0).
    const void* next_a;
    int64_t next_a_ld;
  };
  void (*block)(const Block&);

  // Around a thread's calls of the other functions; may be null.
  void (*begin)();
  void (*end)();
};

}  // namespace mtrain::kernels::cpu
