"""Everything that `flowrt` has, under the name that scripts for later TensorFlows import."""

import sys
from typing import Any

_flowrt = sys.modules["flowrt"]


def __getattr__(name: str) -> Any:
    return getattr(_flowrt, name)


def __dir__() -> list[str]:
    return dir(_flowrt)
