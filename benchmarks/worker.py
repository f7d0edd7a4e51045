"""Times cases on one module and prints a JSON line each: ``python worker.py MODULE CASE …``.

Runs as a script, also by the interpreter of another environment, so it imports nothing of flowrt but the
module it is given.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main(module_name: str, names: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.cases import CASES

    module = importlib.import_module(module_name)
    if module_name != "flowrt":
        module.disable_v2_behavior()
    for name in names:
        print(json.dumps({"case": name, "measures": CASES[name].run(module)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
