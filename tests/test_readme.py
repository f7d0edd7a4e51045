"""README and ARCHITECTURE tell the truth: the script prints what is said, and every name exists."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/checkpoints.md",
    "docs/cluster.md",
    "docs/coming_from_tensorflow.md",
    "docs/command_line.md",
    "docs/control_flow.md",
    "docs/devices.md",
    "docs/differentiation.md",
    "docs/elastic.md",
    "docs/explanation/life_of_a_step.md",
    "docs/explanation/memory.md",
    "docs/explanation/placement.md",
    "docs/explanation/rendezvous.md",
    "docs/faults.md",
    "docs/functions.md",
    "docs/html_page.md",
    "docs/keras.md",
    "docs/layouts.md",
    "docs/mixed_precision.md",
    "docs/models.md",
    "docs/observe.md",
    "docs/other_systems.md",
    "docs/parameter_servers.md",
    "docs/pipelines.md",
    "docs/plan.md",
    "docs/programs.md",
    "docs/see_it.md",
    "docs/sharded.md",
    "docs/start_here.md",
    "docs/strategies.md",
    "docs/timeline.md",
    "docs/training_loops.md",
    "docs/tutorials/cluster.md",
    "docs/tutorials/control_flow.md",
    "docs/tutorials/first_model.md",
    "docs/tutorials/input.md",
    "docs/tutorials/layouts.md",
    "docs/tutorials/strategies.md",
    "docs/tutorials/two_devices.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "tests/test_tour.py",
)
MAX_LINES = {
    "README.md": 230,
    "docs/checkpoints.md": 140,
    "docs/cluster.md": 217,
    "docs/control_flow.md": 140,
    "docs/devices.md": 240,
    "docs/differentiation.md": 120,
    "docs/elastic.md": 110,
    "docs/explanation/life_of_a_step.md": 130,
    "docs/explanation/memory.md": 150,
    "docs/explanation/placement.md": 120,
    "docs/explanation/rendezvous.md": 150,
    "docs/faults.md": 80,
    "docs/functions.md": 180,
    "docs/keras.md": 110,
    "docs/layouts.md": 190,
    "docs/mixed_precision.md": 100,
    "docs/models.md": 120,
    "docs/observe.md": 200,
    "docs/other_systems.md": 180,
    "docs/parameter_servers.md": 90,
    "docs/pipelines.md": 400,
    "docs/plan.md": 120,
    "docs/programs.md": 110,
    "docs/see_it.md": 190,
    "docs/sharded.md": 380,
    "docs/strategies.md": 215,
    "docs/timeline.md": 130,
    "docs/training_loops.md": 120,
    "ARCHITECTURE.md": 535,
    "tests/test_tour.py": 500,
}


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def block(language: str) -> str:
    """The first block of the README's in ``language``."""
    found = re.search(rf"^```{language}\n(.*?)^```", text_of("README.md"), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def numbers(text: str) -> list[float]:
    return [float(word) for word in re.findall(r"\d+(?:\.\d+)?", text)]


def test_the_script_prints_what_the_readme_says(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", block("python")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    said = block("text").splitlines()
    printed = done.stdout.splitlines()
    for expected, line in zip(said, printed, strict=True):
        step, loss = numbers(expected)
        assert re.sub(r"[\d.]+", "", line) == re.sub(r"[\d.]+", "", expected)
        assert numbers(line)[0] == step
        assert numbers(line)[1] == pytest.approx(loss, rel=0.05, abs=1e-4)  # another BLAS rounds otherwise


def test_the_variables_of_the_script_are_restored_as_the_readme_says(tmp_path: Path) -> None:
    first, restoring = re.findall(r"^```python\n(.*?)^```", text_of("README.md"), re.MULTILINE | re.DOTALL)
    building, opened, _ = first.partition("with tf.Session(")
    (tmp_path / "train.py").write_text(first)
    (tmp_path / "restore.py").write_text(building + restoring)
    printed = [
        subprocess.run(
            [sys.executable, "-W", "error", script],
            cwd=tmp_path, capture_output=True, text=True, timeout=200,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
        ).stdout.splitlines()[-1]
        for script in ("train.py", "restore.py")
    ]  # fmt: skip
    assert opened
    assert numbers(printed[1])[0] < numbers(printed[0])[1] + 1e-3


def test_an_error_reads_as_the_readme_shows_it() -> None:
    flowrt = importlib.import_module("flowrt")
    with flowrt.Graph():
        a, b = (flowrt.placeholder(flowrt.float32, shape) for shape in ([32, 64], [32, 10]))
        with pytest.raises(flowrt.errors.InvalidArgumentError) as caught:
            flowrt.matmul(a, b)
    message = re.sub(r"\(\S+:\d+\)", "(train.py:12)", str(caught.value))
    assert message in " ".join(text_of("README.md").split())


def scripts_of(page: str) -> list[tuple[str, str]]:
    """Each python block of ``page`` with the text block behind it; one without imports goes on from those
    before it.
    """
    found = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL
    )
    assert len(found) == text_of(page).count("```python")
    whole: list[tuple[str, str]] = []
    for script, said in found:
        before = ("", "") if re.search("^(import|from) ", script, re.MULTILINE) else whole[-1]
        whole.append((before[0] + script, before[1] + said))
    return whole


PAGES_WITH_SCRIPTS = [page for page in PAGES if page.startswith("docs/")]


@pytest.mark.parametrize(
    ("script", "said"), [pair for page in PAGES_WITH_SCRIPTS for pair in scripts_of(page)]
)
def test_a_script_of_a_page_prints_what_is_said(
    script: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flowrt = importlib.import_module("flowrt")
    products = importlib.import_module("flowrt.device.matmul_precision").FLOAT32_PRODUCTS
    monkeypatch.setattr(products, "choose", lambda precision: None)
    monkeypatch.chdir(tmp_path)
    with flowrt.Graph():
        path = tmp_path / "script.py"
        path.write_text(script)
        runpy.run_path(str(path))
    assert capsys.readouterr().out == said


def paths_in(page: str) -> set[str]:
    """What looks like a file of the project: ``flowrt/a/b.py``, ``tests/test_x.py``, ``passes/x.py``."""
    return set(re.findall(r"(?<![\w/.*])(?:[\w.]+/)+[\w]+\.(?:py|md|proto|toml|txt)\b", text_of(page)))


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    own = (ROOT / page).parent
    folders = [
        ROOT,
        ROOT / "flowrt",
        ROOT / "flowrt" / "graph",
        own,
    ]  # the tables leave the outer folders out
    missing = [path for path in paths_in(page) if not any((folder / path).exists() for folder in folders)]
    assert not missing


def test_a_file_that_the_architecture_names_without_a_folder_is_the_only_one_of_its_name() -> None:
    names = re.findall(r"(?<![\w/])\w+\.py\b", text_of("ARCHITECTURE.md"))
    found = Counter(path.name for folder in ("flowrt", "tests") for path in (ROOT / folder).rglob("*.py"))
    at_top = {path.name for path in (ROOT / "flowrt").glob("*.py")}
    assert not [name for name in names if found[name] != 1 and name not in at_top]


def test_the_architecture_lists_every_package() -> None:
    table = text_of("ARCHITECTURE.md").partition("## Packages")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in (ROOT / "flowrt").rglob("__init__.py")} - {"flowrt"}
    assert not packages - set(re.findall(r"\w+", table))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text) if page.endswith(".md") else []
    assert not [link for link in links if not ((ROOT / page).parent / link).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_dotted_name_of_flowrt_exists(page: str) -> None:
    names = set(re.findall(r"\bflowrt((?:\.\w+)+)(?!\w*/)", text_of(page)))
    assert not [name for name in names if not exists(f"flowrt{name}")]


def exists(dotted: str) -> bool:
    """Whether ``dotted`` is a module, or an attribute of one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
            reduce(getattr, parts[count:], found)
        except (ImportError, AttributeError):
            continue
        return True
    return False


def test_every_name_in_code_style_stands_in_the_source() -> None:
    source = "\n".join(
        path.read_text()
        for folder in ("flowrt", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "test_readme.py"
    ) + text_of("Makefile")
    in_source = set(re.findall(r"\w+", source))
    for page in ("README.md", "ARCHITECTURE.md"):
        spans = re.findall(
            r"`([A-Za-z_][\w.]*)`", re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
        )
        words = {span.rpartition(".")[2] for span in spans} - NOT_OURS - {"py", "md", "proto"}
        assert not [word for word in words - in_source if not (ROOT / word).exists()], page


def test_the_readme_names_what_the_environment_says_to_one_process() -> None:
    sources = [ROOT / "flowrt" / "logging.py"]
    for folder in ("device", "executor"):
        sources += (ROOT / "flowrt" / folder).rglob("*.py")
    variables = {name for path in sources for name in re.findall(r"FLOWRT_[A-Z_]+", path.read_text())}
    assert variables >= {"FLOWRT_JIT", "FLOWRT_LOG"}
    assert not [name for name in sorted(variables) if name not in text_of("README.md")]


NOT_OURS = {"ClusterSpec", "Server", "contrib"}
"""What the README says is to come, and what is not there."""


def test_what_the_readme_says_is_not_there_is_not_there() -> None:
    flowrt = importlib.import_module("flowrt")
    for name in ("images", "qint8"):
        assert not hasattr(flowrt, name), f"README.md: {name} works by now"


def test_the_numbers_of_ops_are_right() -> None:
    op_def = importlib.import_module("flowrt.graph.op_def")
    importlib.import_module("flowrt").Session().close()  # it loads the operations that passes make
    ops = op_def.registered_ops().values()  # what flowrt selftest counts, too
    found = re.search(r"\| Ops \| (\d+), (\d+) of them differentiable", text_of("README.md"))
    assert found
    with_derivative = [op for op in ops if op.vjp is not op_def.NONDIFFERENTIABLE]
    assert (int(found[1]), int(found[2])) == (len(ops), len(with_derivative))


RUNTIME = ("device", "graph", "rendezvous", "executor")
CORE = ("graph/*.py", "graph/passes/prepare/*.py", "graph/passes/placement/*.py", "rendezvous/matching/*.py",
        "executor/program/*.py")  # fmt: skip


def lines_of(*patterns: str) -> int:
    """The lines of what ``patterns`` name below flowrt, without generated messages."""
    paths = {path for pattern in patterns for path in (ROOT / "flowrt").glob(pattern)}
    return sum(len(p.read_text().splitlines()) for p in paths if not p.stem.endswith("_pb2"))


def test_the_quick_facts_are_right() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", text_of("README.md").partition("## ")[0], re.MULTILINE)
    facts = dict(rows)
    assert facts["Version"].startswith(project["version"])
    assert f"version: {project['version']}\n" in text_of("CITATION.cff")
    assert project["requires-python"] == f">={facts['Python'].split()[0]}"
    assert facts["Licence"] == project["license"]
    needed = [re.match(r"[\w-]+", each) for each in project["dependencies"]]
    assert sorted(facts["Dependencies"].lower().split(", ")) == sorted(found[0] for found in needed if found)
    assert counts(facts["API"])[-1] == len(text_of("tests/tf1_names.txt").splitlines())
    ops = lines_of("graph/ops/**/*.py")
    sizes = lines_of("**/*.py"), lines_of(*(f"{each}/**/*.py" for each in RUNTIME)) - ops, ops
    assert counts(facts["Size"]) == [pytest.approx(size, rel=0.03) for size in sizes]
    assert counts(facts["Core"]) == [pytest.approx(lines_of(*CORE), rel=0.03)]
    assert all(f"`{pattern.removesuffix('/*.py')}`" in facts["Core"] for pattern in CORE[1:])


def counts(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})+", text)]


@pytest.mark.parametrize("page", MAX_LINES)
def test_pages_stay_short(page: str) -> None:
    assert len(text_of(page).splitlines()) <= MAX_LINES[page]


def test_the_readme_lists_the_benchmarks_that_there_are() -> None:
    cases = importlib.import_module("benchmarks.cases").CASES
    table = text_of("README.md").partition("## Performance")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(cases)
