"""Reads the command line and runs one command.

A command is a module of its name, imported when it is asked for, with ``EXAMPLES``,
``add_arguments(parser)`` and ``run(arguments)``, which prints and returns an exit status: 0 on success, 1
on failure. A mistake on the command line is reported in one line; status 2.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any

from flowrt.base.exit_codes import INTERRUPTED
from flowrt.cli.options import MISTAKE, CommandParser, new_parser, set_examples
from flowrt.errors import NotFoundError, OpError, nearest

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

FAILURE = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of ``argv`` (None: the process's arguments); returns the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = new_main_parser(words[:1])
    if not words:
        parser.print_help()
        return 0
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        parser.error(f"expected one of {known}; got {words[0]!r}.{nearest(words[0], COMMANDS)}")
    words, behind = _split(words)
    arguments, unknown = parser.parse_known_args(words)
    parser.prog = f"{COMMAND} {arguments.command}"
    sources = (getattr(arguments, name, None) or "" for name in ("source", "schedule"))
    is_script = any(source.endswith(".py") for source in sources)
    if unknown:
        hint = "; put the script's arguments after --" if is_script else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if behind and not is_script:
        parser.error(f"expected nothing after --; got {' '.join(behind)}")
    arguments.script_arguments = behind
    try:
        status = int(_module(arguments.command).run(arguments))
        sys.stdout.flush()
    except NotFoundError as error:
        print(f"flowrt {arguments.command}: {error}", file=sys.stderr)
        return MISTAKE
    except OpError as error:
        print(f"flowrt {arguments.command}: {error}", file=sys.stderr)
        return FAILURE
    except BrokenPipeError:  # the reader, `head` for instance, has closed the pipe
        _drop_output()
        return 0
    except OSError as error:  # a full disk, for instance
        _drop_output()
        print(f"flowrt {arguments.command}: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before "--", and after it: a script's own arguments, which argparse would confuse with those
    of the command.
    """
    if "--" not in words:
        return words, []
    position = words.index("--")
    return words[:position], words[position + 1 :]


def _drop_output() -> None:
    """Discard all further output; otherwise the exit would try to write the rest again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def new_main_parser(wanted: Collection[str]) -> CommandParser:
    """The parser of ``flowrt``, in which the commands of ``wanted`` have their arguments."""
    parser = new_parser(COMMAND, "Inspect flowrt, its graphs and runs, and this machine.", EXAMPLES)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        if name in wanted:
            module = _module(name)
            module.add_arguments(command)
            set_examples(command, module.EXAMPLES)
    return parser


def _module(command: str) -> Any:
    return importlib.import_module(f"flowrt.cli.{command.replace('-', '_')}")
