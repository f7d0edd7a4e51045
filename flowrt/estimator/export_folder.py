"""Folders of models for servers: a number each, complete or not there."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

_TEMPORARY = "temp-"


@contextlib.contextmanager
def new_export(base: Any) -> Iterator[str]:
    """A new folder in ``base`` that servers ignore, ``temp-`` and the time in seconds, until all is written:
    then it loses the ``temp-``. If the block fails it is deleted.
    """
    base, number = os.fsdecode(base), int(time.time())
    os.makedirs(base, exist_ok=True)
    while any(os.path.exists(os.path.join(base, f"{start}{number}")) for start in ("", _TEMPORARY)):
        number += 1
    folder = os.path.join(base, f"{_TEMPORARY}{number}")
    os.mkdir(folder)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    os.rename(folder, final_name(folder))


def final_name(folder: str) -> str:
    """The name that a folder of `new_export` gets."""
    base, name = os.path.split(folder)
    return os.path.join(base, name.removeprefix(_TEMPORARY))
