"""Which GPUs there are, and how a model is laid over them, checked with a stand-in for nvidia-smi
and the published sizes of models.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common import doctor, gpus, placement
from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.placement import Split
from tests.gpu_machines import (
    BUSY4090,
    DIVIDED,
    H100,
    MACHINES,
    OLD_DRIVER,
    RTX4090,
    TURING,
    VOLTA,
    Gpu,
)


def test_each_card_is_read_with_what_decides_on_it(gpu_machine) -> None:
    gpu_machine(replace(H100, free=512))
    (card,) = gpus.cards()
    assert (
        card.name == "NVIDIA H100 80GB HBM3"
        and card.driver == "580.82.07"
        and card.capability == (9, 0)
    )
    assert card.total_gib == pytest.approx(79.6, abs=0.1) and card.free_gib == 0.5


def test_a_field_that_the_driver_does_not_know_is_no_crash(gpu_machine) -> None:
    gpu_machine(lines=["0, GPU-a, Tesla K80, 11441, 11000, 470.10, [N/A], [N/A]", "garbage"])
    (card,) = gpus.cards()
    assert card.capability == (0, 0) and not card.mig


@pytest.mark.parametrize("driver", ["[N/A]", "[Unknown Error]", ""])
def test_a_driver_that_does_not_tell_its_version_is_not_called_old(gpu_machine, driver) -> None:
    gpu_machine(replace(H100, driver=driver))
    (card,) = gpus.cards()
    assert card.obstacle() == ""


def test_bytes_that_are_no_text_are_no_crash(gpu_machine, tmp_path, monkeypatch) -> None:
    gpu_machine(H100)
    smi = Path(shutil.which("nvidia-smi") or "")
    smi.write_text(
        "#!/bin/sh\nprintf '0, GPU-a, \\377\\376, 81559, 81000, 580.82.07, 9.0, Disabled\\n'\n"
    )
    (card,) = gpus.cards()
    assert card.uuid == "GPU-a"


@pytest.mark.parametrize(
    ("lines", "code"), [([], 0), (["NVIDIA-SMI has failed"], 9), (["No devices were found"], 0)]
)
def test_a_driver_that_does_not_answer_is_a_machine_without_a_gpu(
    gpu_machine, lines: list[str], code: int
) -> None:
    gpu_machine(lines=lines, code=code)
    assert gpus.cards() == [] == gpus.visible()


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("3,1", [3, 1]),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("GPU-00000002-aaaa,GPU-00000004", [2, 4]),
        (" 5 , 6", [5, 6]),
        ("nonsense", []),
        ("0,1,0", []),
        ("GPU-0000000", []),
        ("²", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_use(
    gpu_machine, monkeypatch, chosen: str | None, shown: list[int]
) -> None:
    gpu_machine(*[H100] * 8)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert [card.index for card in gpus.visible()] == shown


def test_an_instance_of_a_divided_gpu_counts_as_one(gpu_machine, monkeypatch) -> None:
    gpu_machine(DIVIDED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c1f-77")
    assert len(gpus.visible()) == 1


@pytest.mark.parametrize(
    ("gpu", "obstacle", "remark"),
    [
        (H100, "", ""),
        (OLD_DRIVER, "driver 550.90.07 is too old: CUDA 13 needs 580.65 or later", ""),
        (VOLTA, "compute capability 7.0 is too old: 7.5 is the least", "no bfloat16"),
        (TURING, "", "no bfloat16"),
        (DIVIDED, "", "MIG"),
    ],
)
def test_a_gpu_on_which_nothing_here_can_compute_is_named_before_anything_starts(
    gpu_machine, gpu: Gpu, obstacle: str, remark: str
) -> None:
    gpu_machine(gpu)
    (card,) = gpus.cards()
    assert card.obstacle() == obstacle
    assert remark in card.remark() and bool(remark) == bool(card.remark())


@pytest.mark.parametrize("name", MACHINES)
def test_the_doctor_says_of_each_machine_what_it_can_run(gpu_machine, name: str) -> None:
    gpu_machine(*MACHINES[name])
    works = name not in ("no driver", "old driver")
    assert ("gpu" in doctor.missing()) == (not works)


@pytest.mark.parametrize(
    ("free_gib", "wanted", "share"),
    [(23.5, 0.9, 0.9), (21.0, 0.9, 0.833), (10.0, 0.9, 0.375), (10.0, 0.3, 0.3)],
)
def test_vllm_takes_no_more_of_a_gpu_than_a_desktop_leaves(
    gpu_machine, free_gib: float, wanted: float, share: float
) -> None:
    gpu_machine(replace(RTX4090, total=24 * 1024, free=int(free_gib * 1024)))
    assert gpus.share(wanted, gpus.visible()) == share


def test_of_several_gpus_the_fullest_decides_and_a_hidden_one_does_not(
    gpu_machine, monkeypatch
) -> None:
    gpu_machine(replace(H100, free=40000), H100)
    assert gpus.share(0.9, gpus.visible()) < 0.48
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.share(0.9, gpus.visible()) == 0.9


def test_a_gpu_without_room_is_named_before_a_server_starts(gpu_machine) -> None:
    gpu_machine(RTX4090, BUSY4090)
    with pytest.raises(
        PawlError, match=r"other programs hold GPU 1: 0\.9 of its 24\.0 GiB are free"
    ) as error:
        gpus.share(0.9, gpus.visible())
    assert "CUDA_VISIBLE_DEVICES" in error.value.fix


@pytest.mark.parametrize("gpu", [DIVIDED, replace(H100, total=0, free=0)])
def test_memory_that_nobody_tells_takes_nothing_away(gpu_machine, gpu: Gpu) -> None:
    gpu_machine(replace(gpu, free=0))
    assert gpus.share(0.9, gpus.visible()) == 0.9


def test_a_path_without_windows_own_tools_still_finds_the_gpu(
    gpu_machine, monkeypatch, tmp_path
) -> None:
    gpu_machine(RTX4090)
    tool = shutil.which("nvidia-smi")
    monkeypatch.setattr(gpus, "_WSL", tool)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert [card.name for card in gpus.cards()] == [RTX4090.name]


def test_hardware_that_is_not_used_is_named(gpu_machine, tmp_path) -> None:
    gpu_machine()
    assert gpus.remarks(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for device, words in (("kfd", "AMD"), ("nvidia0", "nvidia-smi is missing")):
        (tmp_path / "dev" / device).touch()
        assert words in gpus.remarks(tmp_path)[-1]


def test_gpus_of_several_kinds_are_told_only_if_all_are_visible(
    gpu_machine, monkeypatch, tmp_path
) -> None:
    gpu_machine(H100, RTX4090)
    assert "several kinds" in gpus.remarks(tmp_path)[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpus.remarks(tmp_path) == []


def test_nothing_says_untried_once_the_check_has_passed_on_these_gpus(
    gpu_machine, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(gpus, "main_root", lambda: tmp_path)
    gpu_machine(H100, H100)
    assert gpus.untried() == gpus.UNTRIED
    gpus.prove()
    assert gpus.untried() == ""
    gpu_machine(H100)
    assert gpus.untried() == "", "one of two equal GPUs"
    gpu_machine(replace(H100, driver="590.1"))
    assert gpus.untried() == gpus.UNTRIED
    gpu_machine(RTX4090)
    assert gpus.untried() == gpus.UNTRIED
    (tmp_path / ".pawl/gpu-check.json").write_text("{")
    assert gpus.untried() == gpus.UNTRIED


# published config.json: attention heads, key-value heads, MLP width, hidden size, layers, weights
# in GiB as bfloat16
PUBLISHED = {
    "qwen2.5-0.5b": (14, 2, 4864, 896, 24, 0.92),
    "qwen2.5-1.5b": (12, 2, 8960, 1536, 28, 2.9),
    "qwen2.5-7b": (28, 4, 18944, 3584, 28, 14.2),
    "qwen2.5-32b": (40, 8, 27648, 5120, 64, 61.0),
    "qwen3-14b": (40, 8, 17408, 5120, 40, 27.5),
    "llama-3.2-3b": (24, 8, 8192, 3072, 28, 6.0),
    "llama-3.3-70b": (64, 8, 28672, 8192, 80, 131.4),
    "smollm2-360m": (15, 5, 2560, 960, 32, 0.67),
}


def published(name: str, folder: Path) -> Path:
    heads, key_heads, width, hidden, layers, gib = PUBLISHED[name]
    config = {
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": width,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as file:
        file.truncate(int(gib * 2**30))  # a hole: it takes no disk
    return folder


def laid(
    name: str, folder: Path, count: int, gib: float, wanted: str = "auto", dtype: str = "bfloat16"
) -> Split:
    return placement.choose(published(name, folder), dtype, [gib] * count, 0.9, 4096, wanted)


@pytest.mark.parametrize(
    ("name", "count", "gib", "split"),
    [
        ("qwen2.5-7b", 8, 80, Split(1, 8)),
        ("qwen2.5-7b", 1, 24, Split(1, 1)),
        ("qwen2.5-7b", 8, 12, Split(2, 4)),
        ("qwen2.5-1.5b", 7, 24, Split(1, 7)),
        ("qwen2.5-0.5b", 3, 24, Split(1, 3)),
        ("qwen2.5-32b", 2, 80, Split(1, 2)),
        ("qwen2.5-32b", 8, 24, Split(4, 2)),
        ("qwen3-14b", 2, 24, Split(2, 1)),
        ("llama-3.3-70b", 8, 80, Split(2, 4)),
        ("llama-3.3-70b", 8, 24, Split(8, 1)),
        ("smollm2-360m", 4, 24, Split(1, 4)),
        ("llama-3.2-3b", 6, 80, Split(1, 6)),
    ],
)
def test_a_model_is_split_over_as_few_gpus_as_it_fits_on_and_copied_over_the_rest(
    tmp_path: Path, name: str, count: int, gib: float, split: Split
) -> None:
    assert laid(name, tmp_path, count, gib) == split


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("count", range(1, 9))
def test_no_split_is_chosen_that_vllm_refuses(tmp_path: Path, name: str, count: int) -> None:
    heads, key_heads, width, *_ = PUBLISHED[name]
    tensor = laid(name, tmp_path, count, 2000 / count).tensor
    assert (
        heads % tensor == 0
        and width % tensor == 0
        and (key_heads % tensor == 0 or tensor % key_heads == 0)
    )


def test_a_model_that_fits_nowhere_is_refused_with_the_figures(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match=r"needs 132\.\d GiB to be served, and 2 GPU\(s\) offer 40"):
        laid("llama-3.3-70b", tmp_path, 2, 24)


def test_a_float32_copy_needs_twice_as_much(tmp_path: Path) -> None:
    assert laid("qwen2.5-7b", tmp_path, 2, 24, dtype="float32").tensor == 2


@pytest.mark.parametrize(
    ("wanted", "words"), [("3", "28 attention heads"), ("8", "only 4 GPU"), ("4", "")]
)
def test_a_split_that_was_asked_for_is_taken_or_refused(
    tmp_path: Path, wanted: str, words: str
) -> None:
    if not words:
        assert laid("qwen2.5-7b", tmp_path, 4, 80, wanted) == Split(4, 1)
        return
    with pytest.raises(PawlError, match=words):
        laid("qwen2.5-7b", tmp_path, 4, 80, wanted)


def test_over_several_machines_there_is_one_copy(tmp_path: Path) -> None:
    folder = published("llama-3.3-70b", tmp_path)
    assert placement.choose(folder, "bfloat16", [24.0] * 4, 0.9, 4096, "auto", nodes=2) == Split(
        4, 1
    )


def test_on_a_cpu_packages_for_gpus_look_absent(tmp_path: Path) -> None:
    for name in ("bitsandbytes", "liger_kernel"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    program = (
        "import importlib.util, sys; from stages.common.gpus import hide_gpu_packages as hide;"
        " hide() if sys.argv[1:] else None; print([bool(importlib.util.find_spec(name)) for name in"
        " ('bitsandbytes', 'liger_kernel', 'json')])"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for arguments, seen in ([], "[True, True, True]"), (["hide"], "[False, False, True]"):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True
        )
        assert done.stdout.strip() == seen, done.stderr
