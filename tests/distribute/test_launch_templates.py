"""examples/launch: what the templates set is what the resolvers ask for; Kubernetes' own schemas take the
job; the batch scripts run, with an ``srun`` that starts all tasks on this host, and so do the job's pods,
where a process may have an ``/etc/hosts`` of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from flowrt.cli import run, worker
from flowrt.cli.elastic import Range
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.resolvers import VARIABLES, resolve
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import SOON_S

LAUNCH = Path(__file__).resolve().parents[2] / "examples" / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sbatch"))
MANIFESTS = sorted(LAUNCH.glob("*.yaml"))


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
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=200)
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
    assert run.new_run_parser().parse_args(words).nnodes == Range(int(nodes), int(nodes))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_pods_of_the_job_find_each_other(path: Path) -> None:
    text = text_of(path)
    service, job = text.split("\n---\n")
    environ = dict(re.findall(r"- name: (FLOWRT_\w+)\s+value: \"?([^\"\n]+)\"?", job))
    (name,) = re.findall(r"^metadata:\n  name: (\w+)", job, re.MULTILINE)
    for index in range(int(field(job, "completions"))):
        pod = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"}  # as Kubernetes does
        found = resolve(environ | pod)
        assert (found.task, found.address) == (index, f"digits-{index}.flowrt:2222")
    assert len(found.spec) == int(field(job, "completions")) == int(field(job, "parallelism"))
    assert field(job, "completionMode") == "Indexed"
    assert field(job, "subdomain") == environ["FLOWRT_SUBDOMAIN"] == field(service, "name")
    assert field(service, "clusterIP") == "None"
    assert field(service, "job-name") == name


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_command_of_the_pods(path: Path) -> None:
    text = text_of(path)
    (listed,) = re.findall(r"command: \[(.*)\]", text)
    name, *words = [word.strip().strip('"') for word in listed.split(",")]
    assert name == run.COMMAND
    assert run.new_run_parser().parse_args(words).nnodes.most == int(field(text, "completions"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_takes_the_job(path: Path) -> None:
    """By the schemas of its API: no field is misspelt, and each has a value of its type."""
    documents = list(yaml.safe_load_all(path.read_text()))
    assert [document["kind"] for document in documents] == ["Service", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    documents[1]["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(documents[1], kubernetes_validate.latest_version(), strict=True)


SRUN = """#!/bin/bash
# Each task of two hosts, which are addresses of this one.
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NODELIST='127.0.0.[1-2]' SLURM_STEP_TASKS_PER_NODE="$EACH(x2)" SLURM_STEP_ID=$$
for ((rank = 0; rank < 2 * EACH; rank++)); do
    SLURM_PROCID=$rank SLURM_LOCALID=$((rank % EACH)) "$@" &
    started+=($!)
done
echo "${started[@]}" > tasks
for task in "${started[@]}"; do wait "$task" || status=$?; done
exit "${status:-0}"
"""

ON_THE_LAST = """
    with tf.device(f"/job:worker/task:{last}"):
        total = tf.reduce_sum(tf.random_uniform([10]) * 0.0 + 1.0)
    with tf.Session(target) as session:
        print("total", session.run(total), "on", last)
"""

AS_WORKER = (
    """
import os
import flowrt as tf
from flowrt.distribute.resolvers import resolve
cluster = resolve(os.environ)
server, last = tf.train.Server(cluster.spec, cluster.job, cluster.task), len(cluster.spec) - 1
target = server.target
if cluster.task == 0:
"""
    + ON_THE_LAST
    + """
else:
    server.join()
server.stop()
"""
)

AS_DRIVER = (
    """
import sys
import flowrt as tf
target, last = sys.argv[2], 3
if True:
"""
    + ON_THE_LAST
)


AS_ELASTIC = """
import flowrt as tf
def train(job):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    total = strategy.reduce("MEAN", strategy.run(lambda: tf.reduce_sum(tf.ones([10]))), axis=None)
    with tf.Session() as session:
        return session.run(total), job.size - 1
total, last = tf.train.run_elastic(train)
print("total", total, "on", last)
"""


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def inherited(home: Path) -> dict[str, str]:
    """What a program started here finds: this environment's commands, and no cluster."""
    found = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    return found | {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the command openssl")
@pytest.mark.parametrize(
    "name, each, program",
    [("slurm_run", 1, AS_WORKER), ("slurm_workers", 2, AS_DRIVER), ("slurm_elastic", 1, AS_ELASTIC)],
)
def test_a_batch_script_runs(tmp_path: Path, name: str, each: int, program: str) -> None:
    """As it is: the check, the workers with token and certificates, the program."""
    environ = slurm(tmp_path, name, each, program)
    done = subprocess.run(
        ["bash", str(LAUNCH / f"{name}.sbatch")],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=10 * SOON_S, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"total 10.0 on {last_task(name)}" in said
    assert "from Slurm" in said


def slurm(folder: Path, name: str, each: int, program: str) -> dict[str, str]:
    """The variables of batch script ``name`` on two hosts with ``each`` tasks, and in ``folder`` what it asks
    for: token, certificates, ``train.py``.
    """
    commands = folder / "bin"
    commands.mkdir()
    command(commands, "srun", SRUN)
    command(commands, "hostname", "#!/bin/bash\necho 127.0.0.1\n")
    (folder / "train.py").write_text(program)
    tasks = f"worker:0-{last_task(name)}=127.0.0.1,127.0.0.2"
    environ = inherited(folder) | {
        "EACH": str(each), "SLURM_JOB_ID": str(os.getpid()), "SLURM_CPUS_PER_TASK": "1",
    }  # fmt: skip
    environ["PATH"] = f"{commands}:{environ['PATH']}"
    for words in (["token", "new"], ["certs", "init", "--dir", str(folder / ".flowrt"), "--task", tasks]):
        subprocess.run(["flowrt", *words], env=environ, check=True, timeout=SOON_S, capture_output=True)
    return environ


def last_task(name: str) -> str:
    """The last task for which batch script ``name`` asks for a certificate."""
    (number,) = re.findall(r"--task worker:0-(\d)=", (LAUNCH / f"{name}.sbatch").read_text())
    return str(number)


AS_REQUEUED = """
import os, pathlib
import flowrt as tf
requeued = "SLURM_RESTART_COUNT" in os.environ
def train(job):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
        sum = tf.get_variable("sum", [], tf.float64, tf.zeros_initializer())
    optimizer = tf.train.GradientDescentOptimizer(-1.0)
    def one_step():
        return optimizer.minimize(sum / job.size, global_step=step)
    one = strategy.run(one_step)
    last = job.step + 5 if requeued else 1 << 30
    print("requeued" if requeued else "first", "at step", job.step, flush=True)
    with job.session([tf.train.StopAtStepHook(last_step=last)]) as session:
        while not session.should_stop():
            session.run(one)
            if job.rank == 0 and not requeued:
                pathlib.Path("begun").touch()
        return last, job.size
print("ended at step, with", *tf.train.run_elastic(train, "model"), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the command openssl")
def test_a_batch_job_that_is_preempted_goes_on_when_it_is_requeued(tmp_path: Path) -> None:
    """As Slurm preempts: the tasks of the step get SIGCONT and SIGTERM, their children nothing before the
    SIGKILL of what is left; the same script starts again, with ``SLURM_RESTART_COUNT``.
    """
    environ = slurm(tmp_path, "slurm_elastic", 1, AS_REQUEUED)
    words = ["bash", str(LAUNCH / "slurm_elastic.sbatch")]
    with (tmp_path / "first").open("w") as out:
        job = subprocess.Popen(words, env=environ, cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until((tmp_path / "begun").exists, "a step was made")
        for task in (tmp_path / "tasks").read_text().split():
            for number in (signal.SIGCONT, signal.SIGTERM):
                os.kill(int(task), number)
        job.wait(timeout=10 * SOON_S)
    finally:
        job.kill()
    said = (tmp_path / "first").read_text()
    assert "first at step 0" in said
    again = environ | {"SLURM_RESTART_COUNT": "1"}
    done = subprocess.run(
        words, env=again, cwd=tmp_path, capture_output=True, text=True, timeout=10 * SOON_S, check=False
    )
    said += done.stdout + done.stderr
    assert done.returncode == 0, said
    (begins,) = {int(step) for step in re.findall(r"requeued at step (\d+)", said)}
    assert begins > 0, said
    assert f"ended at step, with {begins + 5} 8" in said


MOUNT = 'mount --bind "$0" /etc/hosts && exec "$@"'


def may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    return (
        all(map(shutil.which, ("unshare", "mount"))) and not subprocess.run(command, check=False).returncode
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the command openssl")
@pytest.mark.parametrize(
    ("name", "program"), [("kubernetes_job", AS_WORKER), ("kubernetes_elastic", AS_ELASTIC)]
)
def test_the_pods_run(tmp_path: Path, name: str, program: str) -> None:
    """The template's command in its environment, on addresses of this host that have the pods' names."""
    if not may_mount():
        pytest.skip("needs the right to mount a file over /etc/hosts")
    _, job = yaml.safe_load_all((LAUNCH / f"{name}.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    secrets, *_ = container["volumeMounts"]
    names = [f"{job['metadata']['name']}-{i}.{pod['subdomain']}" for i in range(job["spec"]["completions"])]
    hosts = "".join(f"127.0.0.{2 + i} {name}\n" for i, name in enumerate(names))
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    (tmp_path / "train.py").write_text(program)
    secret = tmp_path / "secret"
    environ = inherited(tmp_path) | {
        each["name"]: each["value"].replace(secrets["mountPath"], str(secret)) for each in container["env"]
    }
    for words in (
        ["token", "new"],
        ["certs", "init", "--dir", str(secret), "--task", f"worker:0-3={','.join(names)}"],
    ):
        subprocess.run(["flowrt", *words], env=environ, check=True, timeout=SOON_S, capture_output=True)
    (tmp_path / ".flowrt" / "token").rename(secret / "token")
    for kind in ("pem", "key"):
        (secret / f"worker_0-3.{kind}").rename(secret / {"pem": "cert.pem", "key": "key.pem"}[kind])
    with ReservedPorts(1) as free:
        environ["FLOWRT_PORT"] = str(free.ports[0])
    pods = [
        subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", MOUNT, str(tmp_path / "hosts"), *container["command"]],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environ | {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": host.partition(".")[0]},
        )
        for index, host in enumerate(names)
    ]  # fmt: skip
    try:
        said = [pod.communicate(timeout=10 * SOON_S)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0] * len(names), said
    assert "total 10.0 on 3" in said[0]


def field(text: str, name: str) -> str:
    """The value of the first ``name: value``."""
    found = re.search(rf"^\s*{name}: (\S+)", text, re.MULTILINE)
    assert found, name
    return found[1]
