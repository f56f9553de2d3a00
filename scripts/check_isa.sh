#!/bin/sh
# Checks that objects compiled for one instruction set do not leak it (kernels/cpu/simd.h says how that happens).
# Every symbol that another object can see is in the set's own namespace, and `generic` has no AVX code.
# usage: NM=nm OBJDUMP=objdump check_isa.sh generic|avx2|avx512|avx512bf16|avx512amx <object>...
set -eu
isa=$1
shift
[ $# -gt 0 ] || { echo "check_isa.sh: no objects for $isa"; exit 1; }
bad=0
for object in "$@"; do
  # DW.ref.* is a pointer, not code.
  leaks=$("${NM:-nm}" -C --defined-only --extern-only "$object" |
    grep -E '^[0-9a-f]+ [TWVui] ' | grep -v -e "mtrain::kernels::cpu::$isa::" -e ' DW\.ref\.' || true)
  if [ -n "$leaks" ]; then
    echo "$object: outside of namespace $isa, so another instruction set may get this copy:"
    echo "$leaks"
    bad=1
  fi
  if [ "$isa" = generic ] &&
    "${OBJDUMP:-objdump}" -d --no-show-raw-insn "$object" | grep -m 3 -E '%[yz]mm|	v[a-z0-9]+ .*%xmm|%k[0-7]'; then
    echo "$object: has AVX code"
    bad=1
  fi
done
exit $bad
