// The libraries that bring OpenMP are used single-threaded, inside our own thread pool: two teams
// would fight for the same cores, and every thread that enters a parallel region of libgomp gets a
// team of its own.
#pragma once

namespace mtrain::bench {

// Limits the OpenMP regions that the calling thread enters to the thread itself. Cheap after a
// thread's first call.
void use_one_openmp_thread();

}  // namespace mtrain::bench
