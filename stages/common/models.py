"""models/base.json: which model is the base, where its files are, and whether they are still the
ones that fetch_model saw.

And its chat template: what is written before it (a fixed date, arguments) holds for training and
serving alike.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import ROOT, main_root, read_json, sha256_file, sha256_text, to_json

# bytes; config and tokenizer are hashed again each time, for weights the size must do
_HASHED_UP_TO = 32 * 2**20
_MEND = (
    "run 'dvc repro --force fetch_model'; a model of your own must keep its files while it is the"
    " base"
)
_SETTINGS = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)
_CLOCK = "strftime_now"
"""The one function by which a chat template reads a clock; transformers gives it to every template,
in training and in both engines.
"""
_DIRECTIVES = "aAbBdHIjmMpSwyYUWcxXFDTeh"
"""What follows the % in a format of strftime; each also without its zero (%-d)."""
_FIXED = re.compile(r"^\{#- the date is (\d{4}-\d\d-\d\d) #\}")


def base_model(root: Path = ROOT) -> tuple[dict[str, Any], Path]:
    """The description in models/base.json (see stages/fetch_model) and the folder with weights,
    config and tokenizer.

    If the chat template writes today's date, the folder is one in which it writes that of the
    description.

    Raises:
        PawlError: base.json is missing or broken, or a file is missing or has changed since
            fetch_model described it.
    """
    origin = root / "models" / "base.json"
    described = read_json(origin)
    if (
        not isinstance(described, dict)
        or not isinstance(described.get("files"), dict)
        or not described.get("path")
    ):
        raise PawlError(
            "not a description of a base model",
            where=str(origin),
            fix="run 'dvc repro --force fetch_model'",
        )
    folder = _place(described, root)
    for name, known in described["files"].items():
        path = folder / name
        if not path.is_file():
            raise PawlError(
                f"a file of the base model is missing: {name}", where=str(path), fix=_MEND
            )
        same = path.stat().st_size == known["bytes"]
        if not same or (known["bytes"] <= _HASHED_UP_TO and sha256_file(path) != known["sha256"]):
            raise PawlError(
                f"a file of the base model has changed since fetch_model saw it: {name}",
                where=str(path),
                fix=_MEND,
            )
    refuse_code(folder)
    if described.get("date"):
        folder = with_template(folder, fixed_date(date.fromisoformat(described["date"])), root)
    return described, folder


def _place(described: dict[str, Any], root: Path) -> Path:
    """The folder, which the description names without this machine: below the hub's cache, below
    the repository, or in full if so given.
    """
    if described.get("source") == "hub":
        from huggingface_hub.constants import HF_HUB_CACHE

        return Path(HF_HUB_CACHE) / str(described["path"])
    place = Path(str(described["path"])).expanduser()
    # a clone made by DVC's queue has no untracked files
    return (
        root / place
        if (root / place).exists() or described.get("source") != "path"
        else main_root() / place
    )


def refuse_code(folder: Path) -> None:
    """Refuse a model whose settings name code of its own: it is never run, and the trainer fails
    over it when it saves.

    Raises:
        PawlError: with exit code 3, the first such file.
    """
    for name in _SETTINGS:
        path = folder / name
        settings = read_json(path) if path.is_file() else {}
        if isinstance(settings, dict) and settings.get("auto_map"):
            fix = (
                "choose another base; if transformers knows this one by itself, take auto_map out"
                " of a copy of the folder (model=path)"
            )
            raise PawlError(
                "the model wants code of its own (auto_map), which is never run",
                where=str(path),
                fix=fix,
                code=3,
            )


def template_text(folder: Path) -> str:
    """The chat template of a model; "" if it has none. Of several (a list of names and templates)
    it is all of them, as JSON.
    """
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    template = (read_json(path) if path.is_file() else {}).get("chat_template") or ""
    return template if isinstance(template, str) else json.dumps(template, sort_keys=True)


def writes_date(folder: Path) -> bool:
    """Whether the chat template may write today's date, so that the same question is another prompt
    tomorrow.
    """
    return _CLOCK in template_text(folder)


def fixed_date(day: date) -> str:
    """What makes a chat template write `day` in place of today: the clock, as a macro of the
    template's own.
    """
    forms = {f"%{letter}": day.strftime(f"%{letter}") for letter in _DIRECTIVES}
    forms |= {f"%-{letter}": day.strftime(f"%-{letter}") for letter in "dmHIMSjy"}
    replaced = "".join(
        f" | replace({json.dumps(form)}, {json.dumps(text)})"
        for form, text in sorted(forms.items())
    )
    return (
        f"{{#- the date is {day} #}}\n{{%- macro {_CLOCK}(format) -%}}{{{{- format{replaced}"
        " -}}{%- endmacro %}\n"
    )


def date_of(folder: Path) -> str:
    """The date that `fixed_date` gave this folder's template; "": none."""
    found = _FIXED.match(template_text(folder))
    return found[1] if found else ""


def fixed_arguments(arguments: dict[str, Any]) -> str:
    """What makes a chat template render as if it were given these arguments."""
    return "".join(
        f"{{%- set {name} = {_literal(value)} %}}\n" for name, value in sorted(arguments.items())
    )


def _literal(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def with_template(folder: Path, before: str, root: Path = ROOT) -> Path:
    """A folder with links to the files of a model, and with `before` in front of its chat template.
    `folder` itself where there is none.

    The trainer, both engines, the merge and whoever else opens the folder then render the same.
    """
    text = _default_template(folder)
    if not before or not text:
        return folder
    files = sorted(path for path in folder.iterdir() if path.is_file())
    known = [str(folder.resolve()), before, text, *(path.name for path in files)]
    target = root / ".pawl" / "base" / sha256_text(json.dumps(known))[:20]
    if (target / "chat_template.jinja").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        for path in files:
            # some loaders would take its template, and not that of the file
            if path.name == "tokenizer_config.json":
                settings = {
                    name: value
                    for name, value in read_json(path).items()
                    if name != "chat_template"
                }
                (partial / path.name).write_text(to_json(settings), encoding="utf-8")
            elif path.name != "chat_template.jinja":
                (partial / path.name).symlink_to(path.resolve())
        (partial / "chat_template.jinja").write_text(before + text, encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(target)
    except OSError:
        if not (target / "chat_template.jinja").is_file():  # else another process made it meanwhile
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _default_template(folder: Path) -> str:
    """The template that a conversation without tools is rendered by."""
    text = template_text(folder)
    if not text.startswith("[{"):
        return text
    named = {entry["name"]: entry["template"] for entry in json.loads(text)}
    return str(named.get("default") or next(iter(named.values())))
