"""Everything that `flowrt` has, under the name that scripts for later TensorFlows import."""

import sys
from types import SimpleNamespace
from typing import Any

_flowrt = sys.modules["flowrt"]

__path__: list[str] = []  # so that an import of a missing module says why

__version__ = VERSION = _flowrt.VERSION
"""TensorFlow's version, because scripts use it to select an API; flowrt's own is `flowrt.__version__`."""
GIT_VERSION, COMPILER_VERSION = f"v{VERSION}", _flowrt.COMPILER_VERSION
version = SimpleNamespace(VERSION=VERSION, GIT_VERSION=GIT_VERSION, COMPILER_VERSION=COMPILER_VERSION)


def __getattr__(name: str) -> Any:
    return getattr(_flowrt, name)


def __dir__() -> list[str]:
    return dir(_flowrt)
