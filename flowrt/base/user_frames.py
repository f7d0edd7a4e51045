"""The frames of a stack that are the user's, and what they are called: ``train.py:12``, ``In[3]:4``.

flowrt's own frames say nothing to users, and neither do those of what starts their programs: `is_library` is
true of their files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_ENTRY_POINTS = str(Path(_PACKAGE).parent / "flowrt_command.py")
_NUMPY = os.path.dirname(np.__file__) + "/"
_COMMANDS = os.path.dirname(sys.executable)
"""Directory in which installers place ``flowrt`` and similar commands."""

_STARTERS = ("IPython", "ipykernel", "_pytest", "unittest", "multiprocessing")
"""Packages that call the user's functions and cells."""


@cache
def is_between(file: str) -> bool:
    """Whether ``file`` is between user code and the graph on the stack, or starts flowrt's own commands."""
    return (
        file.startswith((_PACKAGE, _NUMPY))  # np.stack of tensors asks each for an array
        or file in (contextlib.__file__, functools.__file__)  # a user's ``with`` statement passes through it
        or file == "<frozen runpy>"  # python -m flowrt
        or os.path.dirname(file) == _COMMANDS
        or file == _ENTRY_POINTS
    )


def is_generated(frame: FrameType) -> bool:
    """Whether ``frame`` is a constructor that `dataclasses` has made for flowrt."""
    if frame.f_code.co_filename != "<string>":
        return False
    return str(frame.f_globals.get("__name__")).startswith("flowrt.")  # what `exec` runs may have none


@cache
def starts_programs(file: str) -> bool:
    """Whether code of ``file`` calls the user's programs, so that what called it is of no interest."""
    return file == threading.__file__ or any(f"{os.sep}{name}{os.sep}" in file for name in _STARTERS)


def is_library(file: str) -> bool:
    """Whether tracebacks for users leave out the frames of ``file``."""
    return is_between(file) or starts_programs(file) or file.startswith("<frozen ")


def shown_file(file: str) -> str:
    """``file``, or ``In[3]`` if it stands for the third cell of a notebook."""
    shell = notebook_shell()
    label = None if shell is None else shell.compile.format_code_name(file)
    return file if label is None else str(label[1])


def notebook_shell() -> Any:
    """The shell of IPython that runs this process, or None."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
