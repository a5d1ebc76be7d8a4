"""A LoRA adapter: its identity, its rank, and the model that it makes of its base when the two are merged.

python -m stages.common.adapter BASE ADAPTER TARGET            merge into the empty folder TARGET (a process of its own: it needs memory)
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

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's --max-lora-rank takes no other (vllm/config/lora.py, 0.32)
_KEPT = 3  # merged models; each is as large as the base in float32
_RECIPE = "1"  # raise it when the merge changes, so that old ones are not taken for new ones


def sha256(adapter: Path) -> str:
    """Hash of what the adapter computes: weights and settings, but not where its base lay nor the order of a set of names."""
    settings = {key: sorted(value, key=str) if isinstance(value, list) else value for key, value in _config(adapter).items()}
    settings.pop("base_model_name_or_path", None)
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
        f"the adapter's rank is {rank}, vLLM serves {_RANKS[-1]} at most", where=str(adapter), fix="engine=transformers merges it"
    )


@contextmanager
def merged(base: Path, adapter: Path, weights_sha256: str, log: Path, meanwhile: Callable[[], None]) -> Iterator[Path]:
    """Give base and adapter as one float32 model, made once and kept under .pawl/merged by the hash of both.

    float32, because bfloat16 has 8 bits of mantissa and would round most of an adapter's change away. Merging takes 15 s, nearly all
    of it imports; `meanwhile` is called again and again while it lasts. (`transformers serve` 5.6 cannot load an adapter: it needs
    peft 0.18.2 or later, and LLaMA-Factory 0.9.5 wants 0.18.1.)
    """
    cache = main_root() / ".pawl" / "merged"
    key = sha256_text(f"{_RECIPE} {weights_sha256} {sha256(adapter)} {[sha256_file(path) for path in sorted(_companions(base))]}")[:24]
    target = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{key}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two evaluations of one adapter: the second waits and finds it made
        if not (target / "config.json").is_file():
            print("merging the adapter into its base")
            with fresh_folder(target) as folder:
                argv = [sys.executable, "-m", "stages.common.adapter", str(base), str(adapter), str(folder)]
                env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
                if process.run(argv, log=log, env=env, watch=meanwhile, poll_s=0.2):
                    raise PawlError(f"the adapter could not be merged:\n{process.tail(log, 1500)}", where=str(log))
        os.utime(target)
        _forget_old(cache)
        fcntl.flock(lock, fcntl.LOCK_SH)  # in use: nobody forgets it
        yield target


def _forget_old(cache: Path) -> None:
    folders = [path for path in cache.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for folder in sorted(folders, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        with open(cache / f"{folder.name}.lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(folder)


def _companions(base: Path) -> Iterator[Path]:
    """The small files beside the weights: tokenizer, chat template, generation settings. The base's own are served, not the adapter's."""
    for path in base.iterdir():
        kept = path.suffix in (".json", ".jinja", ".model", ".txt", ".py") and path.name != "config.json"
        if kept and path.is_file() and not path.name.endswith(".index.json"):
            yield path


def _config(adapter: Path) -> dict[str, Any]:
    config = read_json(adapter / "adapter_config.json")
    if not isinstance(config, dict):
        raise PawlError("not an adapter's settings", where=str(adapter / "adapter_config.json"), fix="run 'dvc repro train'")
    return config


def _weights(adapter: Path) -> Path:
    path = adapter / "adapter_model.safetensors"
    if not path.is_file():
        raise PawlError("the adapter has no weights", where=str(path), fix="run 'dvc repro train'")
    return path


def main() -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, adapter, target = (Path(argument) for argument in sys.argv[1:4])
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)
    model.save_pretrained(target)
    for path in _companions(base):  # save_pretrained writes some of them too
        shutil.copy(path, target / path.name)


if __name__ == "__main__":
    run_main("merge", main)
