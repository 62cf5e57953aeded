"""``python exec_bound.py PARENT_PID COMMAND...``: becomes the command, after asking the kernel to be killed when the parent dies.

Run by path and in isolated mode, so it may import the standard library only. A process of its own, since Python code between fork
and exec (subprocess's ``preexec_fn``) is not safe where the parent has threads: gRPC's fork hooks were seen to crash the child.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2). It survives execve, and means the death of the thread that forked."""


def main() -> None:
    parent, *command = sys.argv[1:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it died before the kernel was asked
        sys.exit("the parent is gone")
    try:
        os.execv(command[0], command)  # noqa: S606  (the command is our caller's, without a shell)
    except OSError as error:
        sys.exit(f"cannot execute {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
