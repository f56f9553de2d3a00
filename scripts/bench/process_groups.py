"""Runs programs that are ended together with all processes that they have started."""
import os
import signal
import sys

# For subprocess.Popen: a process group of its own, in this session where Python can: who ends the session ends all of it.
GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
