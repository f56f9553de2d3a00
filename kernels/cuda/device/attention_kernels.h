// The kernels behind run(AttentionForward) and run(AttentionBackward): cuDNN's where it takes the
// shape, else our own.
#pragma once
#include "kernels/attention.h"

namespace mtrain::kernels::cuda {

constexpr int64_t kMaxHeadDim = 256;

// By cuDNN's flash engines; false, with nothing enqueued, where cuDNN is missing or does not do it.
bool attention_by_cudnn(const AttentionForward& f, CUstream_st* stream);
bool attention_by_cudnn(const AttentionBackward& b, CUstream_st* stream);

// Any type, head dim up to kMaxHeadDim and alignment: fp32 multiply-adds.
void attention_plain(const AttentionForward& f, CUstream_st* stream);
void attention_plain(const AttentionBackward& b, const float* delta, CUstream_st* stream);

// On tensor cores, with probabilities and the gradients of scores rounded to bf16 as operands.
bool tensor_cores_can(const AttentionForward& f);
bool tensor_cores_can(const AttentionBackward& b);
void attention_on_tensor_cores(const AttentionForward& f, CUstream_st* stream);
void attention_on_tensor_cores(const AttentionBackward& b, const float* delta, CUstream_st* stream);

// delta (B, A, Sq): out . dout of every row.
void attention_delta(const AttentionBackward& b, float* delta, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
