"""examples/launch, as text: what the templates set is what the resolvers ask for."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flowrt.cli import run, worker
from flowrt.distribute.resolvers import resolve

LAUNCH = Path(__file__).resolve().parents[2] / "examples" / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sbatch"))


def text_of(path: Path) -> str:
    """Without comments; a command is one line."""
    lines = re.sub(r"\\\n\s*", "", path.read_text("utf-8")).splitlines()
    return "\n".join(re.sub(r"(^|\s+)#( .*|$)", "", line) for line in lines)


def commands(text: str, name: str) -> list[list[str]]:
    """The arguments of each call of ``name``."""
    found = [re.search(rf"\b{name}\b(.*)", line) for line in text.splitlines()]
    return [shlex.split(match[1], comments=True) for match in found if match]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_batch_script_is_one(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)
    assert path.read_text().startswith("#!/bin/bash\n")
    assert "set -euo pipefail" in path.read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_commands_of_a_batch_script_have_the_options_that_there_are(path: Path) -> None:
    text = text_of(path)
    runs, workers = commands(text, "flowrt-run"), commands(text, "flowrt-worker")
    assert runs or workers
    for words in runs:
        assert run.new_run_parser().parse_args(words).script == "train.py"
    for words in workers:
        worker.new_worker_parser().parse_args([word for word in words if word != "&"])


def test_the_batch_script_runs_on_as_many_hosts_as_it_asks_for() -> None:
    text = text_of(LAUNCH / "slurm_run.sbatch")
    (words,) = commands(text, "flowrt-run")
    (nodes,) = re.findall(r"^#SBATCH --nodes=(\d+)", (LAUNCH / "slurm_run.sbatch").read_text(), re.MULTILINE)
    assert run.new_run_parser().parse_args(words).nnodes == int(nodes)


def test_the_pods_of_the_job_find_each_other() -> None:
    text = text_of(LAUNCH / "kubernetes_job.yaml")
    service, job = text.split("\n---\n")
    environ = dict(re.findall(r"- name: (FLOWRT_\w+)\s+value: \"?([^\"\n]+)\"?", job))
    (name,) = re.findall(r"^metadata:\n  name: (\w+)", job, re.MULTILINE)
    for index in range(2):
        pod = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"}  # as Kubernetes does
        found = resolve(environ | pod)
        assert (found.task, found.address) == (index, f"digits-{index}.flowrt:2222")
    assert len(found.spec) == int(field(job, "completions")) == int(field(job, "parallelism"))
    assert field(job, "completionMode") == "Indexed"
    assert field(job, "subdomain") == environ["FLOWRT_SUBDOMAIN"] == field(service, "name")
    assert field(service, "clusterIP") == "None"
    assert field(service, "job-name") == name


def test_the_command_of_the_pods() -> None:
    (listed,) = re.findall(r"command: \[(.*)\]", text_of(LAUNCH / "kubernetes_job.yaml"))
    name, *words = [word.strip().strip('"') for word in listed.split(",")]
    assert name == run.COMMAND
    assert run.new_run_parser().parse_args(words).nnodes == 2


def test_yaml_has_no_tabs_and_even_indents() -> None:
    for line in (LAUNCH / "kubernetes_job.yaml").read_text().splitlines():
        assert "\t" not in line
        assert (len(line) - len(line.lstrip(" "))) % 2 == 0


def field(text: str, name: str) -> str:
    """The value of the first ``name: value``."""
    found = re.search(rf"^\s*{name}: (\S+)", text, re.MULTILINE)
    assert found, name
    return found[1]
