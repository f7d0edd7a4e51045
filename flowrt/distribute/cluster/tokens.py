"""A cluster's token: 256 random bits shared by all its tasks and sessions, in a private file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from flowrt.errors import AlreadyExistsError

TOKEN_BYTES = 32


def write_token(path: Path) -> None:
    """Write a new token to ``path``, mode 0600, and make its directory, mode 0700, if need be.

    Raises `AlreadyExistsError`, and leaves the file alone, where there is one: its cluster may be running.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyExistsError(
            f"token: expected no file at {path}; got one. Remove it to create a new token, which all tasks "
            "need"
        ) from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
