#include "kernels/elementwise.h"

#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
MT_DISPATCH(Add, no_check)
}
