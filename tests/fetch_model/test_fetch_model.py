"""A base model is complete and described, or the stage says on one screen what is wrong with it."""

import json
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants as hub_constants

from stages.common.errors import PawlError, from_os_error
from stages.common.models import base_model
from stages.common.schema import Model
from stages.fetch_model import description, sources
from stages.fetch_model.__main__ import fetch
from tests.fake_hub import COMMIT, FakeHub, StartHub


def tensors(values: int = 6) -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "F32", "shape": [2, values // 2], "data_offsets": [0, 4 * values]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 4 * values


def safetensors(path: Path, values: int = 6) -> None:
    path.write_bytes(tensors(values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest folder that is a model."""
    path = tmp_path / "mine"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text("{}")
    safetensors(path / "model.safetensors")
    return path


def model(**keys: str) -> Model:
    return Model(name="m", dtype="bfloat16", **keys)


def test_a_local_model_is_described_where_it_lies(folder: Path, tmp_path: Path) -> None:
    described = fetch(model(source="path", path=str(folder)), tmp_path / "models")
    assert described["path"] == str(folder)
    assert described["parameters"] == 6
    assert set(described["files"]) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert [path.name for path in (tmp_path / "models" / "base").iterdir()] == ["README.md"], (
        "no second copy of the weights"
    )
    assert base_model(tmp_path)[1] == folder


def test_the_weights_hash_changes_with_the_weights_alone(folder: Path) -> None:
    before = description.describe(folder)["weights_sha256"]
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    assert description.describe(folder)["weights_sha256"] == before
    safetensors(folder / "model.safetensors", values=8)
    assert description.describe(folder)["weights_sha256"] != before


@pytest.mark.parametrize("name", ["empty", "none", "file"])
def test_no_model_folder_is_a_clear_error_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(PawlError) as error:
        fetch(model(source="path", path=str(tmp_path / name)), tmp_path / "models")
    assert str(tmp_path / name) in error.value.where
    assert len(str(error.value).splitlines()) < 10
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_model_is_refused(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(PawlError, match="lacks"):
        description.describe(folder)


def test_pickled_weights_are_refused_with_the_reason(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PawlError, match="opening a pickle runs"):
        description.describe(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"\2\0\0\0\0\0\0\0{}",
        b"\2\0\0\0\0\0\0\0[]",
    ],
)
def test_weights_that_are_no_safetensors_are_refused(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(PawlError, match="not a whole safetensors file"):
        description.describe(folder)


def test_weights_cut_short_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PawlError, match="not a whole safetensors file"):
        description.describe(folder)


def test_a_shard_that_the_index_names_must_be_there(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PawlError, match=r"model-2\.safetensors"):
        description.describe(folder)
    safetensors(folder / "model-2.safetensors")
    assert description.describe(folder)["parameters"] == 12


def test_a_failed_fetch_leaves_no_description_of_the_model_before(
    folder: Path, tmp_path: Path
) -> None:
    fetch(model(source="path", path=str(folder)), tmp_path / "models")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PawlError):
        fetch(model(source="path", path=str(folder)), tmp_path / "models")
    assert not (tmp_path / "models" / "base.json").exists()


WHOLE = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}"}
INDEX = json.dumps(
    {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
).encode()
SHARDS = {
    "model.safetensors.index.json": INDEX,
    "model-1.safetensors": tensors(6),
    "model-2.safetensors": tensors(8),
}
COPIES = {
    "consolidated.safetensors": tensors(14),
    "pytorch_model.bin": b"pickle",
    "original/consolidated.00.pth": b"pickle",
    "model.fp16.safetensors": tensors(4),
    "model.gguf": b"GGUF",
    "onnx/model.onnx": b"onnx",
    "README.md": b"# Model",
}


def of_hub(
    start_hub: StartHub, files: dict[str, bytes], tmp_path: Path
) -> tuple[FakeHub, dict[str, Any]]:
    hub = start_hub({"org/name": files})
    return hub, fetch(model(source="hub", repo="org/name", revision="main"), tmp_path / "models")


@pytest.mark.parametrize("weights", [SHARDS, {"model.safetensors": tensors(14)}])
def test_of_a_hub_model_the_weights_come_once_and_in_one_format(
    weights: dict[str, bytes], start_hub: StartHub, tmp_path: Path
) -> None:
    hub, described = of_hub(start_hub, WHOLE | weights | COPIES, tmp_path)
    assert sorted(hub.files) == sorted(WHOLE | weights)
    assert described["parameters"] == 14 and described["revision"] == COMMIT
    assert base_model(tmp_path)[1] == Path(hub_constants.HF_HUB_CACHE) / described["path"]


NO_TOKENIZER = {"config.json": WHOLE["config.json"], "model.safetensors": tensors(6)}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (NO_TOKENIZER | {"tekken.json": b"{}"}, r"tekken\.json alone"),
        (NO_TOKENIZER, "no tokenizer"),
        (
            {"adapter_config.json": b"{}", "adapter_model.safetensors": tensors(6)},
            "an adapter and no model",
        ),
        ({"model.gguf": b"GGUF", "README.md": b""}, r"no config\.json"),
        (WHOLE | {"pytorch_model.bin": b"pickle"}, "opening a pickle runs"),
        (
            WHOLE | {"consolidated.safetensors": tensors(6)},
            r"no weights that transformers reads \(consolidated\.safetensors\)",
        ),
        (WHOLE | {"a.safetensors": tensors(6), "b.safetensors": tensors(6)}, "2 safetensors files"),
        (
            WHOLE
            | SHARDS
            | {"model.safetensors.index.json": b'{"weight_map": {"a": "model-3.safetensors"}}'},
            r"does not have: model-3",
        ),
        (WHOLE | SHARDS | {"model.safetensors.index.json": b"{}"}, "does not have: none"),
        (
            WHOLE
            | {"config.json": b'{"model_type": "x", "auto_map": {"AutoModel": "own.Model"}}'}
            | SHARDS,
            "code of its own",
        ),
    ],
)
def test_a_repository_that_is_no_model_for_us_is_refused_before_its_weights_come(
    files: dict[str, bytes], said: str, start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub({"org/name": files})
    with pytest.raises(PawlError, match=said) as error:
        fetch(model(source="hub", repo="org/name", revision="main"), tmp_path / "models")
    assert error.value.code == 3
    assert not [name for name in hub.files if name.endswith((".safetensors", ".bin", ".gguf"))]


@pytest.fixture
def small_disk(tmp_path: Path, need: Callable[[str], None]) -> Iterator[Path]:
    """A file system of 64 KiB, almost full."""
    need("mount")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    try:
        (folder / "filler").write_bytes(b"\0" * 56_000)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_called_that_and_leaves_nothing(folder: Path, small_disk: Path) -> None:
    with pytest.raises(OSError) as error:
        fetch(model(source="path", path=str(folder), licence="x" * 20_000), small_disk / "models")
    assert "disk is full" in str(from_os_error(error.value))
    assert not (small_disk / "models" / "base.json").exists()


@pytest.mark.e2e
def test_a_disk_that_fills_while_weights_are_written_is_called_that(small_disk: Path) -> None:
    with pytest.raises(OSError) as error:
        fetch(Model(name="tiny", source="random", dtype="float32"), small_disk / "models")
    assert "disk is full" in str(from_os_error(error.value))
    assert list((small_disk / "models").iterdir()) == []


@pytest.mark.e2e
def test_the_tiny_model_is_the_same_each_time_and_knows_its_end(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny = Model(name="tiny", source="random", dtype="float32")
    one, two = (fetch(tiny, tmp_path / name / "models") for name in "ab")
    assert one == two
    folder = base_model(tmp_path / "a")[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    ) == (1, 2, 2, 0)
    assert tokenizer.decode(tokenizer("H\u00e9 \u65e5 12")["input_ids"]) == "H\u00e9 \u65e5 12"
    assert AutoModelForCausalLM.from_pretrained(folder).config.eos_token_id == 2
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.iterdir())


def test_the_date_is_described_only_where_the_template_writes_one(
    folder: Path, tmp_path: Path
) -> None:
    """So that a base without a date, and every result of it, stays the same whatever model.date
    says.
    """
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert "date" not in fetch(
        model(source="path", path=str(folder), date="2025-01-02"), tmp_path / "models"
    )
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}")
    assert (
        fetch(model(source="path", path=str(folder), date="2025-01-02"), tmp_path / "models")[
            "date"
        ]
        == "2025-01-02"
    )
    _, dated = base_model(tmp_path)
    assert dated != folder and "2025" in (dated / "chat_template.jinja").read_text()


def test_a_model_with_code_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["own.Tokenizer", null]}}'
    )
    with pytest.raises(PawlError, match="auto_map"):
        fetch(model(source="path", path=str(folder)), tmp_path / "models")


def test_a_hub_model_is_described_without_the_place_of_this_machines_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(sources, "hub", lambda repo, revision: (folder, "c0ffee"))
    described = fetch(model(source="hub", repo="a/b", revision="main"), tmp_path / "models")
    assert described["path"] == "mine" and base_model(tmp_path)[1] == folder
    assert (
        str(tmp_path)
        not in (tmp_path / "models/base/README.md").read_text()
        + (tmp_path / "models/base.json").read_text()
    )
