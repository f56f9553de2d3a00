// The CUDA kernels of a build without CUDA. They throw UserError.
#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/attention_decode.h"
#include "kernels/attention_merge.h"
#include "kernels/copy_blocks.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fp8.h"
#include "kernels/fp8_blocks.h"
#include "kernels/gemm_choices.h"
#include "kernels/grouped_matmul.h"
#include "kernels/latent_heads.h"
#include "kernels/matmul.h"
#include "kernels/muon.h"
#include "kernels/norm.h"
#include "kernels/permute.h"
#include "kernels/rank_choices.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/weighted_swiglu.h"

namespace mtrain::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw UserError("this build has no CUDA kernels", "use the CPU device");
}

}  // namespace

#define MT_NONE(Args) \
  void run(const Args&, CUstream_st*) { refuse(); }

MT_NONE(SwigluForward)
MT_NONE(SwigluBackward)
MT_NONE(GeluForward)
MT_NONE(GeluBackward)
MT_NONE(AdamW)
MT_NONE(MuonDirection)
MT_NONE(MuonNormalize)
MT_NONE(MuonUpdate)
MT_NONE(AttentionForward)
MT_NONE(AttentionBackward)
MT_NONE(AttentionDecode)
MT_NONE(AttentionMerge)
MT_NONE(CopyBlocks)
MT_NONE(CrossEntropy)
MT_NONE(CrossEntropySums)
MT_NONE(CrossEntropyFromSums)
MT_NONE(Add)
MT_NONE(AddRow)
MT_NONE(Cast)
MT_NONE(Scale)
MT_NONE(SoftCap)
MT_NONE(Fill)
MT_NONE(FillNormal)
MT_NONE(Dropout)
MT_NONE(EmbeddingForward)
MT_NONE(EmbeddingBackward)
MT_NONE(Amax)
MT_NONE(ScaleFromAmax)
MT_NONE(Quantize)
MT_NONE(TransposeFloat8)
MT_NONE(QuantizeBlocks)
MT_NONE(AmaxOfPart)
MT_NONE(InversesOfAmax)
MT_NONE(QuantizePart)
MT_NONE(TransposeInverses)
MT_NONE(UpdateScales)
MT_NONE(LatentHeadsForward)
MT_NONE(LatentHeadsBackward)
MT_NONE(LatentQueries)
MT_NONE(LatentValues)
MT_NONE(WeightedSwigluForward)
MT_NONE(WeightedSwigluBackward)
MT_NONE(GroupedMatmul)
MT_NONE(GroupedWeightGrad)
MT_NONE(Matmul)
MT_NONE(NormForward)
MT_NONE(NormBackward)
MT_NONE(NormSums)
MT_NONE(ExpertRows)
MT_NONE(Permute)
MT_NONE(Unpermute)
MT_NONE(UnpermuteWeightGrad)
MT_NONE(RankChoices)
MT_NONE(ExpertsOfRows)
MT_NONE(SumSquares)
MT_NONE(ClipScale)
MT_NONE(ColumnSum)
MT_NONE(Sum)
MT_NONE(FirstNonFinite)
MT_NONE(Rope)
MT_NONE(RouteTokens)
MT_NONE(RouterSums)
MT_NONE(RouterLosses)
MT_NONE(RouteTokensGrad)
MT_NONE(UpdateRouterBias)
MT_NONE(DropChoices)

std::string unchosen_gemms() { refuse(); }
std::string time_gemms(const std::string&, double, CUstream_st*) { refuse(); }
void use_gemm_choices(const std::string&) { refuse(); }
std::string gemm_choices() { refuse(); }

}  // namespace mtrain::kernels::cuda
