// The kernels that run(AttentionForward) and run(AttentionBackward) choose from: cuDNN's if it
// supports the shape, else our own.
#pragma once
#include <string>

#include "kernels/attention.h"

namespace mtrain::kernels::cuda {

constexpr int64_t kMaxHeadDim = 256;

// Run cuDNN's flash engines. Return false, with nothing enqueued, if cuDNN is missing or does not
// support the shape.
bool attention_by_cudnn(const AttentionForward& f, CUstream_st* stream);
bool attention_by_cudnn(const AttentionBackward& b, CUstream_st* stream);

// Return the engine that computed the most recent such call, after it has run: "cuDNN, engine 0",
// "own kernel, tensor cores" or "own kernel, fp32".
std::string attention_engine(const AttentionForward& f);
std::string attention_engine(const AttentionBackward& b);
std::string cudnn_engine(const AttentionForward& f);  // "" if it is not cuDNN
std::string cudnn_engine(const AttentionBackward& b);

// Support any type and alignment, and head dims up to kMaxHeadDim. They use fp32 multiply-adds.
void attention_plain(const AttentionForward& f, CUstream_st* stream);
void attention_plain(const AttentionBackward& b, const float* delta, CUstream_st* stream);

// Run on tensor cores. Probabilities and gradients of scores are rounded to operands of q's type,
// bf16 or fp16.
bool tensor_cores_can(const AttentionForward& f);
bool tensor_cores_can(const AttentionBackward& b);
void attention_on_tensor_cores(const AttentionForward& f, CUstream_st* stream);
void attention_on_tensor_cores(const AttentionBackward& b, const float* delta, CUstream_st* stream);

// Computes delta (B, A, Sq): the dot product of out and dout of every row.
void attention_delta(const AttentionBackward& b, float* delta, CUstream_st* stream);

}  // namespace mtrain::kernels::cuda
