"""Commands of the debugger, as text in and out: what `LocalCLIDebugWrapperSession` asks around a run.

run | r [-n] [-t TIMES] [-f FILTER]    run; without debugging; TIMES runs; until FILTER finds a tensor
lt [-f FILTER]                         list the tensors of the run
pt NAME                                print a tensor
ni NAME                                an operation's type and inputs
exit                                   end the program
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from flowrt.errors import OpError
from flowrt.tf1.debugger.dumps import Dump

PROMPT = "tfdbg> "


class Choice(NamedTuple):
    """The user's wish for the next runs: ``times`` runs that are not looked into, then one that is, or
    one after the other until ``filter_name`` finds something.
    """

    times: int = 0
    filter_name: str | None = None


class _Mistake(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Mistake(message)


def _run_parser() -> _Parser:
    parser = _Parser(prog="run", add_help=False)
    parser.add_argument("-n", "--no_debug", action="store_true")
    parser.add_argument("-t", "--times", type=int, default=1)
    parser.add_argument("-f", "--till_filter_pass")
    return parser


class Prompt:
    """Asks by ``read(prompt)``, answers by ``write(text)``; ``filters`` are by name."""

    def __init__(
        self,
        filters: Mapping[str, Callable[..., bool]],
        read: Callable[[str], str] = input,
        write: Callable[[str], Any] = print,
    ) -> None:
        self._filters, self._read, self.say = filters, read, write

    def ask(self, graph: Any, dump: Dump | None) -> Choice:
        """Answer commands, about the tensors of the last run, until one says how to go on. Raises
        `SystemExit` for ``exit``, or at the end of the input.
        """
        while True:
            try:
                words = shlex.split(self._read(PROMPT))
                if not words:
                    continue
                command, *rest = words
                if command in ("exit", "quit"):
                    raise SystemExit(1)
                if command in ("run", "r"):
                    return self._choice(rest)
                self.say(self._answer(command, rest, graph, dump))
            except EOFError:
                raise SystemExit(1) from None
            except (_Mistake, OpError, ValueError) as error:
                self.say(f"error: {error}")

    def _choice(self, words: list[str]) -> Choice:
        given = _run_parser().parse_args(words)
        self._filter(given.till_filter_pass)
        return Choice(given.times - (0 if given.no_debug else 1), given.till_filter_pass)

    def _filter(self, name: str | None) -> Callable[..., bool] | None:
        if name is not None and name not in self._filters:
            raise _Mistake(f"there is no filter {name!r}; filters: {', '.join(self._filters)}")
        return None if name is None else self._filters[name]

    def _answer(self, command: str, words: list[str], graph: Any, dump: Dump | None) -> str:
        if command not in ("lt", "pt", "ni"):
            return str(__doc__).partition("\n\n")[2].rstrip()
        if dump is None:
            raise _Mistake("there was no run yet: type run")
        if command == "lt":
            chosen = self._filter(words[1] if words[:1] == ["-f"] and len(words) > 1 else None)
            found = dump.dumped_tensor_data if chosen is None else dump.find(chosen)
            return "\n".join(_line(datum) for datum in found) or "no tensors"
        if not words:
            raise _Mistake(f"{command}: expected a name")
        name = words[0]
        if command == "pt":
            name = name if ":" in name else f"{name}:0"
            values = [d.get_tensor() for d in dump.dumped_tensor_data if d.tensor_name == name]
            if not values:
                raise _Mistake(f"the run has no tensor {name}")
            return f"{name}\n{np.asarray(values[0])!r}"
        operation = graph.as_graph_element(name.partition(":")[0])
        inputs = "\n".join(f"  {tensor.name} {tensor.spec}" for tensor in operation.inputs)
        return f"{operation.type} {operation.name}\n{inputs or '  no inputs'}"


def _line(datum: Any) -> str:
    value = np.asarray(datum.get_tensor())
    return f"{datum.tensor_name}  {value.dtype}{list(value.shape)}"
