"""The entry points of the commands. They are outside the package, as ``--version`` need not wait for the
import of flowrt, which takes 0.3 s of processor time.
"""

import sys
from importlib import import_module


def flowrt() -> int:
    """``flowrt``."""
    return _run("flowrt", "main")


def flowrt_run() -> int:
    """``flowrt-run``."""
    return _run("flowrt-run", "run")


def flowrt_worker() -> int:
    """``flowrt-worker``."""
    return _run("flowrt-worker", "worker")


def flowrt_tf1() -> int:
    """``flowrt-tf1``."""
    return _run("flowrt-tf1", "tf1")


def _run(command: str, module: str) -> int:
    """Run ``command``, whose parser is in ``module`` of `flowrt.cli`; returns the exit status."""
    if sys.argv[1:] == ["--version"]:
        from importlib import metadata  # 40 ms that the commands need not wait for

        print(f"{command} {metadata.version('flowrt')}")
        return 0
    return int(import_module(f"flowrt.cli.{module}").main())
