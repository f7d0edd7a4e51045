"""``flowrt plan``, on scripts of users and clusters that are only described."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowrt.cli.main import main

SCRIPT = """
import sys
import numpy as np
import flowrt as tf

x, y = tf.placeholder(tf.float32, [32, 64]), tf.placeholder(tf.int64, [32])
h = x
for layer in range(4):
    h = tf.layers.dense(h, 256, tf.nn.relu, name=f"layer{layer}")
logits = tf.layers.dense(h, 10, name="logits")
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
train = tf.train.AdamOptimizer(1e-3).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        session.run(train, {x: np.ones((32, 64)), y: np.zeros(32)})
        print("trained")
"""

CLUSTER = """
[device.small]
flops.float32 = 1e12
memory = "{memory}"
bandwidth = "100GB/s"
efficiency = 0.5
[host]
devices = "4 x small"
link = {{ latency = "5us", bandwidth = "10GB/s" }}
[rack]
hosts = 2
uplink = {{ latency = "20us", bandwidth = "1GB/s" }}
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def cluster(tmp_path: Path, text: str = CLUSTER, memory: str = "1GiB") -> str:
    path = tmp_path / "cluster.toml"
    path.write_text(text.format(memory=memory))
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_a_plan_says_what_and_why_and_is_not_run(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = planned(capsys, script, "--cluster", cluster(tmp_path), "--top", "3")
    rows = {line.split()[0]: line for line in text.splitlines() if not line.startswith(" ")}
    assert rows.keys() >= {"mesh", "step", "rate", "memory", "why"}
    sizes = dict(word.rstrip(",").split("=") for word in rows["mesh"].split() if "=" in word)
    assert int(sizes["dp"]) * int(sizes["tp"]) * int(sizes["pp"]) == 8
    assert "of 1 GiB" in rows["memory"]
    assert re.match(
        r"fewer +(1 device|[24] devices) of the 8: .* by estimates, \d.\d times as", rows["fewer"]
    )
    assert "trained" not in text


def test_what_is_given_stays(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(
        capsys, script, "--cluster", cluster(tmp_path), "--fix", "pp=2", "--fix", "tp=1", "--top", "1"
    )
    assert "dp=4  tp=1  pp=2" in text


def test_so_many_devices_as_are_given_share_layers_or_else_compute_them_all(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [script, "--fix", "tp=2", "--fix", "pp=1", "--top", "1", "--cluster"]
    assert "kernel [" in planned(capsys, *words, cluster(tmp_path))
    dear = CLUSTER.replace("5us", "5ms")
    text = planned(capsys, *words, cluster(tmp_path, dear))
    assert "dp=4  tp=2  pp=1" in text
    assert "kernel [" not in text


def test_layers_are_shared_without_being_asked(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [script, "--memory", "--cluster", cluster(tmp_path, CLUSTER.replace("5us", "0.1us"))]
    text = planned(capsys, *words)
    assert {"tp=2", "tp=4"} <= set(text.split())
    assert "tp=" not in planned(capsys, *words, "--fix", "tp=1")


def test_less_memory_leads_to_more_sharding(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [script, "--fix", "pp=1", "--top", "4", "--cluster"]
    roomy = planned(capsys, *words, cluster(tmp_path))
    small = planned(capsys, *words, cluster(tmp_path, memory="1800KiB"))
    assert stage_of(roomy) < stage_of(small)
    assert "needs" not in roomy
    assert "needs" in small


def stage_of(plan: str) -> int:
    found = re.search(r"stage (\d) of sharding", plan.splitlines()[0])
    return int(found[1]) if found else 0


def test_a_plan_that_is_written_is_that_of_a_strategy(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    planned(capsys, script, "--processes", "2", "--top", "2", "--json", str(path))
    assert json.loads(path.read_text())["script"] == script
    opened = f"scope = tf.distribute.AutoStrategy({str(path)!r}).scope()\nscope.__enter__()\nh = x\n"
    two = "with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as"
    closed = f"scope.__exit__(None, None, None)\n{two}"
    scoped = SCRIPT.replace("h = x\n", opened).replace("with tf.Session() as", closed)
    changed = tmp_path / "scoped.py"
    changed.write_text(scoped)
    words = [sys.executable, str(changed)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("trained") == 3, done.stderr


def test_a_plan_is_played_without_a_search(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [script, "--cluster", cluster(tmp_path), "--simulate", "--fix", "pp=2",
             "--fix", "micro_batches=4", "--fix", "schedule=gpipe"]  # fmt: skip
    text = planned(capsys, *words, "--json", "plan.json")
    assert "dp=4  tp=1  pp=2, schedule gpipe" in text
    assert "the choice that was given, without a search" in text
    events = json.loads(Path("train.trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X"} >= {"forward", "backward", "message", "bubble"}
    again = planned(capsys, script, "--simulate", "--plan", "plan.json")  # on the plan's own cluster
    assert again == text


def test_a_plan_of_another_script(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    planned(capsys, script, "--processes", "2", "--top", "1", "--json", str(path))
    Path(script).write_text(SCRIPT.replace("layer{layer}", "l{layer}"))
    assert main(["plan", script, "--simulate", "--plan", str(path)]) == 2
    assert "expected the variable 'layer0/kernel'" in capsys.readouterr().err


def test_a_report_of_a_plan(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    text = planned(capsys, script, "--cluster", cluster(tmp_path), "--top", "2", "--log-dir", str(run))
    assert f"flowrt report {run}" in text
    assert {path.name for path in run.iterdir()} == {"plan.json", "plan.record.json", "plan.trace.json"}
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "Amdahl" in page
    assert "Plan</h2>" in page


def test_the_file_of_a_plan_says_what_was_predicted(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    planned(capsys, script, "--cluster", cluster(tmp_path), "--top", "1", "--json", str(path))
    content = json.loads(path.read_text())
    assert sum(content["predicted"]["parts"].values()) == pytest.approx(content["predicted"]["seconds"])
    assert content["predicted"]["bytes"]
    assert "[device.small]" in content["cluster"]
    assert content["versions"].keys() == {"flowrt"}


def test_scaling(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(capsys, script, "--cluster", cluster(tmp_path), "--sweep", "devices=1..8")
    assert [line.split()[0] for line in text.splitlines()[1:5]] == ["1", "2", "4", "8"]
    assert "Amdahl:" in text
    assert "Gustafson" in text


def test_no_fewer_devices_where_all_are_the_fastest(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = CLUSTER.replace("GB/s", "TB/s").replace('us"', 'ns"').replace("= 1e12", "= 1e9")
    assert "fewer" not in planned(capsys, script, "--cluster", cluster(tmp_path, fast), "--top", "1")


def test_failures_and_stragglers(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--top", "1", "--fix", "dp=8", "--device-hours", "800", "--late-ms", "1"]
    lines = planned(capsys, script, "--cluster", cluster(tmp_path), *words).splitlines()
    # 8 devices: every 100 h; sqrt(2 * 60 s * 100 h) = 110 min, less about the checkpoint itself
    assert "so one of 8 every 100 h: with a checkpoint of 60 s every 109 min" in lines[-2]
    assert "late by 1 ms on average: a step of 8" in lines[-1]


def test_scaling_of_a_model_that_fits_on_several_devices_only(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [script, "--cluster", cluster(tmp_path, memory="1500KiB"), "--sweep", "devices=1..8"]
    rows = planned(capsys, *words, "--fix", "pp=1").splitlines()
    assert [line.split()[0] for line in rows[1:3]] == ["4", "8"]
    assert [line[: line.index(":")] for line in rows[3:5]] == ["none for 1", "none for 2"]
    assert "expected a choice that needs at most 1,536,000 bytes" in rows[3]


DATASET = """
dataset = tf.data.Dataset.from_tensor_slices((np.ones((64, 64), np.float32), np.zeros(64, np.int64)))
x, y = dataset.repeat().batch(32{how}).make_one_shot_iterator().get_next()
"""


def script_with_dataset(tmp_path: Path, how: str) -> str:
    path = tmp_path / "dataset.py"
    fed = "x, y = tf.placeholder(tf.float32, [32, 64]), tf.placeholder(tf.int64, [32])\n"
    text = SCRIPT.replace(fed, DATASET.format(how=how))
    path.write_text(text.replace("{x: np.ones((32, 64)), y: np.zeros(32)}", "{}"))
    return str(path)


def test_the_batch_of_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_with_dataset(tmp_path, ", drop_remainder=True")
    assert "dp=4  tp=1  pp=2" in planned(
        capsys, script, "--cluster", cluster(tmp_path), "--fix", "dp=4", "--fix", "pp=2", "--top", "1"
    )
    assert main(["plan", script_with_dataset(tmp_path, "")]) == 2
    assert "expected batches of a known size" in capsys.readouterr().err


def test_a_batch_that_is_a_constant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "constant.py"
    fed = "x, y = tf.placeholder(tf.float32, [32, 64]), tf.placeholder(tf.int64, [32])\n"
    constant = "x, y = tf.constant(np.ones((32, 64), np.float32)), tf.constant(np.zeros(32, np.int64))\n"
    text = SCRIPT.replace(fed, constant)
    path.write_text(text.replace("{x: np.ones((32, 64)), y: np.zeros(32)}", "{}"))
    lines = planned(capsys, str(path), "--processes", "1").splitlines()
    seconds = {"ms": 1e-3, "us": 1e-6}[lines[1].split()[2].rstrip(":")] * float(lines[1].split()[1])
    assert float(lines[2].split()[1]) == pytest.approx(32 / seconds, rel=0.01)
    assert main(["plan", str(path), "--processes", "2"]) == 2
    assert "got a constant of 32 samples, which no strategy divides" in capsys.readouterr().err


def test_memory_of_all_choices(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(capsys, script, "--cluster", cluster(tmp_path), "--memory")
    assert "dp=8 sharding=3" in text
    assert "pp=8 micro_batches=32 schedule=1f1b" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fix", "pq=2"), "--fix: expected one of dp, tp, pp, micro_batches; got 'pq=2'"),
        (("--fix", "dp=0"), "--fix: expected dp=N with N of at least 1; got 'dp=0'"),
        (("--sweep", "devices=8..1"), "--sweep: expected devices=A..B with A from 1 to B"),
        (("--fix", "dp=3"), "expected dp x tp x pp = 8, all of the cluster, and a batch of 32 that"),
        (("--sweep", "devices=1..9999999"), "--sweep: expected at most 1,000,000 devices; got 9,999,999"),
        (("--memory", "--json", "plan.json"), "--json: expected a plan; --sweep and --memory choose none"),
        (("--memory", "--late-ms", "1"), "--late-ms: expected a plan; --sweep and --memory choose none"),
        (("--memory", "--sweep", "devices=1..4"), "--memory: expected it without --sweep"),
        (("--fix", "dp=2", "--fix", "dp=4"), "--fix: expected dp once; got dp=2 and dp=4"),
        (("--fix", "tp=3"), "tp=3: expected a divisor of the 4 devices of a host"),
        (("--fix", "sharding=2"), "got 'sharding=2'. Add --simulate, which searches nothing."),
        (("--simulate", "--fix", "sharding=4"), "--fix sharding: expected 0, 1, 2 or 3; got 4"),
        (("--simulate", "--fix", "dp=4"), "simulate: expected dp x tp x pp = 8, all of the cluster"),
        (("--simulate", "--sweep", "devices=1..4"), "--simulate: expected a plan; --sweep"),
        (("--plan", "plan.json"), "--plan: expected it with --simulate"),
    ],
)
def test_bad_words_end_with_2(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["plan", script, "--cluster", cluster(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text"), [("--device-hours", "-1"), ("--checkpoint-s", "soon"), ("--late-ms", "nan")]
)
def test_a_bad_number_is_refused_before_the_search(
    capsys: pytest.CaptureFixture[str], option: str, text: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "train.py", option, text])
    assert f"argument {option}: expected a number > 0; got {text}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"5us"', '"5ux"'), "cluster.toml:9: .*5ux"),
        (("bandwidth = \"100GB/s\"", "bandwith = \"100GB/s\""), "cluster.toml:5: .*bandwith.*bandwidth"),
    ],
)  # fmt: skip
def test_a_cluster_file_with_a_mistake(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    path = cluster(tmp_path, CLUSTER.replace(*change))
    assert main(["plan", script, "--cluster", path]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_model_that_fits_nowhere(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", script, "--cluster", cluster(tmp_path, memory="10KiB")]) == 2
    assert "at most 10,240 bytes of a device; the smallest needs" in capsys.readouterr().err


def test_a_model_that_fits_by_estimates_only(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small gathers are joined, which the estimate does not know."""
    words = ["plan", script, "--fix", "pp=1", "--cluster"]
    assert main([*words, cluster(tmp_path, memory="10KiB")]) == 2
    estimated = smallest(capsys.readouterr().err)
    assert main([*words, cluster(tmp_path, memory=f"{-(-estimated // 1024)}KiB")]) == 2
    assert smallest(capsys.readouterr().err) > estimated


def smallest(error: str) -> int:
    found = re.search(r"the smallest needs ([\d,]+): dp=8 sharding=3. Devices of .* would do", error)
    assert found is not None, error
    return int(found[1].replace(",", ""))


def test_a_script_with_a_graph_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.py"
    own = "import flowrt as tf\nscope = tf.Graph().as_default()\nscope.__enter__()\n"
    path.write_text(SCRIPT.replace("import flowrt as tf\n", own))
    assert main(["plan", str(path)]) == 2
    assert "expected a model in the default graph" in capsys.readouterr().err


def test_rates_are_those_of_the_dtype_of_products(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = 'policy=tf.distribute.Precision("bfloat16")'
    opened = f"scope = tf.distribute.AutoStrategy(2, {policy}).scope()\nscope.__enter__()\nh = x\n"
    Path(script).write_text(SCRIPT.replace("h = x\n", opened))
    slow = "flops = {{ float32 = 1e12, bfloat16 = 1e10 }}"
    path = cluster(tmp_path, CLUSTER.replace("flops.float32 = 1e12", slow))
    words = ["--fix", "dp=8", "--top", "1", "--cluster"]
    assert re.search(r"compute [\d.]+ ms", planned(capsys, script, *words, path))
    path = cluster(tmp_path, CLUSTER.replace("flops.float32 = 1e12", slow.replace("1e10", "1e12")))
    assert re.search(r"compute [\d.]+ us", planned(capsys, script, *words, path))


def test_products_of_a_dtype_without_flops(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cluster(tmp_path, CLUSTER.replace("flops.float32", "flops.bfloat16"))
    assert main(["plan", script, "--cluster", path]) == 2
    assert (
        "device small: expected a dtype with known flops (bfloat16); got 'float32'" in capsys.readouterr().err
    )


def test_links_are_measured_and_kept(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FLOWRT_LINKS", raising=False)
    words = [script, "--simulate", "--fix", "dp=2", "--log-dir", str(tmp_path / "run")]

    def cluster_of_plan() -> list[str]:
        planned(capsys, *words)
        found: list[str] = json.loads((tmp_path / "run" / "plan.json").read_text())["cluster"]
        return found

    default = cluster_of_plan()
    words.append("--probe")
    probed = cluster_of_plan()
    assert probed != default
    words.pop()
    assert cluster_of_plan() == probed
    monkeypatch.setenv("FLOWRT_LINKS", "between=1e-3,1e-9")
    assert "latency = '1ms'" in " ".join(cluster_of_plan()).replace('"', "'")


@pytest.mark.parametrize("words", [["--processes", "2"], ["--measure"], ["--probe"]])
def test_what_is_of_this_host_is_not_of_a_cluster(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["plan", script, "--cluster", cluster(tmp_path), *words]) == 2
    assert f"{words[0]}: expected it without --cluster" in capsys.readouterr().err


def test_a_script_that_does_not_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sum.py"
    path.write_text("import flowrt as tf\nwith tf.Session() as s: s.run(tf.constant(1) + 1)\n")
    assert main(["plan", str(path)]) == 2
    assert "expected a session that runs a training step" in capsys.readouterr().err


def test_processes_of_this_host_share_its_cores(
    capsys: pytest.CaptureFixture[str], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    for cores in (1, 2, 4):
        monkeypatch.setattr("flowrt.cli.plan.usable_cpus", lambda cores=cores: cores)
        text = planned(capsys, script, "--processes", "2", "--fix", "dp=2", "--top", "1")
        computing = re.search(r"compute ([\d.]+) (us|ms)", text)
        assert computing is not None
        rates.append(float(computing[1]) * {"us": 1, "ms": 1000}[computing[2]])
    assert rates[0] == pytest.approx(2 * rates[1], rel=0.05)
    assert rates[1] == rates[2]


@pytest.mark.slow
def test_this_host_can_be_measured(
    capsys: pytest.CaptureFixture[str], script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLOWRT_CACHE_DIR", str(tmp_path))
    assert "dp=2  tp=1" in planned(capsys, script, "--measure", "--fix", "dp=2", "--top", "1")
    assert list((tmp_path / "costs").iterdir())
