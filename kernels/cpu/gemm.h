// mtrain's own GEMM on the CPU: packed panels and a register tile, after Goto & van de Geijn,
// "Anatomy of High-Performance Matrix Multiplication" (2008), and BLIS. An element of C is a sum
// over k, split into blocks of k. The order of this sum depends only on K and on the instruction
// set. Its bits therefore do not depend on the number of threads, on M, on N, or on how a caller
// splits M or N.
//
// gemm() takes fp32, bf16 and fp16; operands of 16 bits are converted to fp32 while they are
// packed, which costs little. gemm_bf16() takes bf16 operands without conversion: AVX512_BF16's dot
// product multiplies two k at once and adds them to an fp32 sum, at half or twice the speed of
// gemm(), depending on the CPU. That instruction rounds to nearest even whatever the rounding mode,
// and treats denormal operands, products and sums as zero; so does its rounding of C to bf16.
//
// gemm_amx() multiplies on AMX tiles, 16 rows x 32 k at once, several times as fast as gemm(). An
// instruction first sums its 32 k and then adds that sum to the tile; the last bits therefore
// differ from those of gemm_bf16(). It rounds, and treats denormals as zero, as gemm_bf16() does.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/cpu/dispatch.h"
#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

// Returns how many terms of gemm()'s sum over K are added up before they are added to the earlier
// terms.
int64_t gemm_k_block(int64_t K, Isa isa);

// These compute all GEMMs of the list on the current thread pool. None may be empty, or read the
// result of another one.
void gemm(std::span<const Matmul> list, Isa isa);
void gemm_bf16(std::span<const Matmul> list);  // a and b bf16; needs gemm_bf16_supported()
bool gemm_bf16_supported();                    // this build has it and this CPU can run it
void gemm_amx(std::span<const Matmul> list);   // a and b bf16; needs gemm_amx_supported()
bool gemm_amx_supported();  // the same, and the system lets this process use AMX tiles

// The table of functions and sizes of one instruction set. kernels/cpu/vector/gemm.cpp defines one
// for each set, kernels/cpu/vector_bf16/gemm.cpp the one of gemm_bf16(), and
// kernels/cpu/vector_amx/gemm.cpp the one of gemm_amx(). Packed panels consist of words, each as
// large as a float: one fp32 element, or bf16 elements of consecutive k, with zeros beyond the last
// k.
struct GemmKernels {
  int rows, columns;   // the register tile; panels are this high or wide
  int depth;           // how many k a word holds
  int word_multiple;   // the words of a packed k block are a multiple of this
  int64_t row_stride;  // words between the rows of a packed row-major panel of A
  int64_t max_words;   // words of the longest k block

  // How the work is split. The result does not depend on these sizes.
  int64_t max_packed_b;  // words of B that are packed at once: a block of columns
  int64_t max_columns;   // largest width of such a block; A is packed again for each block
  int64_t min_columns;   // smallest width of such a block, if C has as many columns
  int64_t unit_words;    // words of A in a unit of work; each unit packs its own part of A
  int64_t min_unit_panels, max_unit_panels;
  // With at most this many rows of C, it is cheaper to transpose tiles of C than a B stored (N, K).
  int64_t few_rows;

  // Arguments of pack_a(): panels of A for k0 <= k < k1, where k0 is the first k of a word. With
  // `trans`, A is stored (K, M) and the panels are packed k-major.
  struct PackA {
    const void* a;  // element (row[0], k 0)
    DType dtype;
    int64_t ld;
    bool trans;
    const int64_t* row;  // panel p has the rows [row[p], row[p + 1]), at most as many as the tile
    int64_t panels;
    int64_t rows_to_end;  // rows of the matrix, starting at row[0]
    int64_t k0, k1, K;
    float* out;  // rows * row_stride words for each panel
  };
  void (*pack_a)(const PackA&);
  // Returns whether block() can read these panels of A unpacked; null: it never can.
  bool (*a_in_place)(const PackA&);

  // Arguments of pack_b(): panels of B, k-major and padded with zeros to the tile's width. With
  // `trans`, B is stored (N, K).
  struct PackB {
    const void* b;  // element (k 0, column 0 of the first panel)
    DType dtype;
    int64_t ld;
    bool trans;
    int64_t columns;  // columns of all panels
    int64_t k0, k1;
    float* out;
    // Floats from one panel to the next: all words of the k block. [k0, k1) may be only a part of
    // it.
    int64_t panel_stride;
  };
  void (*pack_b)(const PackB&);

  // Arguments of block(): out = A B (+ in) (+ bias) for a block of panels. Element (row, column) of
  // in and out is at row * ld + column, or at column * ld + row if `transposed`.
  struct Block {
    const void* a;  // first packed panel of A; element (row[0], k0) if A is not packed
    int64_t a_ld;   // elements between rows; 0: A is packed
    bool a_k_major;
    const float* b;      // first packed panel of B
    int64_t words;       // words of the k block
    const int64_t* row;  // panel p of A has the rows [row[p], row[p + 1]), for p in [0, panels)
    int64_t panels, b_panels;
    int64_t columns;  // valid columns of the block
    bool transposed;
    const float* in;  // first element of row[0]; null: nothing is added
    int64_t in_ld;
    void* out;  // first element of row[0]
    DType out_type;
    int64_t out_ld;
    const float* bias;  // for the block's first column (first row, if transposed); or null
    // The element (row, k0) of the stored A that this thread will probably read next; or null.
    const void* next_a;
    int64_t next_a_ld, next_a_size;  // stride in elements; bytes of an element
  };
  void (*block)(const Block&);

  // A thread calls these before and after it calls the other functions; they may be null.
  void (*begin)();
  void (*end)();
};

}  // namespace mtrain::kernels::cpu
