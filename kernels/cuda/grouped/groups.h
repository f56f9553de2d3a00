// The arguments of CUTLASS's grouped GEMMs: an expert is a group. The experts' first rows are known
// only on the device, where a kernel computes these arguments (groups.cu). The host can compute
// them too, for tests. This header includes no CUDA header.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define MT_HOST_DEVICE __host__ __device__
#else
#define MT_HOST_DEVICE
#endif

struct CUstream_st;

namespace mtrain::kernels::cuda {

// The sizes of a group's GEMM, D (m, n) = A (m, k) B (n, k)^T, as CUTLASS reads them.
struct GroupShape {
  int32_t m, n, k;
  bool operator==(const GroupShape&) const = default;
};

struct Group {
  GroupShape shape;
  const void *a, *b;
  void* c;
  int64_t a_stride, b_stride, c_stride;  // elements between rows, as stored
};

// The same for all groups, in device memory: element e of each array is of group e.
struct GroupArrays {
  int groups = 0;
  GroupShape* shape = nullptr;
  const void **a = nullptr, **b = nullptr;
  void** c = nullptr;
  int64_t *a_stride = nullptr, *b_stride = nullptr, *c_stride = nullptr;
};

// A transposed copy of 8-bit matrices, one for each group: CUTLASS needs the summed dimension of
// 8-bit operands to be contiguous. The matrix of a group with `count` rows has its columns at
// multiples of 16 bytes, which TMA requires, wherever the group's rows begin:
//   rows [row, row + count) of (R, columns)  ->  (columns, stride), stride = count rounded up to 16
struct PaddedColumns {
  // Returns where the group's rows would begin, in rows. The ranges of groups do not overlap.
  MT_HOST_DEVICE static int64_t start(int64_t row, int64_t group) {
    return (row + 16 * group) / 16 * 16;
  }
  MT_HOST_DEVICE static int64_t stride(int64_t count) { return (count + 15) / 16 * 16; }
  // Returns how many elements all groups of R rows take.
  static int64_t elements(int64_t R, int64_t groups, int64_t columns) {
    return (R + 16 * groups) * columns;
  }
};

// What is the same for all groups of a launch.
struct GroupsOf {
  // Rows: C (count, N) = A (count, K) op(B_e). Weights: C_e (M, N) = A^T B over `count` rows.
  bool weights = false;
  bool trans_b = false;   // rows: B_e is (N, K)
  bool a_padded = false;  // weights: A is a PaddedColumns
  bool b_padded = false;  // B is a PaddedColumns: of weights, or of (K, N) matrices
  int64_t M = 0, N = 0, K = 0;
  int a_bytes = 2, b_bytes = 2, c_bytes = 2;  // of an element
  const char *a = nullptr, *b = nullptr;
  char* c = nullptr;
};

// Returns the arguments of group e, which has the rows [row, end). A group without rows has no
// tile: its m is 0, and its memory is neither read nor written.
MT_HOST_DEVICE inline Group group_of(const GroupsOf& all, int64_t row, int64_t end, int64_t e) {
  const int64_t count = end - row;
  Group g{};
  if (all.weights) {
    const int64_t start = PaddedColumns::start(row, e), stride = PaddedColumns::stride(count);
    g.shape = {count > 0 ? int32_t(all.M) : 0, int32_t(all.N), int32_t(count)};
    g.a = all.a + (all.a_padded ? start : row) * all.M * all.a_bytes;
    g.b = all.b + (all.b_padded ? start : row) * all.N * all.b_bytes;
    g.c = all.c + e * all.M * all.N * all.c_bytes;
    g.a_stride = all.a_padded ? stride : all.M;
    g.b_stride = all.b_padded ? stride : all.N;
  } else {
    const int64_t b_row = all.b_padded ? PaddedColumns::start(e * all.K, e) : e * all.K;
    g.shape = {int32_t(count), int32_t(all.N), int32_t(all.K)};
    g.a = all.a + row * all.K * all.a_bytes;
    g.b = all.b + b_row * all.N * all.b_bytes;
    g.c = all.c + row * all.N * all.c_bytes;
    g.a_stride = all.K;
    g.b_stride = all.b_padded ? PaddedColumns::stride(all.K) : all.trans_b ? all.K : all.N;
  }
  g.c_stride = all.N;
  return g;
}

// The arrays of `groups` groups in one piece of memory of bytes(groups), which is aligned to 16
// bytes, and a factor of all sums.
struct GroupMemory {
  GroupArrays arrays;
  float* alpha;
  GroupMemory(void* memory, int groups);
  static int64_t bytes(int groups);
};

// --- kernels; defined in kernels/cuda/grouped_groups.cu ---

// Computes the arguments of all groups from the first rows, (E + 1) int32 in device memory. alpha
// becomes the product of the two factors, or 1 if they are null.
void fill_groups(const GroupMemory& memory, const GroupsOf& all, const int32_t* first_E1,
                 const float* a_inverse, const float* b_inverse, CUstream_st* stream);

// Writes the PaddedColumns of x, 8-bit numbers (R, columns), whose groups' first rows are in device
// memory; or of `groups` groups of R / groups rows each, if first_E1 is null. `columns` is a
// multiple of 16, and addresses are multiples of 16 bytes.
void transpose_groups(const void* x, const int32_t* first_E1, void* transposed, int64_t R,
                      int64_t groups, int64_t columns, CUstream_st* stream);

// Sets the fp32 matrices of `elements` numbers to 0 whose groups have no rows.
void clear_empty_groups(float* c, const int32_t* first_E1, int64_t groups, int64_t elements,
                        CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
