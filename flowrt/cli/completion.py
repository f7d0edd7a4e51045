"""``flowrt completion``: the script with which a shell completes flowrt's commands and options."""

from __future__ import annotations

import argparse

from flowrt.cli.run import new_run_parser
from flowrt.cli.tf1 import new_tf1_parser
from flowrt.cli.worker import new_worker_parser
from flowrt.errors import FailedPreconditionError
from flowrt_command import COMMANDS, new_main_parser

SHELLS = ("bash", "zsh")
EXAMPLES = """
  flowrt completion bash >> ~/.bash_completion    bash reads it when it starts
  eval "$(flowrt completion zsh)"                 in ~/.zshrc, behind compinit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def run(arguments: argparse.Namespace) -> int:
    print(script(arguments.shell))
    return 0


def script(shell: str) -> str:
    """The script for ``shell``, of all commands that are installed. Raises `FailedPreconditionError` where
    shtab, the library that writes such scripts, is missing.
    """
    try:
        import shtab
    except ImportError:
        raise FailedPreconditionError("expected shtab: pip install 'flowrt[completion]'") from None
    scripts = []
    for parser in (new_main_parser(COMMANDS), new_run_parser(), new_worker_parser(), new_tf1_parser()):
        _complete_files(parser, shtab.FILE)
        scripts.append(shtab.complete(parser, shell))
    return "\n".join(scripts)


def _complete_files(parser: argparse.ArgumentParser, file: object) -> None:
    """Complete a value that is none of a list as the name of a file."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, file)
        elif action.nargs != 0 and not action.choices:
            action.complete = file  # type: ignore[attr-defined]
