"""A merge in float32 is refused if memory or disk cannot hold it, and one merged model is kept
beside those that are served.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.common.errors import PawlError
from stages.evaluate.serve import adapter as adapters
from tests.common.test_gpus import published
from tests.evaluate.serve.test_engine import make_adapter, write_tensors


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is free, GiB; and where models are merged."""
    free = SimpleNamespace(memory=64.0, disk=500.0, cache=tmp_path / ".pawl/merged")
    monkeypatch.setattr(adapters, "machine_gib", lambda: free.memory)
    monkeypatch.setattr(
        adapters.shutil, "disk_usage", lambda place: SimpleNamespace(free=free.disk * 2**30)
    )
    monkeypatch.setattr(adapters, "main_root", lambda: tmp_path)
    return free


def merge(tmp_path: Path, name: str = "a") -> None:
    base, adapter = tmp_path / "base", tmp_path / name
    base.mkdir(exist_ok=True)
    write_tensors(
        make_adapter(adapter, r=len(name)) / "adapter_model.safetensors", f"{name}.lora_A.weight"
    )
    with adapters.merged(
        published("qwen2.5-7b", base), adapter, "sha", tmp_path / "log", lambda: None
    ):
        pass


@pytest.mark.parametrize(
    ("lack", "words"), [("memory", "29.9 GiB of memory"), ("disk", "28.4 GiB of disk")]
)
def test_what_a_merge_takes_is_looked_at_before(
    tmp_path: Path, machine: SimpleNamespace, monkeypatch, lack: str, words: str
) -> None:
    begun = list[list[str]]()
    monkeypatch.setattr(adapters.process, "run", lambda argv, **more: begun.append(argv) or 0)
    setattr(machine, lack, 20.0)
    with pytest.raises(PawlError, match=words) as refused:
        merge(tmp_path)
    assert "engine=vllm" in refused.value.fix and not begun
    setattr(machine, lack, 31.0)
    merge(tmp_path)
    assert len(begun) == 1


def test_one_merged_model_is_kept_and_those_that_are_served(
    tmp_path: Path, machine: SimpleNamespace, monkeypatch
) -> None:
    def write(argv: list[str], **more: object) -> int:
        (Path(argv[-1]) / "config.json").write_text("{}")
        assert (
            len(
                [
                    path
                    for path in machine.cache.iterdir()
                    if path.is_dir() and not path.name.startswith(".")
                ]
            )
            <= 1
        ), "room comes first"
        return 0

    monkeypatch.setattr(adapters.process, "run", write)

    def kept() -> list[Path]:
        return [path for path in machine.cache.iterdir() if path.is_dir()]

    merge(tmp_path, "a")
    (first,) = kept()
    os.utime(first, (1, 1))
    with open(machine.cache / f"{first.name}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # served
        merge(tmp_path, "bb")
        assert len(kept()) == 2 and first in kept()
    merge(tmp_path, "ccc")
    assert len(kept()) == 1 and first not in kept()
