"""What was fetched, kept on disk with its date, so that a run that is taken up again pays and waits
for nothing twice.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from stages.common.files import ROOT, sha256_text, write_json

FOLDER = ROOT / ".pawl" / "agent"
"""Where the agent keeps what costs something to make again."""


class Cache:
    """Texts by name in a folder; older than `keep_s` seconds they are gone. A broken file is no
    entry.
    """

    def __init__(self, folder: Path, keep_s: float) -> None:
        self.folder, self.keep_s = folder, keep_s

    def _path(self, name: str) -> Path:
        return self.folder / f"{sha256_text(name)[:32]}.json"

    def get(self, name: str) -> str | None:
        return self.dated(name)[0]

    def dated(self, name: str) -> tuple[str | None, str]:
        """The text and the day (UTC) on which it was fetched."""
        try:
            entry = json.loads(self._path(name).read_text(encoding="utf-8"))
            if entry["name"] == name and time.time() - float(entry["at"]) < self.keep_s:
                return str(entry["text"]), time.strftime(
                    "%Y-%m-%d", time.gmtime(float(entry["at"]))
                )
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None, ""

    def put(self, name: str, text: str) -> None:
        write_json(
            self._path(name),
            {
                "name": name,
                "at": time.time(),
                "text": text.encode("utf-8", "replace").decode("utf-8"),
            },
        )
