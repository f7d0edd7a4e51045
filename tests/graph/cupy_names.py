"""Writes `cupy_names.txt`, which is what `pretend_device` knows of CuPy.

``python tests/graph/cupy_names.py``, where CuPy is installed; a GPU is not needed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_suffix(".txt")
MODULES = ("", "linalg.", "fft.", "lib.stride_tricks.", "ndarray.")
HEAD = """\
# The public names of CuPy {version}, written by tests/graph/cupy_names.py. One a line: a ufunc with its loops
# (NumPy's letters, E is bfloat16), a function with its parameters, or anything else.
"""


def lines(cupy: Any) -> Iterator[str]:
    for prefix in MODULES:
        module = cupy
        for part in filter(None, prefix.split(".")):
            module = getattr(module, part)
        for name in sorted(n for n in dir(module) if not n.startswith("_")):
            value = getattr(module, name)
            if isinstance(value, cupy.ufunc):
                yield f"{prefix}{name}: {' '.join(value.types)}"
            elif not inspect.ismodule(value):
                yield f"{prefix}{name}{_parameters(value)}"


def _parameters(value: Any) -> str:
    """``(a, axis, *args)``, as Python or the first line of a Cython docstring has them; nothing without."""
    if inspect.isclass(value) or not callable(value):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
        names = [str(p.replace(default=p.empty, annotation=p.empty)) for p in parameters]
    except (TypeError, ValueError):
        first, _, _ = (value.__doc__ or "").strip().partition("\n")
        found = re.match(r"\w+\.?\w*\((.*)\)", first)
        declared = found[1].split(",") if found else ["*args"]
        names = [re.split(r"\s|\*", p.partition("=")[0].strip())[-1] for p in declared]
    return f"({', '.join(n for n in names if n not in ('', 'self'))})"


if __name__ == "__main__":
    import cupy
    import cupy.lib.stride_tricks

    PATH.write_text(HEAD.format(version=cupy.__version__) + "".join(f"{line}\n" for line in lines(cupy)))
