// What holds for all operations of this folder. Each one checks shapes and dtypes, enqueues its
// work on `stream`, and returns immediately. The work is one launch; comments say where a device
// needs two. New results are allocated on that stream.
//
// Letters: T tokens, H hidden, F ffn, V vocabulary, A query heads, G kv heads, D head dim,
// B sequences, S positions. An empty Tensor means "none" for optional parameters. Unless a comment
// says otherwise, tensors are fp32, bf16 or fp16, the tensors of one operation have the same dtype,
// and an output is overwritten. "+=" and "adds to" mark the outputs that accumulate.
#pragma once
#include "tensor/tensor.h"
