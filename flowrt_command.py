"""The commands: their entry points, the list that ``flowrt --help`` prints, and how their parsers look.

They are outside the package, as ``--help`` and ``--version`` need not wait for the import of flowrt, which
takes 0.35 s of processor time.
"""

import argparse
import sys
from collections.abc import Collection
from importlib import import_module
from typing import Any, NoReturn

COMMAND = "flowrt"
COMMANDS = {
    "devices": "list the devices of this machine, with their memory, the libraries and threads",
    "env": "print versions, settings and devices for a bug report",
    "selftest": "check numerics on one device and benchmark it",
    "certs": "create certificates for the tasks of a cluster",
    "token": "create the token of a cluster",
    "debug": "diagnose a hung run",
    "export": "write a graph for a viewer (as built, in its layouts, placed, or partitioned by device), or a"
    " pipeline's schedule",
    "explain": "show where each operation of a step runs and why, and what was compiled for it",
    "summary": "show parameters, floating-point operations and bytes of a step, by name scope",
    "report": "write an HTML report of a run: curves, step times, transfers, memory, events, plans",
    "plan": "find what to run where for a script's training step, and how long it takes",
    "top": "watch the tasks of a running cluster: steps, waits, bytes, memory, stragglers",
    "profile": "trace the next steps of a running cluster: a timeline, and a table of operations",
    "convert": "write a model, or a checkpoint, as files of another kind",
    "run-model": "run a model on arrays in .npy files",
    "completion": "print a script with which a shell completes flowrt's commands and options",
}
"""The commands in the order of the list, with their descriptions."""
EXAMPLES = """
  flowrt export train.py --out graph.html       a script's graph, to look at in a browser
  flowrt report runs/mnist                      curves, steps and transfers of a run with --log-dir
  flowrt plan train.py --cluster gpus.toml      what to run where

Exit status: 0 done, 1 failed, 2 a mistake on the command line or in what it names, 130 interrupted
(docs/command_line.md has the statuses of clusters).
"""


def flowrt() -> int:
    """``flowrt``."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        new_main_parser(()).print_help()
        return 0
    return _run(COMMAND, "main")


def flowrt_run() -> int:
    """``flowrt-run``."""
    return _run("flowrt-run", "run")


def flowrt_worker() -> int:
    """``flowrt-worker``."""
    return _run("flowrt-worker", "worker")


def flowrt_tf1() -> int:
    """``flowrt-tf1``."""
    return _run("flowrt-tf1", "tf1")


def _run(command: str, module: str) -> int:
    """Run ``command``, whose parser is in ``module`` of `flowrt.cli`; returns the exit status."""
    if sys.argv[1:] == ["--version"]:
        print(f"{command} {_version()}")
        return 0
    return int(command_module(module).main())


def _version() -> str:
    """The version of flowrt, which need not be imported yet."""
    if "flowrt" in sys.modules:
        return str(sys.modules["flowrt"].__version__)
    from importlib import metadata  # 40 ms that the commands need not wait for

    return metadata.version("flowrt")


def command_module(name: str) -> Any:
    """The module of `flowrt.cli` that has the command ``name``."""
    return import_module(f"flowrt.cli.{name.replace('-', '_')}")


def new_main_parser(wanted: Collection[str]) -> "CommandParser":
    """The parser of ``flowrt``, in which the commands of ``wanted`` have their arguments."""
    parser = new_parser(COMMAND, "Inspect flowrt, its graphs and runs, and this machine.", EXAMPLES)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        if name in wanted:
            module = command_module(name)
            module.add_arguments(command)
            set_examples(command, module.EXAMPLES)
    return parser


class _Formatter(argparse.HelpFormatter):
    """Wraps a text, unless it has lines of its own: examples. Each command is on the line of its text."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.nargs == argparse.PARSER:  # argparse (3.11) forgets that commands are indented
            self._action_max_length += self._indent_increment

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports mistakes in one line, without the usage text; exit status 2."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises `argparse.ArgumentError` for a ``value`` that is none of the choices of ``action``."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            from flowrt.errors import nearest  # a mistake is worth the wait

            hint = nearest(str(value), known)
            raise argparse.ArgumentError(action, f"expected one of {', '.join(known)}; got {value!r}.{hint}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def new_parser(command: str, description: str, examples: str) -> CommandParser:
    """A parser with ``--help`` and ``--version``, without abbreviations: an option may belong to a script."""
    parser = CommandParser(prog=command, description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{command} {_version()}")
    set_examples(parser, examples)
    return parser


def set_examples(parser: argparse.ArgumentParser, examples: str) -> None:
    """Let ``parser`` end its help with ``examples``, line by line as they are."""
    parser.formatter_class = _Formatter
    parser.epilog = f"examples:{examples.rstrip()}"
