"""Reads the command line and runs one command.

A command is a module of its name, imported when it is asked for, with ``EXAMPLES``,
``add_arguments(parser)`` and ``run(arguments)``, which prints and returns an exit status: 0 on success, 1
on failure. A mistake on the command line is reported in one line; status 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from flowrt.base.exit_codes import INTERRUPTED
from flowrt.cli.options import MISTAKE
from flowrt.errors import NotFoundError, OpError, nearest
from flowrt_command import COMMAND, COMMANDS, command_module, new_main_parser

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
        status = int(command_module(arguments.command).run(arguments))
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
