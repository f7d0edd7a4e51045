"""The error tree: gRPC's canonical codes under TensorFlow's names.

Every misuse raises exactly one of these. The message's first line says *where* (operation, type and the
user's source line), then expected vs. actual, and a hint if there is one.

Some classes are also a built-in exception, since define-and-run scripts catch those: a bad shape is a
``ValueError``, a bad dtype a ``TypeError``, a missing name a ``KeyError``, a closed session a
``RuntimeError``.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from typing import Any, NamedTuple

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = range(7)
PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE = range(7, 12)
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = range(12, 17)


class Origin(NamedTuple):
    """The task of a cluster where an error began, and whether the error is only a consequence of another."""

    task: str
    is_derived: bool


class OpError(Exception):
    """Base of all flowrt errors.

    Attributes: ``message`` (the full text), ``op`` (the operation's name or None), ``op_type`` (its type or
    None), ``source`` (the user's ``file:line`` or None), ``error_code`` (the canonical code, an int),
    ``origin`` (the `Origin` of an error of a cluster, else None).
    """

    error_code = UNKNOWN
    origin: Origin | None = None

    def __init_subclass__(cls, error_code: int | None = None, **options: Any) -> None:
        """A class has the code that it names, or its base's."""
        super().__init_subclass__(**options)
        if error_code is not None:
            cls.error_code = error_code

    def __init__(
        self, *args: Any, op: str | None = None, op_type: str | None = None, source: str | None = None
    ) -> None:
        """``args`` is the message, or TensorFlow's ``(node_def, op, message)``, as scripts raise it."""
        message = str(args[2] if len(args) > 2 else args[0] if args else "")
        if len(args) > 2 and op is None:
            op = getattr(args[1], "name", None)
        self.op, self.op_type, self.source = op, op_type, source
        where = " ".join(filter(None, (op_type, repr(op) if op else None, f"({source})" if source else None)))
        self.message = f"{where}: {message}" if where else message
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message  # KeyError would print the repr

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.op, self.op_type, self.source, self.origin)


def nearest(name: str, names: Iterable[str]) -> str:
    """`` Nearest: a, b`` to append to a message's last sentence, or the empty string."""
    found = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f" Nearest: {', '.join(found)}" if found else ""


def _rebuild(
    cls: type[OpError],
    message: str,
    op: str | None,
    op_type: str | None,
    source: str | None,
    origin: Origin | None = None,
) -> OpError:
    error = cls(message)
    error.op, error.op_type, error.source, error.origin = op, op_type, source, origin
    return error


def copy_to_raise(error: OpError) -> OpError:
    """A copy of ``error`` with its cause and traceback: one instance raised in two threads would mix
    tracebacks, and one raised repeatedly would keep all their frames.
    """
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh.with_traceback(error.__traceback__)


def without_frames(error: OpError) -> OpError:
    """A copy of ``error`` to be kept, without its cause and traceback: their frames keep a step's arrays."""
    return copy.copy(error)


class CancelledError(OpError, error_code=CANCELLED):
    """The step was cancelled, for instance by ``Session.close()`` in another thread."""


class UnknownError(OpError, error_code=UNKNOWN):
    """A kernel raised something that is not a flowrt error; ``__cause__`` has it."""


class InvalidArgumentError(OpError, ValueError, error_code=INVALID_ARGUMENT):
    """An argument has a wrong value, shape or structure."""


class DTypeError(InvalidArgumentError, TypeError):
    """An argument has a wrong dtype or Python type."""


class ForeignElementError(InvalidArgumentError):
    """A tensor or operation of another graph was used."""


class TracerWarning(RuntimeWarning):
    """A traced function used the value of a tensor: the trace contains the resulting Python path only."""


class DeadlineExceededError(OpError, error_code=DEADLINE_EXCEEDED):
    """A step did not end within ``RunOptions.timeout_in_ms``."""


class NotFoundError(OpError, KeyError, error_code=NOT_FOUND):
    """A named thing (operation, tensor, variable, file, tensor of a checkpoint) does not exist."""


class UnknownElementError(NotFoundError, ValueError, TypeError):
    """A fetch or a feed names a tensor or operation that the graph has not. TensorFlow raises ``ValueError``
    for a fetch and ``TypeError`` for a feed.
    """


class AlreadyExistsError(OpError, ValueError, error_code=ALREADY_EXISTS):
    """A named thing exists already."""


class PermissionDeniedError(OpError, error_code=PERMISSION_DENIED):
    """The caller may not do this."""


class ResourceExhaustedError(OpError, error_code=RESOURCE_EXHAUSTED):
    """Memory, disk or a limit is used up."""


class FailedPreconditionError(OpError, RuntimeError, error_code=FAILED_PRECONDITION):
    """The system is not in the required state: uninitialised variable, closed session, finalized graph."""


class AbortedError(OpError, error_code=ABORTED):
    """The operation was aborted, for instance because a peer restarted."""


class OutOfRangeError(OpError, error_code=OUT_OF_RANGE):
    """The end of a dataset or queue was reached."""


class UnimplementedError(OpError, NotImplementedError, error_code=UNIMPLEMENTED):
    """flowrt has no such operation, gradient or option; the message names the nearest one."""


class InternalError(OpError, error_code=INTERNAL):
    """An invariant of flowrt is broken: a bug in flowrt."""


class UnavailableError(OpError, error_code=UNAVAILABLE):
    """A peer cannot be reached at present."""


class DataLossError(OpError, error_code=DATA_LOSS):
    """Stored data is damaged: a checksum or a size does not fit."""


class UnauthenticatedError(OpError, error_code=UNAUTHENTICATED):
    """The caller gave no valid credentials."""
