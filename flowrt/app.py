"""``flowrt.app``: ``app.run()`` reads the flags and calls the script's ``main``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from flowrt import flags
from flowrt.tf1.missing_names import missing_from

__all__ = ["flags", "run"]


def run(main: Callable[[list[str]], Any] | None = None, argv: list[str] | None = None) -> NoReturn:
    """Call ``main(argv)`` and exit with its result.

    Args:
        main: A function of one list; None for the script's own ``main``.
        argv: The script's name and its arguments; None for those of the process. ``main`` gets those that are
            not flags. As with TensorFlow 1's ``app.run``, that includes unknown flags, which are not
            rejected.
    """
    rest = flags.FLAGS(argv)
    absl = sys.modules.get("absl.flags")  # which TensorFlow's flags are: scripts define theirs with either
    if absl is not None:
        rest = absl.FLAGS(rest, known_only=True)
    function = main if main is not None else sys.modules["__main__"].main
    sys.exit(function(rest))


__getattr__ = missing_from("app")
