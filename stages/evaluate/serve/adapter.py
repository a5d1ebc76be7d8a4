"""A LoRA adapter: its identity, its rank, and the model that it makes of its base.

python -m stages.evaluate.serve.adapter BASE ADAPTER TARGET

The command merges into the empty folder TARGET. It is a process of its own, since it needs memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.common import process
from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, fresh_folder, main_root, read_json, sha256_file, sha256_text
from stages.common.gpus import hide_gpu_packages
from stages.common.machine import machine_gib
from stages.common.placement import Shape, needed_gib

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's --max-lora-rank takes no other (vllm/config/lora.py, 0.32)."""
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_KEPT = 1
"""Merged models that nobody serves; each is as large as the base in float32."""
_WORKING_GIB = 1.5
"""What merging holds beside the model: libraries, and the layer that is being merged."""
_RECIPE = "1"  # raise it when the merge changes, so that old ones are not taken for new ones


def sha256(adapter: Path) -> str:
    """Hash of what the adapter computes: weights and settings.

    It leaves out where its base lay, and the order of a set of names.
    """
    settings = dict(_config(adapter))
    settings.pop("base_model_name_or_path", None)
    for key, value in settings.items():
        if isinstance(value, list):
            settings[key] = sorted(value, key=str)
    return sha256_text(json.dumps(settings, sort_keys=True) + sha256_file(_weights(adapter)))


def max_rank(adapter: Path) -> int:
    """The smallest rank that vLLM can be started with and that holds every matrix of this adapter.

    Raises:
        PawlError: the adapter's rank is above all of them.
    """
    config = _config(adapter)
    rank = max([config.get("r") or 0, *(config.get("rank_pattern") or {}).values()])
    for allowed in _RANKS:
        if rank <= allowed:
            return allowed
    raise PawlError(
        f"the adapter's rank is {rank}, vLLM serves {_RANKS[-1]} at most",
        where=str(adapter),
        fix="engine=transformers merges it",
    )


def is_adapter(folder: Path) -> bool:
    """An adapter, and not the whole model that full fine-tuning leaves in the same place."""
    return (folder / "adapter_config.json").is_file()


def needs_merge(adapter: Path) -> bool:
    """Whether vLLM cannot serve this adapter beside its base.

    Such as: DoRA, whole modules, a vocabulary of another size, trained biases.
    """
    config = _config(adapter)
    if config.get("use_dora") or config.get("modules_to_save"):
        return True
    if config.get("bias") not in (None, "none"):
        return True
    if config.get("trainable_token_indices") or config.get("peft_type", "LORA") != "LORA":
        return True
    return any("lora_" not in name for name in _tensors(_weights(adapter)))


@contextmanager
def merged(
    base: Path, adapter: Path, weights_sha256: str, log: Path, meanwhile: Callable[[], None]
) -> Iterator[Path]:
    """Base and adapter as one float32 model, kept under .pawl/merged by the hash of both.

    float32, because bfloat16 has 8 bits of mantissa and would round most of an adapter's change
    away. Merging takes 15 s, nearly all of it imports; `meanwhile` is called again and again while
    it lasts. (`transformers serve` 5.6 cannot load an adapter: it needs peft 0.18.2 or later, and
    LLaMA-Factory 0.9.5 wants 0.18.1.)
    """
    cache = main_root() / ".pawl" / "merged"
    files = [sha256_file(path) for path in sorted(_companions(base))]
    key = sha256_text(f"{_RECIPE} {weights_sha256} {sha256(adapter)} {files}")[:24]
    target = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{key}.lock", "w", encoding="utf-8") as lock:
        # of two evaluations of one adapter the second waits, and finds it made
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "config.json").is_file():
            _forget_old(cache, 0)
            _check_room(base, cache)
            print("merging the adapter into its base")
            with fresh_folder(target) as folder:
                argv = [sys.executable, "-m", "stages.evaluate.serve.adapter"]
                argv += map(str, (base, adapter, folder))
                env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
                if process.run(argv, log=log, env=env, watch=meanwhile, poll_s=0.2):
                    end = process.tail(log, 1500)
                    raise PawlError(f"the adapter could not be merged:\n{end}", where=str(log))
        os.utime(target)
        _forget_old(cache, _KEPT)
        fcntl.flock(lock, fcntl.LOCK_SH)  # in use: nobody forgets it
        yield target


def _check_room(base: Path, cache: Path) -> None:
    """Refuse a merge that memory or disk cannot hold: 28 GiB for 7 billion parameters."""
    model = needed_gib(base, Shape.read(base), "float32", 0)
    fix = "free some; or engine=vllm, which serves a plain LoRA adapter and merges nothing"
    for what, needed, free in (
        ("memory", model + _WORKING_GIB, machine_gib()),
        (f"disk at {cache}", model, shutil.disk_usage(cache).free / 2**30),
    ):
        if needed > free:
            raise PawlError(
                f"to merge the adapter takes {needed:.1f} GiB of {what}, {free:.1f} GiB are free",
                where="models/adapter",
                fix=fix,
            )


def _forget_old(cache: Path, kept: int) -> None:
    """Remove merged models but the newest `kept`, and those that are served."""
    folders = [path for path in cache.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for folder in sorted(folders, key=lambda path: -path.stat().st_mtime)[kept:]:
        with open(cache / f"{folder.name}.lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(folder)


def _companions(base: Path) -> Iterator[Path]:
    """The small files beside the weights: tokenizer, chat template, generation settings.

    The base's own are served, not the adapter's.
    """
    for path in base.iterdir():
        if path.name == "config.json" or path.name.endswith(".index.json"):
            continue
        if path.suffix in (".json", ".jinja", ".model", ".txt", ".py") and path.is_file():
            yield path


def _config(adapter: Path) -> dict[str, Any]:
    config = read_json(adapter / "adapter_config.json")
    if not isinstance(config, dict):
        where = str(adapter / "adapter_config.json")
        raise PawlError("not an adapter's settings", where=where, fix="run 'dvc repro train'")
    return config


def _weights(adapter: Path) -> Path:
    path = adapter / "adapter_model.safetensors"
    if not path.is_file():
        raise PawlError("the adapter has no weights", where=str(path), fix="run 'dvc repro train'")
    return path


def _vocabulary(adapter: Path) -> int | None:
    """Rows of the embedding that the adapter brings, None where it brings none."""
    from safetensors import safe_open

    with safe_open(_weights(adapter), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            if name.endswith(("embed_tokens.weight", "embed_tokens.modules_to_save.weight")):
                return int(file.get_slice(name).get_shape()[0])
    return None


def _tensors(path: Path) -> list[str]:
    """Names of the tensors of a safetensors file: a length of 8 bytes, then as much JSON."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (ValueError, OverflowError, MemoryError):
        fix = "run 'dvc repro --force train'"
        raise PawlError("not a safetensors file", where=str(path), fix=fix) from None
    return [name for name in header if name != "__metadata__"]


def main() -> None:
    hide_gpu_packages()
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, adapter, target = (Path(argument) for argument in sys.argv[1:4])
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    grown = _vocabulary(adapter)
    if grown and grown != model.get_input_embeddings().weight.shape[0]:
        # training added tokens; their rows come with the adapter
        model.resize_token_embeddings(grown)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)
    model.save_pretrained(target)
    for path in _companions(base):  # save_pretrained writes some of them too
        shutil.copy(path, target / path.name)
    if grown and (adapter / "tokenizer.json").is_file():
        for name in _TOKENIZER:  # the one that knows the new tokens
            if (adapter / name).is_file():
                shutil.copy(adapter / name, target / name)


if __name__ == "__main__":
    run_main("merge", main)
