"""The examples with text, as a user runs them: language models on one device and on many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.each import nightly
from tests.example_runs import difference_in, number_after, run_example, run_launched


@pytest.mark.slow
def test_lstm_text_learns_to_spell_and_pads_little(tmp_path: Path) -> None:
    printed = run_example("lstm_text.py", "--steps", "100", folder=tmp_path)
    bits = [float(b) for b in re.findall(r"([0-9.]+) bits per character", printed)]
    assert bits[-1] < 3.5  # who knows how frequent each character is needs 4.2
    assert bits == sorted(bits, reverse=True)
    padding = [float(p) for p in re.findall(r"([0-9.]+)% of [0-9,]+ numbers are padding", printed)]
    assert max(padding) < 25  # of batches of lines as they come it would be 41
    assert len(printed.partition("--- a sample\n")[2].splitlines()) == 10


@pytest.mark.slow
def test_char_lm_learns_to_spell(tmp_path: Path) -> None:
    printed = run_example("char_lm.py", folder=tmp_path)
    bits = [float(b) for b in re.findall(r"([0-9.]+) bits per character", printed)]
    assert bits[-1] < 2.0  # who knows how frequent each character is needs 4.2, and each pair 2.9
    assert bits[-1] < bits[0]
    sample = printed.partition("--- a sample\n")[2]
    assert len(sample) > 200


def test_gpt_sharded_trains_where_it_does_not_fit(tmp_path: Path) -> None:
    printed = run_example("gpt_sharded.py", folder=tmp_path)
    assert "one of 12 MiB: expected" in printed
    assert number_after("one large device:", printed) > 12
    for what in ("4 of 12 MiB, fully sharded", "one of 12 MiB, weights on the host"):
        (line,) = [line for line in printed.splitlines() if line.startswith(what)]
        assert number_after(f"{what}:", line) <= 12
        assert float(line.rpartition(" ")[2]) < 1e-4


@pytest.mark.parametrize("arguments", nightly([(), ("--dp", "3", "--tp", "1", "--turns", "2")], 1))
def test_gpt_layouts_has_the_losses_of_one_device(arguments: tuple[str, ...], tmp_path: Path) -> None:
    printed = run_example("gpt_layouts.py", *arguments, folder=tmp_path)
    assert number_after("step   0: loss", printed) > 3
    assert number_after("step  15: loss", printed) < 2.6
    assert difference_in(printed) < 1e-5


@pytest.mark.parametrize(
    "arguments",
    nightly([("--schedule", "zbv"), ("--dp", "2", "--tp", "2", "--remat", "--schedule", "gpipe")], 0),
)
def test_gpt_pipeline_has_the_losses_of_one_device(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """The suite has the run of two processes, below."""
    printed = run_example("gpt_pipeline.py", *arguments, "--steps", "11", folder=tmp_path)
    assert number_after("Send:", printed) > 0
    assert number_after("step  10: loss", printed) < 0.65 * number_after("step   0: loss", printed)
    assert difference_in(printed) < 1e-5


@pytest.mark.slow
def test_gpt_pipeline_runs_through_two_processes(tmp_path: Path) -> None:
    printed = run_launched("gpt_pipeline.py", "--steps", "3", "--micro-batches", "8", folder=tmp_path)
    assert number_after("Send:", printed) > 0
    assert difference_in(printed) < 1e-5


@pytest.mark.slow
def test_rlhf_raises_the_reward_of_what_is_generated(tmp_path: Path) -> None:
    printed = run_example("rlhf.py", "--rounds", "16", folder=tmp_path)
    assert number_after("round   0: reward", printed) < 0.3
    assert number_after("round  15: reward", printed) > 0.9


@pytest.mark.parametrize("devices", nightly(["3", "2"], 1))
def test_experts_have_the_losses_of_one_device(devices: str, tmp_path: Path) -> None:
    printed = run_example("experts.py", "--devices", devices, folder=tmp_path)
    assert number_after("AllToAll:", printed) == 3  # there and back, and back again for the gradient
    assert number_after("step  15: loss", printed) < 0.65 * number_after("step   0: loss", printed)
    assert difference_in(printed) < 1e-5
