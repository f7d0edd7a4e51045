"""The state file of a checkpoint directory, and what is found through it."""

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import DataLossError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from flowrt.train.checkpoints.checkpoint import remove_checkpoint, write_checkpoint
from flowrt.train.checkpoints.checkpoint_state import (
    CheckpointState,
    format_checkpoint_state,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
    parse_checkpoint_state,
    update_checkpoint_state,
)
from flowrt.train.checkpoints.open_checkpoint import read_checkpoint
from tests.train.checkpoint_cases import OTHER, SMALL, assert_equal


def test_the_file_has_tensorflows_form(tmp_path):
    update_checkpoint_state(tmp_path, tmp_path / "m-2", [tmp_path / "m-1", tmp_path / "m-2"])
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "m-2"\nall_model_checkpoint_paths: "m-1"\nall_model_checkpoint_paths: "m-2"\n'
    )
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_file_that_tensorflow_wrote_is_read():
    text = (
        b'model_checkpoint_path: "/data/\\303\\251\\n\\"x-1"\n'
        b'all_model_checkpoint_paths: "\xc3\xa9-0"\n'
        b"all_model_checkpoint_timestamps: 1717171717.25\n"
        b"last_preserved_timestamp: -1e-05\n\n"
    )
    assert parse_checkpoint_state(text, "checkpoint") == CheckpointState('/data/é\n"x-1', ("é-0",))


PATHS = (
    st.text(min_size=1)
    .filter(lambda t: "\0" not in t)
    .filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t))
)


@given(latest=PATHS, kept=st.lists(PATHS))
def test_any_path_is_parsed_as_it_was_formatted(latest, kept):
    state = CheckpointState(latest, tuple(kept))
    text = format_checkpoint_state(state)
    assert text.count(b"\n") == 1 + len(kept)
    assert parse_checkpoint_state(text, "checkpoint") == state


LINES = st.sampled_from(
    [b'model_checkpoint_path: "', b'all_model_checkpoint_paths: "', b'"\n', b"\\", b"a", b"\n"]
)


@given(text=st.lists(LINES | st.binary(max_size=3)).map(b"".join))
def test_any_other_text_is_data_loss(text):
    try:
        state = parse_checkpoint_state(text, "dir/checkpoint")
    except DataLossError as error:
        assert str(error).startswith("dir/checkpoint")  # noqa: PT017 - that it raises is not certain
    else:
        assert parse_checkpoint_state(format_checkpoint_state(state), "") == state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage !!",
        'model_checkpoint_path: "m',
        'model_checkpoint_path: ""',
        'model_checkpoint_path: "a\\000"',
        'model_checkpoint_path: "a"\nmodel_checkpoint_path: "b"',
        'all_model_checkpoint_paths: "m"',
        "model_checkpoint_path: m",
    ],
)
def test_a_damaged_file_is_data_loss_and_not_a_fresh_start(tmp_path, text):
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(DataLossError, match="checkpoint"):
        latest_checkpoint(tmp_path)


def test_a_directory_can_be_moved(tmp_path):
    old = tmp_path / "old"
    write_checkpoint(old / "m-1", SMALL)
    update_checkpoint_state(old, old / "m-1")
    assert latest_checkpoint(old) == str(old / "m-1")
    shutil.move(old, tmp_path / "new")
    assert latest_checkpoint(tmp_path / "new") == str(tmp_path / "new" / "m-1")
    assert latest_checkpoint(old) is None


def test_relative_paths_are_of_the_current_directory_and_others_are_kept_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("ckpt")
    update_checkpoint_state("ckpt", "ckpt/m-2", ["ckpt/..m", "elsewhere/m-1", "/abs/m"])
    assert get_checkpoint_state("ckpt") == CheckpointState(
        "ckpt/m-2", ("ckpt/..m", str(tmp_path / "elsewhere" / "m-1"), "/abs/m", "ckpt/m-2")
    )


def test_the_newest_is_appended_only_where_it_is_not_last(tmp_path):
    update_checkpoint_state(tmp_path, "/c/b", ["/c/a", "/c/b"])
    assert get_checkpoint_state(tmp_path).all_model_checkpoint_paths == ("/c/a", "/c/b")
    update_checkpoint_state(tmp_path, "/c/a", ["/c/a", "/c/b"])
    assert get_checkpoint_state(tmp_path).all_model_checkpoint_paths == ("/c/a", "/c/b", "/c/a")


def test_latest_filename_names_another_state_file(tmp_path):
    write_checkpoint(tmp_path / "m", SMALL)
    update_checkpoint_state(tmp_path, tmp_path / "m", latest_filename="best")
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path, "best") == str(tmp_path / "m")


def test_a_newest_checkpoint_without_its_index_is_a_warning_that_names_the_last_one_there(tmp_path, caplog):
    for name in ("m-1", "m-2"):
        write_checkpoint(tmp_path / name, SMALL)
    update_checkpoint_state(tmp_path, tmp_path / "m-2", [tmp_path / "m-1", tmp_path / "m-2"])
    assert latest_checkpoint(tmp_path) == str(tmp_path / "m-2")
    assert not caplog.messages
    os.remove(tmp_path / "m-2.index.json")
    assert latest_checkpoint(tmp_path) is None
    os.remove(tmp_path / "m-1.index.json")
    assert latest_checkpoint(tmp_path) is None
    gone = f"{tmp_path / 'm-2'}: the newest checkpoint counts as none, since its index is gone."
    older = f"To go on from an older one, restore {tmp_path / 'm-1'}"
    assert caplog.messages == [f"{gone} {older}", f"{gone} There is no older one"]


def test_without_a_state_file_or_a_checkpoint_there_is_no_latest(tmp_path):
    assert get_checkpoint_state(tmp_path) is None
    assert latest_checkpoint(tmp_path / "no" / "such") is None
    write_checkpoint(tmp_path / "m", SMALL)
    update_checkpoint_state(tmp_path, tmp_path / "m")
    remove_checkpoint(tmp_path / "m")
    assert latest_checkpoint(tmp_path) is None


def test_a_directory_stands_for_its_newest_checkpoint(tmp_path):
    for name, tensors in (("m-1", SMALL), ("m-2", OTHER)):
        write_checkpoint(tmp_path / name, tensors)
        update_checkpoint_state(tmp_path, tmp_path / name)
    assert list_variables(tmp_path) == [("c", [2]), ("s", [1, 2]), ("step", []), ("w", [2, 3])]
    assert load_variable(tmp_path, "step") == 8
    assert load_variable(tmp_path / "m-1", "step:0") == 7
    assert_equal(read_checkpoint(load_checkpoint(tmp_path).prefix), OTHER)


def test_a_directory_without_a_checkpoint_and_a_missing_prefix_are_told_apart(tmp_path):
    with pytest.raises(InvalidArgumentError, match="a directory with a checkpoint"):
        list_variables(tmp_path)
    with pytest.raises(NotFoundError, match=r"m\.index\.json"):
        load_variable(tmp_path / "m", "x")


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_update_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, broken):
    update_checkpoint_state(tmp_path, "/c/a")

    def disk_full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, disk_full)
        with pytest.raises(ResourceExhaustedError, match=str(tmp_path / "checkpoint")):
            update_checkpoint_state(tmp_path, "/c/b")
    assert os.listdir(tmp_path) == ["checkpoint"]
    assert get_checkpoint_state(tmp_path).model_checkpoint_path == "/c/a"


@pytest.mark.parametrize("bad", ["", "a\0b", None, 3])
def test_what_is_no_path_is_refused(tmp_path, bad):
    with pytest.raises(InvalidArgumentError, match="model_checkpoint_path"):
        update_checkpoint_state(tmp_path, bad)
    with pytest.raises(InvalidArgumentError, match="checkpoint_dir"):
        latest_checkpoint(bad)


def test_a_missing_directory_is_not_found(tmp_path):
    with pytest.raises(NotFoundError, match="writing"):
        update_checkpoint_state(tmp_path / "no", "m")
    assert not (tmp_path / "no").exists()
