"""What a language model says about an experiment: words that are checked, and a veto. It cannot
accept anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stages.common.chat import NoReply, Structured, structured
from stages.common.errors import PawlError
from stages.common.reports.verdict import Judged, Opinion, Words
from stages.common.schema import LLM, Judge
from stages.common.text import plain
from stages.judge import prompt, words
from stages.judge.inputs import Inputs, read_former, read_items
from stages.judge.leaks import Guard
from stages.judge.samples import draw
from stages.judge.words import BENCHMARK, IMPLEMENTATION

LONGEST = 4000
"""Characters of one field of a reply."""


def schema(fields: dict[str, list[str] | None]) -> dict[str, Any]:
    """The JSON schema of an object with these string fields; a list holds the values that are
    allowed.
    """
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", **({"enum": values} if values else {})}
            for name, values in fields.items()
        },
        "required": list(fields),
        "additionalProperties": False,
    }


VERDICT = schema({"Code Summary": None, "Reason": None, "Decision": ["yes", "no"]})


def opine(
    root: Path,
    judge: Judge,
    judged: Judged,
    known: dict[str, Any],
    inputs: Inputs,
    settings: dict[str, Any],
) -> tuple[Words | None, Opinion]:
    """Ask the language model; a server that fails leaves an opinion without words, and says why."""
    items = read_items(root)
    samples = draw(
        inputs.candidate.rows, items, judge.max_error_samples, judge.seed, prompt.thinks(settings)
    )
    former = read_former(root, judged.experiment.incumbent)
    asked = prompt.experiment(judged, known, inputs, settings, former, samples)
    public = prompt.experiment(judged, known, inputs, settings, former, [])
    replies = {
        text
        for side in (inputs.candidate, inputs.incumbent)
        for text in side.rows["prediction"].to_pylist()
    }
    guard = Guard(
        items.values(), replies, samples, "\n".join(message["content"] for message in public)
    )
    try:
        opinion = _ask(judge.llm, asked, guard)
    except PawlError as error:
        told = error.what[:400]
        opinion = _nothing(
            "its reply was not valid, and repeats benchmark content" if guard.leaks(told) else told
        )
        opinion |= _paid([error] if isinstance(error, NoReply) else [])
    decision = opinion["decision"]
    opinion |= {
        "model": judge.llm.model,
        "veto": decision == "no" and judged.accepted,
        "disagreement": bool(decision) and (decision == "yes") != judged.accepted,
    }
    if opinion["veto"] and not opinion["words"]:  # the fact stays, the words go
        told = (
            f"{plain(judge.llm.model, 80)} vetoes an acceptance that the evidence carries; its"
            " reason repeated benchmark content."
        )
        opinion["words"] = {
            "Code Summary": words.put_into_words(known).summary,
            "Reason": told,
            "Decision": "no",
        }
    if opinion["words"]:
        opinion["words"]["Reason"] = labelled(opinion["words"]["Reason"], known, opinion["veto"])
    said = opinion.pop("words")
    return said and Words.model_validate(said), Opinion(**opinion)


def _ask(llm: LLM, messages: list[dict[str, str]], guard: Guard) -> dict[str, Any]:
    """One reply, and one more where the first one leaks; what still leaks then is cut."""
    got = structured(llm, messages, VERDICT)
    spent: list[Structured | NoReply] = [got]
    texts = _texts(got)
    found = [sentence for text in texts.values() for sentence in guard.found(text)]
    if found:
        told = {"role": "assistant", "content": got.raw[:LONGEST]}
        try:
            got = structured(llm, [*messages, told, prompt.again(found)], VERDICT)
            spent, texts = [*spent, got], _texts(got)
        except NoReply as error:
            # paid for all the same; the first reply stands, without the sentences that leak
            spent.append(error)
    left = sum(len(guard.found(text)) for text in texts.values())
    kept = {name: guard.cut(text) for name, text in texts.items()}
    account = {
        "decision": got.value["Decision"],
        "leaks": {"found": len(found), "cut": left},
        "repaired": any(each.repaired for each in spent if isinstance(each, Structured)),
        **_paid(spent),
        **({"answered_as": got.answered_as} if got.answered_as else {}),
        **({"not_sent": list(got.not_sent)} if got.not_sent else {}),
    }
    if not kept["Reason"]:
        return {
            **account,
            "words": None,
            "failed": (
                "nothing of its reason was left after the sentences that repeat benchmark content"
            ),
        }
    return {**account, "words": {**kept, "Decision": got.value["Decision"]}, "failed": ""}


def _paid(asked: Iterable[Structured | NoReply]) -> dict[str, Any]:
    """What the calls cost, those too that brought no reply that can be used."""
    calls = list(asked)
    return {
        name: sum(getattr(each, name) for each in calls)
        for name in ("prompt_tokens", "output_tokens", "cost")
    }


def _texts(got: Structured) -> dict[str, str]:
    return {
        name: " ".join(got.value[name][:LONGEST].split()) for name in ("Code Summary", "Reason")
    }


def _nothing(why: str) -> dict[str, Any]:
    return {
        "words": None,
        "decision": "",
        "failed": why,
        "leaks": {"found": 0, "cut": 0},
        "repaired": False,
        "prompt_tokens": 0,
        "output_tokens": 0,
        "cost": 0.0,
    }


def labelled(reason: str, known: dict[str, Any], veto: bool) -> str:
    """The reason with the one label in front that the verdict carries; a label that contradicts the
    verdict is taken away.
    """
    bare, own = reason, ""
    for label in (BENCHMARK, IMPLEMENTATION):
        if bare.lstrip().startswith(label):
            bare, own = bare.replace(label, "", 1).strip(), label
    if known["accepted"] and not veto:
        return bare
    if veto:
        wanted = own or IMPLEMENTATION
    else:
        wanted = known["label"] or (own if own == IMPLEMENTATION else "")
    return f"{wanted} {bare}".strip()
