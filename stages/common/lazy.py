"""OpenCompass without its imports: a module of it is loaded when something in it is used.

Its packages import everything that they hold (`opencompass.datasets` 300 modules, 13 s), and some
modules import torch and transformers for one function. `quick_opencompass()` makes the packages
look names up instead: a name that a package's __init__.py takes from a submodule is fetched from
that submodule, which is executed as it stands. Nothing is replaced; where the lookup fails, the
package's own __init__.py runs. Heavy libraries are loaded at their first use
(importlib.util.LazyLoader).

An evaluation imports OpenCompass while its server starts. Without this module one of ten items took
42, 53 and 117 s instead of 36, 44 and 56 (three pairs, two cores at a load of 7 to 10).
build_benchmark, the sandbox and an external server have no start to hide 13 s behind.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGES = {
    "opencompass.datasets",
    "opencompass.evaluator",
    "opencompass.models",
    "opencompass.openicl",
    "opencompass.openicl.icl_evaluator",
    "opencompass.openicl.icl_inferencer",
    "opencompass.openicl.icl_retriever",
    "opencompass.utils",
}
# what only functions use, and whose module imports torch and transformers
_DEFERRED = {"opencompass.openicl.DatasetReader"}
# (transformers puts another module in its own place, which a lazy one cannot follow)
_HEAVY = {"evaluate", "torch"}


def quick_opencompass() -> None:
    """From now on in this process. Called before the first import of OpenCompass; a second call
    does nothing.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        # looks into every module that is loaded, lazy ones too: so before them
        importlib.import_module("opencompass.registry")
        _make_logger()


def _make_logger() -> None:
    """OpenCompass's logger, made as mmengine makes it where there is no torch: with torch it asks
    for the rank, and loads it for that.

    Its modules call get_logger(__name__), which takes the name for a level unless there is a logger
    already.
    """
    hidden = [name for name in ("torch", "mmengine.dist") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: an import of it raises ImportError
    try:
        importlib.import_module("opencompass.utils.logging").get_logger("WARNING")
    finally:
        for name in hidden:
            del sys.modules[name]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _PACKAGES and name not in _HEAVY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return spec
        if name in _HEAVY:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        else:
            spec.loader = _Package(spec.name, spec.loader.path)
        return spec


class _Package(importlib.machinery.SourceFileLoader):
    """Gives a package that executes its __init__.py only when it must."""

    def exec_module(self, module: ModuleType) -> None:
        named, starred = _sources(Path(self.path))
        loader = self

        def attribute(name: str) -> Any:
            if f"{module.__name__}.{name}" in _DEFERRED:
                return _Deferred(f"{module.__name__}.{named[name]}", name)
            if name in named:
                return getattr(importlib.import_module(f"{module.__name__}.{named[name]}"), name)
            if not name.startswith("__"):
                folder = Path(loader.path).parent
                if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
                    return importlib.import_module(f"{module.__name__}.{name}")
                for part in starred:
                    if _defines(folder, part, name):
                        return getattr(importlib.import_module(f"{module.__name__}.{part}"), name)
            if "__getattr__" in module.__dict__:
                del module.__dict__["__getattr__"]
                # whatever runs now may import parts of them, which a lazy whole does not bear
                for heavy in _HEAVY:
                    getattr(importlib.import_module(heavy), "__version__", None)
                super(_Package, loader).exec_module(module)
            return getattr(module, name)

        module.__dict__["__getattr__"] = attribute


class _Deferred:
    """A class or function of a module that is imported when it is called or looked into."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(self._module), self._name)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(importlib.import_module(self._module), self._name), name)


def _sources(init: Path) -> tuple[dict[str, str], list[str]]:
    """What an __init__.py takes by name from which submodule, and the submodules of which it takes
    everything.
    """
    named: dict[str, str] = {}
    starred = []
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            for alias in node.names:
                if alias.name == "*":
                    starred.append(node.module)
                elif alias.asname in (None, alias.name):
                    named[alias.name] = node.module
    return named, starred


def _defines(folder: Path, part: str, name: str) -> bool:
    """Whether a submodule, or a module in a subpackage, defines a name at its top level."""
    path = folder.joinpath(*part.split("."))
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    pattern = re.compile(
        rf"^(?:class|def) {re.escape(name)}\b|^{re.escape(name)}\s*[:=]", re.MULTILINE
    )
    return any(
        file.is_file() and pattern.search(file.read_text(encoding="utf-8")) for file in files
    )
