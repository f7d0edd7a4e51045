"""`CodeCache`: a persistent cache of machine code, shared by processes.

Entries are machine code that is executed when loaded. Rules of this file:

  1. The folder and every entry belong to this user, and no one else may write them; else they are not used.
  2. An entry contains its key, and the length and SHA-256 of its payload; if they do not match it is removed
     and counts as absent. It is written to a temporary file and renamed: readers never see a partial entry,
     whenever a writer is killed.
  3. A cache only saves time. If it cannot be read or written, everything works without it, and one log line
     reports it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, final

LOGGER = logging.getLogger(__name__)

MAGIC = b"flowrt\x00\x01"
"""The last byte is the format's version."""

HEADER = struct.Struct("<8s32sQ32s")
"""`MAGIC`, the key, the payload's length in bytes, the payload's SHA-256."""

LIMIT_BYTES = 256 << 20  # a fused group's code has 2-20 KiB
UNFINISHED, UNFINISHED_FOR_S = ".unfinished", 3600
"""Suffix of files left by killed writers, and their minimum age; no writer takes an hour."""

ADVICE = "FLOWRT_CACHE_DIR can name another folder"

_ENTRY = re.compile("[0-9a-f]{64}")


@cache
def code_cache() -> CodeCache:
    """This process's cache: in ``FLOWRT_CACHE_DIR`` (empty: none), by default in the user's cache folder."""
    try:
        return CodeCache(cache_folder(), LIMIT_BYTES)
    except RuntimeError as error:  # there is no home; Python's message is a sentence
        LOGGER.warning("compiled code is not cached: %s %s", error, ADVICE)
        return CodeCache(None, 0)


def cache_folder() -> Path | None:
    """The folder of what this user's processes keep, by ``FLOWRT_CACHE_DIR``; None: nothing is kept.

    Raises `RuntimeError` if there is no home.
    """
    chosen = os.environ.get("FLOWRT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen).expanduser().absolute() if chosen else None
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "flowrt"


@final
class CodeCache:
    """Entries in ``folder`` of at most ``limit_bytes`` bytes; the least recently used are evicted first.

    Keys are SHA-256 digests, 64 lower-case hexadecimal digits. ``folder`` None: nothing is found or kept.
    Thread-safe and process-safe; each additional active process may exceed the limit by a sixteenth. Disk
    contents and disk errors never raise.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self._folder = None if folder is None else _private(folder)
        self._limit_bytes = limit_bytes
        self._room = 0
        """Number of bytes that may be written before the folder is checked again."""

    def get(self, key: str) -> bytes | None:
        """The payload that was last put under ``key``, or None. It counts as used now."""
        if self._folder is None:
            return None
        path = self._folder / key
        try:
            content = _read_private(path)
            if content is None:
                return None
            payload = _unpacked(key, content)
            if payload is None:
                LOGGER.warning("%s is damaged and is removed", path)
                path.unlink()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store ``payload`` under ``key``, replacing an old entry; not if it alone exceeds the limit, nor
        where there is a folder, which may contain a user's files.
        """
        content = _packed(key, payload)
        if self._folder is None or len(content) > self._limit_bytes:
            return
        path = self._folder / key
        try:
            _write(path, content)
            self._room -= len(content)
            if self._room < 0:
                self._room = self._make_room(self._folder)
        except IsADirectoryError:
            LOGGER.warning("expected an entry of compiled code; %s is a folder. Remove it", path)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        LOGGER.warning("compiled code is no longer cached in %s: %s. %s", self._folder, error, ADVICE)
        self._folder = None

    def _make_room(self, folder: Path) -> int:
        """Evict entries over the limit; returns the number of bytes to write before the next check."""
        _remove_unfinished(folder)
        entries = sorted(_entries(folder), key=lambda entry: entry.used_ns)
        total = sum(entry.nbytes for entry in entries)
        for entry in entries:
            if total <= self._limit_bytes:
                break
            entry.path.unlink(missing_ok=True)  # open handles stay valid; another process may have removed it
            total -= entry.nbytes
        return min(self._limit_bytes - total, self._limit_bytes // 16)


# --- ownership of files


def _private(folder: Path) -> Path | None:
    """``folder``, made if need be; None if it cannot be, or is not this user's alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        LOGGER.warning("compiled code is not cached: %s. %s", error, ADVICE)
        return None
    return folder if _is_ours(found, folder) else None


def _is_ours(found: os.stat_result, path: Path) -> bool:
    if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    LOGGER.warning(
        "%s is not used: expected it to be user %d's, and not writable by others; it is user %d's with "
        "mode %o. %s",
        path,
        os.geteuid(),
        found.st_uid,
        stat.S_IMODE(found.st_mode),
        ADVICE,
    )
    return False


def _read_private(path: Path) -> bytes | None:
    """The contents of the file, marked as used now; None if it is not a file owned and writable by this user
    only.

    It is opened once, and the checks apply to the opened file, so that it cannot be swapped in between.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not _is_ours(found, path):
            return None
        os.utime(descriptor)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


# --- entries


def _packed(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).digest()
    return HEADER.pack(MAGIC, bytes.fromhex(key), len(payload), digest) + payload


def _unpacked(key: str, content: bytes) -> bytes | None:
    """The payload, or None if ``content`` was not packed for ``key``."""
    payload = content[HEADER.size :]
    return payload if content == _packed(key, payload) else None


def _write(path: Path, content: bytes) -> None:
    """All or nothing, for every reader. Without fsync: an entry that a power cut took is a damaged one."""
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


class _Entry(NamedTuple):
    path: Path
    nbytes: int
    used_ns: int


def _entries(folder: Path) -> Iterator[_Entry]:
    """The folder's entries. Other files are ignored and kept."""
    with os.scandir(folder) as found:
        for file in found:
            if _ENTRY.fullmatch(file.name) and not file.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another process removed it
                    status = file.stat(follow_symlinks=False)
                    yield _Entry(Path(file.path), status.st_size, status.st_mtime_ns)


def _remove_unfinished(folder: Path) -> None:
    """Remove files left by killed writers."""
    for path in folder.glob(f"*{UNFINISHED}"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - UNFINISHED_FOR_S:
                path.unlink()
