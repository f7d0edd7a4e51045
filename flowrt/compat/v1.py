"""Everything that `flowrt` has, under the name that scripts for later TensorFlows import."""

from typing import Any

import flowrt


def __getattr__(name: str) -> Any:
    return getattr(flowrt, name)


def __dir__() -> list[str]:
    return dir(flowrt)
