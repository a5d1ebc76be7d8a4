"""Registers Pawl's schema and its checks with Hydra, inside `dvc exp run` too (DVC loads plugins
from `hydra.plugins_path`).
"""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[4])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)  # DVC composes in its own process, which does not know this repository

from hydra.core.config_store import ConfigStore  # noqa: E402 - needs the path above

from stages.common.config import guard_composition  # noqa: E402 - needs the path above
from stages.common.schema import Config  # noqa: E402 - needs the path above

ConfigStore.instance().store(name="schema", node=Config)
guard_composition()
