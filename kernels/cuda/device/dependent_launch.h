// Programmatic dependent launch: a kernel starts while the previous kernel of its stream ends. The
// time to launch it, and to fill the multiprocessors with its blocks, is then hidden. This header
// includes no CUDA header.
//
// A kernel that allows this is launched by MT_LAUNCH_DEPENDENT, and calls
// wait_for_previous_kernel() in all its threads, before anything else but arithmetic on its
// parameters and indices. Why the order of all accesses to memory is as without it:
// - The wait ends when every kernel that the launch depends on has ended and its writes are
//   visible. A kernel accesses global memory only after the wait. It therefore reads what earlier
//   kernels have written, and writes nothing that they still read.
// - Kernel N + 1 waits only for kernel N. Kernel N has ended only if all its threads have returned
//   from their waits, that is, if kernel N - 1 had ended. By induction all earlier kernels have
//   ended. A thread that ended without a wait would break this chain.
// - A kernel that is launched as usual begins after the previous kernel has ended, and so do copies
//   and fills. So do kernels of libraries, which wait in the same way if they start early.
// - An event that is recorded after kernel N is reached when N has ended. Waits of other streams,
//   timings, and the stream sanitizer, which orders launches and events, mean the same as before.
//   If a stream waits for an event between N and N + 1, this wait is a dependency of N + 1 too.
// - After its wait a kernel allows the next kernel to start. At that time each block of it runs or
//   has ended. Blocks that wait therefore keep no place from blocks that must run first.
// - A capture makes an edge of the graph from the attribute, with the same meaning (CUDA 12.3).
// The emulator checks that all threads wait; scripts/check_sass.sh checks that no access to global
// memory comes before the wait.
#pragma once

namespace mtrain::kernels::cuda {

// Returns whether a kernel whose code was compiled for virtual architecture `ptx` (90: 9.0) has the
// wait, and whether the driver (12030: CUDA 12.3) can capture it. The architecture of the GPU does
// not decide: on a new GPU the code may come from PTX of an earlier architecture, without the wait.
constexpr bool can_launch_dependent(int ptx, int driver) { return ptx >= 90 && driver >= 12030; }

// Returns whether to launch a kernel of this build early: the launch's Workspace allows it
// (kernels/workspace.h), and the current device can. All kernels of a build are compiled for the
// same architectures, so the first kernel that asks decides for all.
bool launches_dependent(const void* kernel);

}  // namespace mtrain::kernels::cuda
