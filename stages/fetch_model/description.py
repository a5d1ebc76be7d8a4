"""What a model folder holds, checked without loading it: files with sizes and hashes, and the
number of parameters.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import read_json, sha256_file, sha256_text
from stages.common.models import refuse_code

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_OTHERS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    *TOKENIZERS,
)


def describe(folder: Path) -> dict[str, Any]:
    """{files: {name: {bytes, sha256}}, weights_sha256, parameters} of a complete model folder.

    Raises:
        PawlError: config, weights or tokenizer are missing, broken or cut short; weights only as
            pickles; code of the model's own.
    """
    config = _required(folder, ("config.json",), "config.json")
    if not isinstance(read_json(config), dict) or not read_json(config).get("model_type"):
        raise PawlError(
            "config.json names no model_type",
            where=str(config),
            fix="take the config.json that the model came with",
        )
    refuse_code(folder)
    weights = _weights(folder)
    _required(folder, TOKENIZERS, f"a tokenizer ({' or '.join(TOKENIZERS)})")
    parameters = sum(_parameters(path) for path in weights)
    index = [folder / "model.safetensors.index.json"] if len(weights) > 1 else []
    present = [*weights, *index, *(folder / name for name in _OTHERS if (folder / name).is_file())]
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(present)
    }
    lines = "".join(f"{path.name} {files[path.name]['sha256']}\n" for path in weights)
    return {"files": files, "weights_sha256": sha256_text(lines), "parameters": parameters}


def _required(folder: Path, names: tuple[str, ...], what: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise PawlError(
        f"the model folder lacks {what}; it holds {found}",
        where=str(folder),
        fix="take the whole folder that the model came in",
    )


def _weights(folder: Path) -> list[Path]:
    """The safetensors files of a model: those that its index names, or the only one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        mapping = read_json(index).get("weight_map", {})
        names = sorted(set(mapping.values()))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise PawlError(
                f"weights that the index names are missing: {', '.join(missing[:5])}",
                where=str(folder),
                fix="fetch the model again",
            )
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():  # whatever copy in another layout lies beside it
        return [folder / "model.safetensors"]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise PawlError(
            f"{len(found)} safetensors files and no model.safetensors.index.json",
            where=str(folder),
            fix="fetch the model again",
        )
    if pickles := sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]):
        what = (
            f"the weights are pickled ({pickles[0].name}): opening a pickle runs whatever code it"
            " holds"
        )
        raise PawlError(
            what,
            where=str(folder),
            fix="convert them to safetensors where you trust them (model.save_pretrained)",
        )
    _required(folder, ("model.safetensors",), "weights (*.safetensors)")
    return []


def _parameters(path: Path) -> int:
    """Number of values in a safetensors file, from its header
    (https://github.com/huggingface/safetensors#format).
    """
    broken = PawlError(
        "not a whole safetensors file",
        where=str(path),
        fix="fetch it again (a Git LFS pointer is no file: git lfs pull)",
    )
    with open(path, "rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= 100_000_000:
            raise broken
        try:
            header = json.loads(file.read(length))
            tensors = [value for name, value in header.items() if name != "__metadata__"]
            end = max((value["data_offsets"][1] for value in tensors), default=0)
            count = int(sum(math.prod(value["shape"]) for value in tensors))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise broken from None
    if not count or path.stat().st_size != 8 + length + end:
        raise broken
    return count
