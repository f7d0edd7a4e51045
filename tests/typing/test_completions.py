"""Completion lists as an editor shows them: pyright's language server, asked over its pipes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.typing.test_stubs import configured

SERVER = shutil.which("basedpyright-langserver", path=str(Path(sys.executable).parent))

pytestmark = [
    pytest.mark.slow,  # the server reads the package for some seconds
    pytest.mark.skipif(SERVER is None, reason="pyright is not installed: pip install basedpyright"),
]

SCRIPT = """\
import flowrt as tf
x = tf.constant(1.0)
v = tf.Variable(x)
"""


CAPABILITIES = {
    "textDocument": {
        "completion": {
            "completionItem": {
                "documentationFormat": ["markdown"],
                "resolveSupport": {"properties": ["documentation"]},
            }
        }
    }
}


class LanguageServer:
    """A client of the Language Server Protocol: JSON-RPC, each message behind its length."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process, self._last, self._version = process, 0, 0
        root = {"uri": folder.as_uri(), "name": folder.name}
        self.ask("initialize", processId=None, workspaceFolders=[root], capabilities=CAPABILITIES)
        self._send(method="initialized", params={})

    def ask(self, method: str, **params: Any) -> Any:
        """The result; what the server asks meanwhile gets no settings."""
        self._last += 1
        self._send(id=self._last, method=method, params=params)
        while True:
            message = self._read()
            if message.get("id") == self._last and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            if "id" in message:
                items = message.get("params", {}).get("items", [])
                self._send(id=message["id"], result=[None for _ in items])

    def open(self, file: Path) -> None:
        """Open an empty file."""
        document = {"uri": file.as_uri(), "languageId": "python", "version": 0, "text": ""}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def completions(self, file: Path, text: str, ending: str) -> dict[str, Any]:
        """The list that the server offers behind ``ending``, the last line of ``text``, by name."""
        self._version += 1
        document = {"uri": file.as_uri(), "version": self._version}
        changes = [{"text": f"{text}{ending}"}]
        self._send(
            method="textDocument/didChange", params={"textDocument": document, "contentChanges": changes}
        )
        place = {"line": text.count("\n"), "character": len(ending)}
        found = self.ask("textDocument/completion", textDocument={"uri": file.as_uri()}, position=place)
        return {item["label"]: item for item in found["items"]}

    def documentation(self, item: Any) -> str:
        """The text beside an item of a list."""
        return str(self.ask("completionItem/resolve", **item).get("documentation", {}).get("value", ""))

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return json.loads(self._process.stdout.read(length))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("editor")
    configured(folder, "basic")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LanguageServer]:
    with subprocess.Popen([str(SERVER), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            server = LanguageServer(process, folder)
            server.open(folder / "script.py")
            yield server
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("ending", "names", "documented"),
    [
        ("tf.", "Session Variable float32 train layers", "Session Variable matmul while_loop"),
        ("x.", "shape dtype op", "eval set_shape consumers"),
        ("v.", "initializer", "assign_add load"),
        ("tf.train.", "Coordinator", "AdamOptimizer Saver MonitoredTrainingSession"),
        ("tf.layers.", "Dense", "dense conv2d"),
        ("tf.nn.", "rnn_cell", "relu softmax"),
    ],
    ids=["flowrt", "tensor", "variable", "train", "layers", "nn"],
)
def test_editors_offer_public_names_with_documentation(
    server: LanguageServer, folder: Path, ending: str, names: str, documented: str
) -> None:
    offered = server.completions(folder / "script.py", SCRIPT, ending)
    assert {*names.split(), *documented.split()} <= set(offered)
    assert not {"executor", "rendezvous", "protos", "Any", "annotations", "np", "Sequence"} & set(offered)
    assert [name for name in documented.split() if not server.documentation(offered[name])] == []
