"""The list of a directory's checkpoints: the text file ``checkpoint``, in TensorFlow's format.

    model_checkpoint_path: "model.ckpt-200"
    all_model_checkpoint_paths: "model.ckpt-100"
    all_model_checkpoint_paths: "model.ckpt-200"

Rule: a path inside the directory is written relative to it, so that the directory can be moved or renamed.
Lines with other keys (TensorFlow writes timestamps) are ignored.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from flowrt.errors import DataLossError, InvalidArgumentError
from flowrt.storage.durable_files import PathLike, path_string, replace_file, typed_os_errors
from flowrt.train.checkpoints.checkpoint_reader import CheckpointReader
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, open_checkpoint
from flowrt.train.checkpoints.stored_arrays import Array

__all__ = [
    "CheckpointState", "get_checkpoint_state", "latest_checkpoint", "list_variables", "load_checkpoint",
    "load_variable", "update_checkpoint_state",
]  # fmt: skip

LOGGER = logging.getLogger(__name__)

LATEST, ALL = "model_checkpoint_path", "all_model_checkpoint_paths"

_LINE = re.compile(rb'(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|[-+.\w]+)')
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_CONTROL = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


@final
@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The prefix of the newest checkpoint, and of all that are kept, oldest first."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...]


def format_checkpoint_state(state: CheckpointState) -> bytes:
    """The text of a state file: UTF-8, quotes, backslashes and control characters escaped."""
    lines = [(LATEST, state.model_checkpoint_path), *((ALL, p) for p in state.all_model_checkpoint_paths)]
    return b"".join(b'%s: "%s"\n' % (key.encode(), _escape(path)) for key, path in lines)


def parse_checkpoint_state(text: bytes, where: str) -> CheckpointState:
    """Parse `format_checkpoint_state`'s or TensorFlow's output. Raises `DataLossError`, naming ``where``."""
    found: dict[str, list[str]] = {LATEST: [], ALL: []}
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if not match:
            raise DataLossError(f'{where}, line {number}: expected key: "value"; got {line!r:.200}')
        key, value = match[1].decode(), match[2]
        if key in found:
            found[key].append(_unescape(value or b"", f"{where}, line {number}"))
    if len(found[LATEST]) != 1 or "" in found[LATEST] + found[ALL]:
        raise DataLossError(f"{where}: expected one {LATEST} and no empty path; got {found}")
    return CheckpointState(found[LATEST][0], tuple(found[ALL]))


def _escape(path: str) -> bytes:
    text = re.sub(rb'["\\]', rb"\\\g<0>", os.fsencode(path)).replace(b"\n", rb"\n")
    return re.sub(rb"[\x00-\x1f]", lambda m: b"\\%03o" % m[0][0], text)


def _unescape(text: bytes, where: str) -> str:
    def character(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 8) & 0xFF])
        return bytes([int(match[2], 16)]) if match[2] else _CONTROL.get(match[3], match[3])

    data = _ESCAPE.sub(character, text)
    if b"\0" in data:
        raise DataLossError(f"{where}: expected a path; got {data!r}")
    return os.fsdecode(data)


def update_checkpoint_state(
    save_dir: PathLike,
    model_checkpoint_path: PathLike,
    all_model_checkpoint_paths: Iterable[PathLike] | None = None,
    latest_filename: str | None = None,
) -> None:
    """Replace the state file of ``save_dir`` by one that names these prefixes, in one step.

    ``model_checkpoint_path`` is appended to ``all_model_checkpoint_paths`` where it is not its last. Raises
    `NotFoundError` (no directory), `ResourceExhaustedError`, `PermissionDeniedError`; then the old one stays.
    """
    directory = path_string(save_dir, "save_dir")
    latest = _inside(directory, path_string(model_checkpoint_path, LATEST))
    kept = [_inside(directory, path_string(path, ALL)) for path in all_model_checkpoint_paths or ()]
    if kept[-1:] != [latest]:
        kept.append(latest)
    path = _state_path(directory, latest_filename)
    with typed_os_errors(f"writing {path}"):
        replace_file(path, format_checkpoint_state(CheckpointState(latest, tuple(kept))))


def _inside(directory: str, path: str) -> str:
    relative = os.path.relpath(path, directory)
    return os.path.abspath(path) if relative.split(os.sep)[0] == os.pardir else relative


def _state_path(directory: str, latest_filename: str | None) -> str:
    return os.path.join(directory, latest_filename or "checkpoint")


def get_checkpoint_state(
    checkpoint_dir: PathLike, latest_filename: str | None = None
) -> CheckpointState | None:
    """The directory's checkpoint state, relative paths joined to ``checkpoint_dir``.

    Args:
        checkpoint_dir: The directory.
        latest_filename: The name of the state file in it, by default "checkpoint".

    Returns:
        The state, with ``model_checkpoint_path``; None if absent.

    Raises:
        DataLossError: The file is damaged (TensorFlow returns None, and a script then starts from scratch).

    Example:
        >>> v = tf.Variable(1.0)
        >>> session.run(v.initializer)
        >>> path = tf.train.Saver().save(session, 'model', global_step=7)
        >>> tf.train.get_checkpoint_state('.').model_checkpoint_path
        './model-7'
    """
    directory = path_string(checkpoint_dir, "checkpoint_dir")
    path = _state_path(directory, latest_filename)
    with typed_os_errors(f"reading {path}"):
        try:
            with open(path, "rb") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
    state = parse_checkpoint_state(text, path)
    return CheckpointState(
        os.path.join(directory, state.model_checkpoint_path),
        tuple(os.path.join(directory, p) for p in state.all_model_checkpoint_paths),
    )


def latest_checkpoint(checkpoint_dir: PathLike, latest_filename: str | None = None) -> str | None:
    """The prefix of the directory's newest checkpoint.

    One that TensorFlow has saved counts too. If the files of the newest one are gone, that is a warning,
    which names the newest one that is there.

    Args:
        checkpoint_dir: The directory.
        latest_filename: The name of the state file in it, by default "checkpoint".

    Returns:
        A path that `Saver.restore` takes, or None.

    Raises:
        DataLossError: The state file is damaged.

    Example:
        >>> v = tf.Variable(1.0)
        >>> session.run(v.initializer)
        >>> path = tf.train.Saver().save(session, 'model', global_step=7)
        >>> tf.train.latest_checkpoint('.')
        './model-7'
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not state.model_checkpoint_path:
        return None
    if checkpoint_exists(state.model_checkpoint_path):
        return state.model_checkpoint_path
    older = next(filter(checkpoint_exists, reversed(state.all_model_checkpoint_paths)), None)
    LOGGER.warning(
        "%s: the newest checkpoint counts as none, since its index is gone. %s",
        state.model_checkpoint_path,
        "There is no older one" if older is None else f"To go on from an older one, restore {older}",
    )
    return None


def load_checkpoint(ckpt_dir_or_file: PathLike) -> CheckpointReader:
    """A reader of the checkpoint with this prefix, or of the newest one in this directory.

    Raises `InvalidArgumentError` for a directory without one, and as `CheckpointReader` does.
    """
    path = path_string(ckpt_dir_or_file, "ckpt_dir_or_file")
    if not os.path.isdir(path):
        return open_checkpoint(path)
    latest = latest_checkpoint(path)
    if latest is None:
        raise InvalidArgumentError(f"load_checkpoint: expected a directory with a checkpoint; got {path}")
    return open_checkpoint(latest)


def list_variables(ckpt_dir_or_file: PathLike) -> list[tuple[str, list[int]]]:
    """Name and shape of each tensor, sorted by name. Raises as `load_checkpoint` does."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: PathLike, name: str) -> Array:
    """The value of one tensor; ``name`` may end in a variable's ``:0``. Raises as `load_checkpoint` does."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))
