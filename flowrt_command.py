"""What `flowrt`, `flowrt-run` and `flowrt-worker` start.

It is no part of the package because importing that takes half a second, in which Ctrl-C has to end a command
as silently as at any other time: the first import of a module of flowrt imports flowrt.
"""

import importlib
import signal


def flowrt() -> int:
    """The command `flowrt`; its exit status."""
    return _run("flowrt.cli.main")


def flowrt_run() -> int:
    """The command `flowrt-run`; its exit status."""
    return _run("flowrt.cli.run")


def flowrt_worker() -> int:
    """The command `flowrt-worker`; its exit status."""
    return _run("flowrt.cli.worker")


def _run(module: str) -> int:
    """``main()`` of ``module``, in the import of which an interrupt ends the process as the system does."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        command = importlib.import_module(module)
    finally:
        signal.signal(signal.SIGINT, before)
    return int(command.main())
