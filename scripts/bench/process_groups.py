"""Runs programs and ends them together with all processes that they have started."""
import os
import signal
import sys

# For subprocess.Popen: a process group of its own, in this session if Python supports that: whoever ends the
# session ends the group.
GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
