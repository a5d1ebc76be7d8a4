"""Which files of a repository of the hub are the model: its settings first, then the weights that
the index names.
"""

from __future__ import annotations

import fnmatch

from stages.common.errors import PawlError
from stages.common.files import read_object
from stages.common.hub.listing import Listing
from stages.fetch_model.description import TOKENIZERS

_SETTINGS = ("*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges.txt")
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")


def settings(found: Listing) -> list[str]:
    """The small files: configuration, tokenizer, chat template, index of the weights.

    Raises:
        PawlError: with exit code 3, that this can be no model to train and serve here: no config,
            no tokenizer that transformers reads.
    """
    names = _top(found)
    if "config.json" not in names:
        what = (
            "this is an adapter and no model"
            if "adapter_config.json" in names
            else "the repository has no config.json"
        )
        raise _refusal(found, what, "name the repository of the whole model")
    if not any(name in names for name in TOKENIZERS):
        what = f"the repository has no tokenizer ({' or '.join(TOKENIZERS)})"
        fix = "name a repository with its tokenizer"
        if "tekken.json" in names:
            what = (
                "the repository has its tokenizer as tekken.json alone, which transformers does not"
                " read here"
            )
            fix = (
                "name one of the family with tokenizer.json, or a conversion of this model that you"
                " trust"
            )
        raise _refusal(found, what, fix)
    return [name for name in names if any(fnmatch.fnmatchcase(name, form) for form in _SETTINGS)]


def weights(found: Listing) -> list[str]:
    """The safetensors files that the index names, or the only one: no second copy in another format
    or layout.

    Raises:
        PawlError: with exit code 3, there are none that transformers reads.
    """
    names = _top(found)
    if _INDEX in names:
        mapping = read_object(found.folder / _INDEX).get("weight_map")
        shards = (
            sorted({str(shard) for shard in mapping.values()}) if isinstance(mapping, dict) else []
        )
        if not shards or not set(shards) <= set(names):
            lacking = ", ".join(sorted(set(shards) - set(names))[:3]) or "none"
            raise _refusal(
                found,
                f"its index names weights that it does not have: {lacking}",
                "name another revision",
            )
        return shards
    single = [
        name
        for name in names
        if name.endswith(".safetensors") and not name.startswith(("consolidated", "adapter_model"))
    ]
    if "model.safetensors" in names or len(single) == 1:
        return ["model.safetensors"] if "model.safetensors" in names else single
    if single:
        raise _refusal(
            found,
            f"it has {len(single)} safetensors files and no {_INDEX}",
            "name another revision or repository",
        )
    fix = (
        "name a repository with model.safetensors, or convert it where you trust it"
        " (model.save_pretrained) and use model=path"
    )
    if pickles := [
        name for name in names if any(fnmatch.fnmatchcase(name, form) for form in _PICKLES)
    ]:
        raise _refusal(
            found,
            f"its weights are pickled ({pickles[0]}): opening a pickle runs whatever code it holds",
            fix,
        )
    others = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    raise _refusal(
        found,
        f"it has no weights that transformers reads ({', '.join(others[:3]) or 'none at all'})",
        fix,
    )


def _top(found: Listing) -> list[str]:
    return sorted(name for name in found.files if "/" not in name)


def _refusal(found: Listing, what: str, fix: str) -> PawlError:
    return PawlError(what, where=found.where, fix=f"{fix} (model.repo, model.revision)", code=3)
