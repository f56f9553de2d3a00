#include "train/interrupt.h"

#include <unistd.h>
#include <csignal>

namespace mtrain {

namespace {
// A signal handler can reach nothing but a variable of this kind; it belongs to the one Interrupt
// of the process.
volatile std::sig_atomic_t g_received = 0;
struct sigaction g_old_int, g_old_term;

void handle(int signal) {
  if (g_received) _exit(128 + signal);
  g_received = signal;
}
}  // namespace

Interrupt::Interrupt() {
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &g_old_int);
  sigaction(SIGTERM, &action, &g_old_term);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &g_old_int, nullptr);
  sigaction(SIGTERM, &g_old_term, nullptr);
}

int Interrupt::signal() const { return g_received; }

}  // namespace mtrain
