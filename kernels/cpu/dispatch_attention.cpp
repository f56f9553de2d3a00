#include "kernels/attention.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {

MT_DISPATCH(AttentionForward, no_check)
MT_DISPATCH(AttentionBackward, no_check)

}  // namespace mtrain::kernels::cpu
