"""The installed packages as a source: what their own docstrings and argument classes say, in
exactly the version that runs.

Read by `ast` from the files, so that nothing heavy is imported, into a full-text index (SQLite
FTS5, ranked by BM25) that is made once for each set of versions. Cited as [lib: package==version
module.Class.field].
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.knowledge.relevance import match_any
from stages.common.files import ROOT, main_root, sha256_text

FORMAT = 1
"""Raised when the index is made another way."""
PACKAGES = {
    "llamafactory": ("hparams/*.py", "data/template.py", "data/processor/*.py", "train/sft/*.py"),
    "peft": ("config.py", "tuners/*/config.py", "tuners/lora/*.py", "helpers.py"),
    "trl": ("trainer/*_config.py", "trainer/sft_trainer.py", "trainer/dpo_trainer.py"),
    "transformers": (
        "training_args.py",
        "training_args_seq2seq.py",
        "optimization.py",
        "trainer.py",
        "trainer_utils.py",
        "generation/configuration_utils.py",
        "data/data_collator.py",
    ),
    "vllm": ("engine/arg_utils.py", "config/*.py", "sampling_params.py", "lora/request.py"),
}
ARGUMENTS = ("llamafactory.hparams.", "transformers.training_args")
"""Modules whose classes LLaMA-Factory takes its configuration keys from."""
_LONGEST = 6000


@dataclass(frozen=True)
class Entry:
    """A documented thing; `symbol` is its dotted name, `field` the argument that it is, "" for a
    class or function.
    """

    package: str
    version: str
    symbol: str
    field: str
    text: str

    @property
    def citation(self) -> str:
        return f"[lib: {self.package}=={self.version} {self.symbol}]"


def installed() -> dict[str, tuple[str, Path]]:
    """Version and folder of each package that is there: this environment's, and the serving
    environment's vLLM.
    """
    found = {}
    serving = sorted((main_root() / ".venv-serve").glob("lib/python3*/site-packages"))
    for name in PACKAGES:
        with suppress(ImportError, ValueError, importlib.metadata.PackageNotFoundError):
            spec = importlib.util.find_spec(name)
            if spec and spec.submodule_search_locations:
                found[name] = (
                    importlib.metadata.version(name),
                    Path(next(iter(spec.submodule_search_locations))),
                )
        for folder in serving if name not in found else ():
            versions = [
                each.version
                for each in importlib.metadata.distributions(path=[str(folder)])
                if _is(each, name)
            ]
            if versions and (folder / name).is_dir():
                found[name] = (versions[0], folder / name)
    return found


def _is(distribution: importlib.metadata.Distribution, name: str) -> bool:
    return str(distribution.metadata["Name"]).lower().replace("_", "-") in (name, f"{name}-cpu")


def entries(package: str, version: str, folder: Path) -> Iterator[Entry]:
    """Everything documented in a package's files of `PACKAGES`; a file that this Python cannot
    parse is left out.
    """
    for pattern in PACKAGES[package]:
        for path in sorted(folder.glob(pattern)):
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join([package, *(part for part in parts if part != "__init__")])
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError):
                continue
            for symbol, field, text in _documented(tree, module):
                if text.strip():
                    yield Entry(package, version, symbol, field, text[:_LONGEST])


def _documented(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, str]]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.ClassDef):
            name, document = (
                f"{prefix}.{part.name}",
                inspect.cleandoc(ast.get_docstring(part, clean=False) or ""),
            )
            yield name, "", document
            described = _parameters(document)
            for field, text in _fields(part, described):
                yield f"{name}.{field}", field, text
            yield from _documented(part, name)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith(
            "_"
        ):
            yield f"{prefix}.{part.name}", "", ast.get_docstring(part) or ""


def _fields(node: ast.ClassDef, described: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The annotated fields of a class, with type, default, and the help that its metadata or the
    class's docstring gives.
    """
    body = node.body
    for position, part in enumerate(body):
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        name, default, text = part.target.id, "", described.get(part.target.id, "")
        value = part.value
        if isinstance(value, ast.Call):
            words = {word.arg: word.value for word in value.keywords}
            default = ast.unparse(words["default"]) if "default" in words else ""
            text = "\n".join(
                part for part in (_help(words.get("metadata") or words.get("help")), text) if part
            )
        elif value is not None:
            default = ast.unparse(value)
        following = body[position + 1] if position + 1 < len(body) else None
        if (
            not text
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            text = inspect.cleandoc(str(following.value.value))  # vLLM writes them below the field
        shown = f" = {default}" if default and len(default) < 200 else ""
        yield name, f"{name}: {ast.unparse(part.annotation)}{shown}\n{text}"


def _help(node: ast.expr | None) -> str:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "help":
                return _help(value)
        return ""
    with suppress(ValueError, TypeError):
        return str(ast.literal_eval(node)) if node is not None else ""
    return ""


def _parameters(document: str) -> dict[str, str]:
    """`name (type, ...): text` entries of a docstring, by name."""
    found: dict[str, str] = {}
    pattern = r"^( *)[`*]*(\w+)[`*]* ?\(([^\n]*)\):[ ]*\n?((?:\1 +[^\n]*\n?|[ ]*\n(?=\1 ))*)"
    for match in re.finditer(pattern, document + "\n", re.MULTILINE):
        found[match[2]] = f"({match[3]}) {' '.join(match[4].split())}"
    return found


class Library:
    """The index of what is installed. `search` ranks by BM25, the name counting more than the
    text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _ask(self, sql: str, values: tuple[object, ...]) -> list[Entry]:
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as base:
            return [Entry(*row) for row in base.execute(sql, values)]

    def search(self, query: str, limit: int = 5) -> list[Entry]:
        """The best entries for the words of a query; a dotted or underscored name also counts as
        the words that it is made of.
        """
        match = match_any(query)
        if not match:
            return []
        sql = (
            "SELECT package, version, symbol, field, text FROM entries WHERE entries MATCH ? "
            "ORDER BY bm25(entries, 0, 0, 4, 8, 1), symbol LIMIT ?"
        )
        return self._ask(sql, (match, limit))

    def of_field(self, name: str) -> list[Entry]:
        """What argument classes say about a field of exactly this name, those that LLaMA-Factory
        reads first.
        """
        found = self._ask(
            "SELECT package, version, symbol, field, text FROM entries WHERE field = ? ORDER BY"
            " symbol",
            (name,),
        )
        return sorted(
            found, key=lambda entry: (not entry.symbol.startswith(ARGUMENTS), entry.symbol)
        )

    def arguments(self) -> set[str]:
        """Every configuration key of LLaMA-Factory's argument classes."""
        found = self._ask(
            "SELECT package, version, symbol, field, text FROM entries WHERE field != ''", ()
        )
        return {entry.field for entry in found if entry.symbol.startswith(ARGUMENTS)}


def open_library() -> Library | None:
    """The index of the present versions, made where it is not there yet (some seconds); None where
    no package of ours is installed.
    """
    packages = installed()
    if not packages:
        return None
    versions = ",".join(
        f"{name}=={version}:{folder}" for name, (version, folder) in sorted(packages.items())
    )
    path = (
        ROOT
        / ".pawl"
        / "agent"
        / f"library-{sha256_text(f'{FORMAT} {versions} {sorted(PACKAGES.items())}')[:16]}.db"
    )
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(partial)) as base:
                base.execute(
                    "CREATE VIRTUAL TABLE entries USING fts5(package UNINDEXED, version UNINDEXED,"
                    " symbol, field, text, tokenize='porter')"
                )
                for name, (version, folder) in packages.items():
                    rows = (
                        (e.package, e.version, e.symbol, e.field, e.text)
                        for e in entries(name, version, folder)
                    )
                    base.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
                base.commit()
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return Library(path)
