"""Made-up training rows of every kind that LLaMA-Factory's stages learn from, as the data stage
writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.common.files import write_json, write_jsonl

_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "observation",
    "function_tag": "function",
}
_CHAT: dict[str, Any] = {"formatting": "sharegpt", "tags": _TAGS}
INFO: dict[str, dict[str, Any]] = {
    "sft": {**_CHAT, "columns": {"messages": "messages"}},
    "dpo": {
        **_CHAT,
        "ranking": True,
        "columns": {"messages": "messages", "chosen": "chosen", "rejected": "rejected"},
    },
    "kto": {**_CHAT, "columns": {"messages": "messages", "kto_tag": "label"}},
    "pt": {"columns": {"prompt": "text"}},
}
INFO["rm"] = INFO["dpo"]


def row(stage: str, number: int, answer: str = "") -> dict[str, Any]:
    good = answer or f"{number} and {number + 1}"
    asked = {"role": "user", "content": f"Count from {number}."}
    said = {"role": "assistant", "content": good}
    if stage == "pt":
        return {"text": f"{asked['content']} {good}. " * 8}
    if stage in ("dpo", "rm"):
        return {
            "messages": [asked],
            "chosen": said,
            "rejected": {"role": "assistant", "content": answer or "no"},
        }
    return {"messages": [asked, said]} | ({"label": number % 2 == 0} if stage == "kto" else {})


def write_data(
    folder: Path, stage: str, rows: int = 48, held_out: int = 0, answer: str = ""
) -> Path:
    info = {"train": INFO[stage] | {"file_name": "train.jsonl"}}
    write_jsonl(folder / "train.jsonl", (row(stage, number, answer) for number in range(rows)))
    if held_out:
        info["eval"] = INFO[stage] | {"file_name": "eval.jsonl"}
        write_jsonl(
            folder / "eval.jsonl", (row(stage, 100 + number, answer) for number in range(held_out))
        )
    write_json(folder / "dataset_info.json", info)
    return folder
