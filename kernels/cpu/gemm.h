// Our own matrix multiplication: packed panels and a register tile, after Goto & van de Geijn,
// "Anatomy of High-Performance Matrix Multiplication" (2008), and BLIS. bf16 operands become fp32
// while they are packed, so they cost nothing extra. An element of C is one sum over k in rising
// order, cut at multiples of a block that depends on K alone: its bits do not depend on the number
// of threads, on M, on N, or on how a caller splits M or N.
#pragma once
#include <cstdint>

#include "kernels/cpu/dispatch.h"
#include "kernels/matmul.h"

namespace mtrain::kernels::cpu {

void gemm(const Matmul& m, Isa isa);  // on the current thread pool

// What one instruction set brings: kernels/cpu/vector/gemm.cpp defines one table in each.
struct GemmKernels {
  int rows, columns;   // the register tile; panels are this high or wide
  int64_t row_stride;  // floats between the rows of a packed row-major A panel: the longest k
                       // block, padded
  int64_t max_k;       // the longest k block

  // Panels of A, k0 <= k < k1. Where trans, A is stored (K, M) and the panels are packed k-major.
  struct PackA {
    const void* a;  // element (row[0], k 0)
    DType dtype;
    int64_t ld;
    bool trans;
    const int64_t* row;  // row[p] .. row[p + 1]: rows of panel p, at most the tile's
    int64_t panels;
    int64_t rows_to_end;  // rows of the matrix from row[0]
    int64_t k0, k1, K;
    float* out;  // rows * row_stride floats for each panel
  };
  void (*pack_a)(const PackA&);

  // Panels of B, k-major and padded with zeros to the tile's width. Where trans, B is stored (N,
  // K).
  struct PackB {
    const void* b;  // element (k 0, column 0 of the first panel)
    DType dtype;
    int64_t ld;
    bool trans;
    int64_t columns;  // of all panels
    int64_t k0, k1;
    float* out;  // columns * (k1 - k0) floats for each panel, columns those of the tile
  };
  void (*pack_b)(const PackB&);

  // out = A B (+ in) (+ bias) for a block of panels. Element (row, column) of in and out is at row
  // * ld + column, or at column * ld + row where transposed.
  struct Block {
    const float* a;  // first packed panel of A
    bool a_k_major;
    const float* b;  // first packed panel of B
    int64_t k;
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
  };
  void (*block)(const Block&);
};

}  // namespace mtrain::kernels::cpu
