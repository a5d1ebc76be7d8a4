"""What a candidate was made of besides its parameters, as hashes: so that a change of a file or a
template is named as a change.
"""

from __future__ import annotations

from pathlib import Path

from stages.common.files import sha256_folder, sha256_text, to_json
from stages.common.reports.verdict import Ingredient
from stages.judge.inputs import Inputs, read_verdict

FOLDERS = {
    "the files in data/local": "data/local",
    "the templates in prompts/generate_data": "prompts/generate_data",
}


def made_of(root: Path, inputs: Inputs) -> list[Ingredient]:
    """A list, so that DVC shows no metric of it."""
    template = str(inputs.candidate.stated.fingerprint.get("chat_template_sha256") or "")
    told = inputs.data.plain()
    data = {name: told[name] for name in ("rows", "tokens", "sources")}
    folders = {
        what: sha256_folder(root / path) if (root / path).is_dir() else ""
        for what, path in FOLDERS.items()
    }
    found = {
        **folders,
        "the model's chat template": template,
        "the training rows (their numbers and tokens)": sha256_text(to_json(data)),
    }
    return [Ingredient(what=what, sha256=sha256) for what, sha256 in found.items()]


def changed(root: Path, incumbent: str, now: list[Ingredient]) -> list[str]:
    """What differs from an incumbent of experiments/, and whether that can be told at all; nothing
    of the untrained baseline.
    """
    verdict = read_verdict(root, incumbent)
    if verdict is None:
        return []
    if verdict.made_of is None:
        return [
            "whether files or templates changed is not known: the incumbent's verdict does not"
            " record them"
        ]
    old = {each.what: each.sha256 for each in verdict.made_of}
    return [f"{each.what} changed" for each in now if old.get(each.what) != each.sha256]
