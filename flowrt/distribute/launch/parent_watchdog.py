"""Runs a program that dies with its parent: ``python parent_watchdog.py PARENT_PID PROGRAM ARGUMENT...``

A killed process cannot stop its children. Linux can: it sends them a signal when the parent exits, on
request. The request survives ``exec``, so this program makes it and then executes the other one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, *command = sys.argv[1:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        sys.exit("parent watchdog: prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == int(parent):  # otherwise it exited before the request
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
