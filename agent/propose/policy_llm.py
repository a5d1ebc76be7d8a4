"""The policy with a language model: it reads the state, the history and the knowledge, and replies
with one object under the schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.gates import Known, Refusal
from agent.gates.proposal import SCHEMA, Proposal, from_json
from agent.knowledge.cache import FOLDER
from agent.knowledge.grounding import FIRST_LINE, Knowledge, Passage, shown
from agent.knowledge.history import Record
from agent.propose import situation, words
from agent.run import account
from stages.common.chat import NoReply, Structured, structured
from stages.common.completion import Reply
from stages.common.errors import PawlError
from stages.common.replies import Replies, key_of
from stages.common.schema import LLM

_FORMS = {
    "kb": "[PageID: name], [lib: ...], [model card], [experiment: ...], [situation]",
    "web": "[source](URL), [lib: ...], [model card], [experiment: ...], [situation]",
    "library": "[lib: ...], [model card], [experiment: ...], [situation]",
    "none": "[model card], [situation], [experiment: ...]",
}


_PROBE_S = 60.0
_PROBE = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}


class Unreachable(PawlError):
    """The server gave no answer at all: it is down, refuses the key or the model, or the key is not
    set.
    """


@dataclass(frozen=True)
class Asking:
    """A conversation with the proposer, and for which experiment of which run it is paid."""

    known: Known
    messages: tuple[dict[str, str], ...]
    run: str
    trial: int


def begin(
    known: Known, knowledge: Knowledge, records: Sequence[Record], run: str, trial: int
) -> Asking:
    """The first two messages, within agent.prompt_tokens: half for the history, the rest for the
    state and for what was read.
    """
    room = known.agent.prompt_tokens * words.CHARACTERS
    there = known.situation
    story = words.history_for(records, known, room // 2)
    state = situation.cut(there.text, room // 6)
    read = [passage for passage in knowledge.passages if passage.about != "ours"]
    passages = shown(read, knowledge.questions, max(1000, room // 4 - 1000))
    reported = known.agent.reported[:2000]
    mark = words.fence([story["text"], state, reported, *(passage["text"] for passage in passages)])
    system = words.render(
        "system.j2",
        options=known.agent.options,
        forms=_FORMS[knowledge.mode],
        min_tags=known.agent.min_tags,
        max_ratio=f"{known.agent.max_ratio:g}",
        model=there.model,
        rows=there.rows,
        accuracy="unknown" if there.accuracy is None else f"{there.accuracy:.4f}",
        hardware=there.hardware,
        gain=f"{known.gain:g}",
        first_line=FIRST_LINE["none"] if knowledge.mode == "none" else "",
        fence=mark,
    )
    asked = words.render(
        "propose.j2",
        situation=state,
        reported=reported,
        history=story,
        passages=passages,
        fence=mark,
    )
    return Asking(
        known,
        ({"role": "system", "content": system}, {"role": "user", "content": asked}),
        run,
        trial,
    )


def ask(asking: Asking) -> tuple[Proposal, str]:
    """The proposal, and the reply's text. A reply that was paid for before a kill is read from
    disk.

    Raises:
        Unreachable: no answer at all.
        NoReply: the model answered, and no answer of it was valid.
    """
    llm = asking.known.agent.llm
    key = key_of(
        asking.run, asking.trial, llm.base_url, llm.model, llm.temperature, asking.messages
    )
    paid = None
    with Replies(FOLDER / "replies.sqlite") as replies:
        reply = replies.get(key)
        if reply is None:
            paid = _ask(asking, llm)
            reply = Reply(json.dumps(paid.value), paid.prompt_tokens, paid.output_tokens, "stop")
            replies.put(key, reply)
    # the reply is on disk: a call that is counted twice is better than one that is paid twice
    if paid:
        account.add_call(
            asking.run, asking.trial, "propose", paid.prompt_tokens, paid.output_tokens, paid.cost
        )
    return from_json(json.loads(reply.text), "llm"), reply.text


def _ask(asking: Asking, llm: LLM) -> Structured:
    try:
        return structured(llm, list(asking.messages), SCHEMA)
    except PawlError as error:
        if not isinstance(error, NoReply) or not error.prompt_tokens + error.output_tokens:
            raise Unreachable(error.what, where=error.where, fix=error.fix) from None
        # paid for all the same
        account.add_call(
            asking.run,
            asking.trial,
            "no reply",
            error.prompt_tokens,
            error.output_tokens,
            error.cost,
        )
        raise


def revise(
    asking: Asking,
    reply: str,
    refusals: Sequence[Refusal],
    found: Sequence[Passage],
    hypotheses: Sequence[str],
) -> Asking:
    """The same conversation with the refused reply, the reasons, and what was looked up for its
    hypotheses.

    Only the newest refused reply is kept in it. `asking.known` has to hold what was found.
    """
    passages = shown(found, hypotheses, asking.known.agent.prompt_tokens * words.CHARACTERS // 8)
    mark = words.fence([passage["text"] for passage in passages])
    told = words.render(
        "revise.j2",
        refusals=[str(each)[:500] for each in refusals[:30]],
        passages=passages,
        fence=mark,
    )
    back: tuple[dict[str, str], ...] = (
        {"role": "assistant", "content": reply[:20000]},
        {"role": "user", "content": told},
    )
    return replace(asking, messages=(*asking.messages[:2], *back))


def probe(llm: LLM, run: str) -> None:
    """One short question before a run begins. Any answer will do: whether a proposal is good, the
    gates say.

    Raises:
        Unreachable: no answer at all.
    """
    asked = [
        {"role": "user", "content": 'Reply with the JSON object {"ready": true} and nothing else.'}
    ]
    quick = replace(llm, retries=min(llm.retries, 1), timeout_s=min(llm.timeout_s, _PROBE_S))
    try:
        reply = structured(quick, asked, _PROBE, repairs=0)
        account.add_call(run, 1, "probe", reply.prompt_tokens, reply.output_tokens, reply.cost)
    except PawlError as error:
        if not isinstance(error, NoReply) or not error.prompt_tokens + error.output_tokens:
            raise Unreachable(
                error.what,
                where=error.where or "agent.llm",
                fix=f"{error.fix}; or: --policy optuna",
            ) from None
        account.add_call(run, 1, "probe", error.prompt_tokens, error.output_tokens, error.cost)
