"""Processes that save or restore together: what one finds, all learn, and an error in one is an error in all.

found = processes.all(lambda: prepare())    # in each process, at the same time: the results of all
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol, final

from flowrt import errors
from flowrt.errors import OpError, UnimplementedError
from flowrt.graph.passes.layouts.processes import Own, own_of_variable
from flowrt.graph.resources.exchange import exchange


class Processes(Protocol):
    """Processes that take the same steps; this one is ``number``, of ``count``."""

    number: int
    count: int

    def all(self, action: Callable[[], Any]) -> list[Any]:
        """The results of ``action`` in each process, by number: values that JSON has, with lists for tuples.

        Raises what it raises; if it does so in another process, the same type here, which names that one.
        """


@final
class _Alone:
    number, count = 0, 1

    def all(self, action: Callable[[], Any]) -> list[Any]:
        return [action()]


ALONE: Processes = _Alone()
"""No other process has a part."""


@final
class Together:
    """The processes of a mesh, if each runs its own session, in a ``call`` of all: the word for errors.

    `all` raises `DeadlineExceededError` if a process does not come within the time that the strategy waits
    for steps, `UnavailableError` if one is lost, and `InvalidArgumentError` if one does something else. Then
    the group of the processes has ended.
    """

    def __init__(self, own: Own, call: str) -> None:
        self._own, self._call = own, call
        self._firsts = [own.mesh.place(*reader) for reader in own.readers()]
        """The first rank of each process."""
        self.number, self.count = own.task(own.ranks[0]), len(self._firsts)

    def all(self, action: Callable[[], Any]) -> list[Any]:
        """See `Processes`."""
        own_error: BaseException | None = None
        try:
            answer: Any = {"found": action()}
        except BaseException as error:  # noqa: BLE001 (the others wait for this process)
            own_error = error
            answer = _described(error)
        texts = exchange(self._own.key, self._own.ranks, json.dumps(answer), self._call)
        if own_error is not None:
            raise own_error
        answers = [json.loads(texts[rank]) for rank in self._firsts]
        for number, answer in enumerate(answers):
            if "error" in answer:
                raise getattr(errors, answer["error"])(f"process {number}: {answer['message']}")
        return [answer["found"] for answer in answers]


def _described(error: BaseException) -> dict[str, str]:
    """An error as the other processes will raise it."""
    if isinstance(error, OpError):
        kind = next(each for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
        return {"error": kind.__name__, "message": error.message}
    return {"error": "UnknownError", "message": f"{type(error).__name__}: {error}"}


def processes_of(variables: Iterable[Any], call: str) -> Processes:
    """The processes that have parts of ``variables``, in a ``call``, such as "save". Raises
    `UnimplementedError` for several meshes.
    """
    found = {own for v in variables if (own := own_of_variable(v.op.node.attrs)) is not None}
    if len(found) > 1:
        meshes = " and ".join(sorted(str(own.mesh) for own in found))
        raise UnimplementedError(f"a checkpoint needs variables of processes in one mesh; got {meshes}")
    return Together(found.pop(), call) if found else ALONE
