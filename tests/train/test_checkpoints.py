"""A training goes on only from its own checkpoint, and only from a whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.train import checkpoints


def saved(folder: Path, step: int, sealed: bool = True) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "optimizer.pt", "trainer_state.json"):
        (checkpoint / name).write_bytes(f"{name} {step}".encode() * 100)
    if sealed:
        checkpoints.seal(checkpoint)
    return checkpoint


def test_the_newest_whole_checkpoint_is_taken_by_number_not_by_name(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        saved(tmp_path, step)
    assert checkpoints.last_whole(tmp_path) == tmp_path / "checkpoint-100"


def truncate(checkpoint: Path) -> None:
    (checkpoint / "optimizer.pt").write_bytes(b"half")


def flip(checkpoint: Path) -> None:
    file = checkpoint / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)


def lose(checkpoint: Path) -> None:
    (checkpoint / "trainer_state.json").unlink()


def unseal(checkpoint: Path) -> None:
    (checkpoint / checkpoints.SEAL).unlink()


def break_seal(checkpoint: Path) -> None:
    (checkpoint / checkpoints.SEAL).write_text("{")


@pytest.mark.parametrize("damage", [truncate, flip, lose, unseal, break_seal])
def test_a_checkpoint_that_is_not_whole_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: Any
) -> None:
    saved(tmp_path, 20)
    damage(saved(tmp_path, 30))
    assert checkpoints.last_whole(tmp_path, remove_broken=False) == tmp_path / "checkpoint-20"
    assert (tmp_path / "checkpoint-30").exists(), "another process may be looking"
    assert checkpoints.last_whole(tmp_path) == tmp_path / "checkpoint-20"
    assert not (tmp_path / "checkpoint-30").exists()


def test_without_a_whole_checkpoint_training_starts_again(tmp_path: Path) -> None:
    saved(tmp_path, 30, sealed=False)
    assert checkpoints.last_whole(tmp_path) is None


CONFIG = {
    "learning_rate": 1e-3,
    "output_dir": "a",
    "dataset_dir": "b",
    "model_name_or_path": "c",
    "save_steps": 5,
}
BASE = {"files": {"model.safetensors": {"sha256": "1", "bytes": 2}}}
LAUNCHER = {"kind": "local", "workers": 1, "nodes": 1, "timeout_h": 5.0}


def key(
    tmp_path: Path,
    config: dict[str, Any] = CONFIG,
    base: Any = BASE,
    launcher: Any = LAUNCHER,
    rows: str = "x",
) -> str:
    (tmp_path / "train.jsonl").write_text(rows)
    return checkpoints.key(checkpoints.made_of(config, tmp_path, base, launcher))


def test_only_what_shapes_the_result_names_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = key(tmp_path)
    moved = CONFIG | {
        "output_dir": "x",
        "dataset_dir": "y",
        "model_name_or_path": "z",
        "save_steps": 50,
    }
    assert key(tmp_path, moved, launcher=LAUNCHER | {"timeout_h": 9.0}) == first
    others = [
        key(tmp_path, CONFIG | {"learning_rate": 2e-3}),
        key(tmp_path, base={"files": {"model.safetensors": {"sha256": "2", "bytes": 2}}}),
        key(tmp_path, launcher=LAUNCHER | {"workers": 2}),
        key(tmp_path, rows="y"),
    ]
    monkeypatch.setattr(checkpoints.importlib.metadata, "version", lambda name: "another")
    others.append(key(tmp_path))
    assert len({first, *others}) == 6


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checkpoints, "main_root", lambda: tmp_path)
    return tmp_path / ".pawl/train"


def test_checkpoints_go_when_training_ended_and_stay_when_it_failed(root: Path) -> None:
    with pytest.raises(PawlError), checkpoints.work_folder("a") as folder:
        saved(folder, 1)
        raise PawlError("timed out")
    assert (root / "a/checkpoint-1").exists()
    with checkpoints.work_folder("a") as folder:
        assert checkpoints.last_whole(folder) == root / "a/checkpoint-1"
    assert not list(root.iterdir())


def test_two_of_the_same_training_do_not_write_into_one_folder(root: Path) -> None:
    with checkpoints.work_folder("a"):
        with pytest.raises(PawlError, match="already running"), checkpoints.work_folder("a"):
            pass


def leave(name: str, *, checkpoint: bool) -> None:
    with pytest.raises(RuntimeError), checkpoints.work_folder(name) as folder:
        if checkpoint:
            saved(folder, 1)
        raise RuntimeError


def test_abandoned_checkpoints_do_not_fill_the_disk(root: Path) -> None:
    for name in "abcde":
        leave(name, checkpoint=True)
    with checkpoints.work_folder("f"):
        assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["d", "e", "f"]


def test_tries_that_were_refused_do_not_cost_a_killed_training_its_checkpoints(root: Path) -> None:
    leave("a-long-training", checkpoint=True)
    for name in "bcde":
        leave(name, checkpoint=False)
    with checkpoints.work_folder("a-long-training") as folder:
        assert checkpoints.last_whole(folder)
        assert [path.name for path in root.iterdir() if path.is_dir()] == ["a-long-training"]


def test_a_seal_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 1)
    assert sorted(json.loads((checkpoint / checkpoints.SEAL).read_text())) == [
        "adapter_model.safetensors",
        "optimizer.pt",
        "trainer_state.json",
    ]
