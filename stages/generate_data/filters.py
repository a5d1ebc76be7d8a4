"""The filters that every row passes, in the order of `data.filters`, over all sources together;
each counted, each removal noted.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.questions import Bad, normalize
from stages.common.reports.data import Hits
from stages.common.schema import Data
from stages.generate_data import grams, minhash
from stages.generate_data.overlap import Hit, Index
from stages.generate_data.rows import Counts, Row, Seen, answer_of, kind_of, record, seen
from stages.generate_data.spool import Spool
from stages.generate_data.texts import turns
from stages.generate_data.tokens import TemplateRefusedError

COUNTED = {"decontamination": "contaminated"}
"""Filters whose count has another name."""
_EXAMPLES = 3
_FEWEST_LETTERS = 40  # below which the language of a text is a guess
_REFUSAL = re.compile(
    r"\s*(?:(?:i'?m|i am|we'?re) (?:really |very |so |truly"
    r" )?(?:sorry|afraid)\b.{0,60}?\b(?:can'?t|cannot|unable|won'?t|not able)\b"
    r"|(?:sorry|unfortunately|apologies|my apologies)\b.{0,40}?\bi (?:can'?t|cannot|am unable|am"
    r" not able|won'?t)\b"
    r"|i (?:can'?t|cannot|am unable to|am not able to|won'?t)"
    r" (?:assist|help|answer|provide|comply|fulfill?|do that|complete|create)\b"
    r"|as an? (?:ai|artificial intelligence|(?:large )?language model)\b"
    r"|i do(?:n'?t| not) have (?:access to|the ability to|personal (?:opinions|experiences))\b)",
    re.IGNORECASE | re.DOTALL,
)


def digest(*texts: str) -> int:
    """64 bits of BLAKE2b: two of a million different rows share one with probability 3e-8."""
    whole = "\0".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(whole, digest_size=8).digest(), "little")


@dataclass
class Filters:
    """The filters of one run, what they have seen, and where their rows go.

    Args:
        count_tokens: the lengths of whole conversations and texts as the model sees them.
        cutoff_len: tokens; a longer conversation is removed, never cut, since a cut one ends where
            its answer does not. Plain text may be longer, since LLaMA-Factory makes full windows of
            it.
        reject: writes a line about a removed row.
    """

    data: Data
    index: Index
    count_tokens: Callable[[list[Seen]], list[int]]
    cutoff_len: int
    spool: Spool
    scratch: Path
    reject: Callable[[dict[str, Any]], None]
    counts: dict[str, Counts]
    hits: Counter[Hit] = field(default_factory=Counter)
    searched: Counter[str] = field(default_factory=Counter)
    flow: dict[str, dict[str, Any]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    # what is wrong with a source's bad rows
    why: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    # keys of a source's rows that change nothing
    unused: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _seen: set[int] = field(default_factory=set)
    # sources whose rows were searched before their teacher was asked
    _cleaned: set[str] = field(default_factory=set)
    _near: minhash.NearDuplicates | None = None

    def __post_init__(self) -> None:
        self.flow = {name: {"in": 0, "out": 0, "examples": []} for name in self.data.filters}
        if self.data.near_duplicates:
            self._near = minhash.NearDuplicates(
                self.data.near_duplicates, self.scratch / "signatures"
            )

    def keep(self, rows: Sequence[Row]) -> int:
        """Put the rows that pass into the spool, in their order; returns how many did."""
        left = list(rows)
        tokens: list[int] = []
        for name in self.data.filters:
            if not left:
                return 0
            if name == "too_long":
                tokens = self._lengths(left)
                verdicts = [
                    f"{count} tokens" if count > self.cutoff_len and not row.question.plain else ""
                    for row, count in zip(left, tokens, strict=True)
                ]
                tokens = [
                    count for count, verdict in zip(tokens, verdicts, strict=True) if not verdict
                ]
            else:
                verdicts = getattr(self, f"_{name}")(left)
            left = self._remove(name, left, verdicts)
        if len(tokens) != len(left):
            tokens = self._lengths(left)
        sources = list(self.data.sources)
        for row, count in zip(left, tokens, strict=True):
            question = row.question
            self.kinds[kind_of(question)] += 1
            group = (
                question.category
                if self.data.stratify.startswith("category")
                else question.difficulty
            )
            self.spool.add(
                record(question, self.data.think_tags),
                tokens=count,
                source=sources.index(row.source),
                group=group if self.data.stratify else "",
                question=digest(normalize(question.question)),
            )
        return len(left)

    def clean(self, rows: Sequence[Row]) -> list[Row]:
        """Only the decontamination, before a teacher is asked: no benchmark item is shown to it,
        and none is paid for.
        """
        self._cleaned.update(row.source for row in rows)
        self.searched.update(row.source for row in rows)
        return self._remove("decontamination", list(rows), self._decontamination(rows))

    def bad(self, source: str, row: Bad, key: str = "bad") -> Bad:
        """Count and note a row that cannot be used, as it is returned: with nothing of the
        benchmark in its beginning and its reason.
        """
        setattr(self.counts[source], key, getattr(self.counts[source], key) + row.rows)
        if hits := self.index.find([row.raw, unescaped(row.raw), row.reason], ""):
            self.hits.update(hits)  # found, though nobody would have trained on it
            # the reason may quote the row, as where a table without a header has an item for its
            # names
            row = Bad(row.where, "not told, because the row holds a benchmark item", rows=row.rows)
        self.reject(
            {
                "source": source,
                "where": row.where,
                "filter": key,
                "reason": row.reason,
                "row": row.raw,
            }
        )
        if key == "bad":
            self.why[source][row.reason] += row.rows
        return row

    def _remove(self, name: str, rows: list[Row], verdicts: Sequence[str]) -> list[Row]:
        flow, key = self.flow[name], COUNTED.get(name, name)
        flow["in"] += len(rows)
        kept = []
        for row, verdict in zip(rows, verdicts, strict=True):
            if not verdict:
                kept.append(row)
                continue
            counts = self.counts[row.source]
            setattr(counts, key, getattr(counts, key) + 1)
            self.reject(
                {"source": row.source, "where": row.where, "filter": key, "reason": verdict}
            )
            if len(flow["examples"]) < _EXAMPLES:
                flow["examples"].append(f"{row.source} {row.where}: {verdict}")
        flow["out"] += len(kept)
        return kept

    def _lengths(self, rows: Sequence[Row]) -> list[int]:
        """Of a pair, the longer of its two conversations."""
        parts = [seen(row.question, self.data.think_tags) for row in rows]
        try:
            flat = iter(self.count_tokens([one for part in parts for one in part]))
        except TemplateRefusedError as error:
            owners = [
                row
                for row, part in zip(rows, parts, strict=True)
                for one in part
                if not isinstance(one, str)
            ]
            places = list(
                dict.fromkeys(
                    f"{owners[number].source} {owners[number].where}" for number in error.numbers
                )
            )
            more = f" and {len(places) - _EXAMPLES} more" if len(places) > _EXAMPLES else ""
            error.where = f"{', '.join(places[:_EXAMPLES])}{more}"
            raise
        return [max(next(flat) for _ in part) for part in parts]

    # --- one verdict a row: "" keeps it, anything else says why not; never text of the row

    def _empty(self, rows: Sequence[Row]) -> list[str]:
        return [
            (
                ""
                if row.question.question.strip()
                and (row.question.plain or row.question.answer.strip())
                else "no answer"
            )
            for row in rows
        ]

    def _refusal(self, rows: Sequence[Row]) -> list[str]:
        return [
            (
                "the answer refuses"
                if _REFUSAL.match(row.question.answer.replace("\u2019", "'"))
                else ""
            )
            for row in rows
        ]

    def _format(self, rows: Sequence[Row]) -> list[str]:
        return [
            (
                ""
                if row.question.plain
                else badly_formed(answer_of(row.question, self.data.think_tags), self.data)
            )
            for row in rows
        ]

    def _language(self, rows: Sequence[Row]) -> list[str]:
        import py3langid

        verdicts = []
        for row in rows:
            text = f"{row.question.question}\n{row.question.reasoning}\n{row.question.answer}"
            letters = sum(character.isalpha() for character in text)
            found = (
                py3langid.classify(text)[0]
                if letters >= _FEWEST_LETTERS or not text.isascii()
                else ""
            )
            verdicts.append(
                f"language {found}" if found and found not in self.data.languages else ""
            )
        return verdicts

    def _duplicates(self, rows: Sequence[Row]) -> list[str]:
        verdicts = []
        for row in rows:
            q = row.question
            key = digest(
                *(part for turn in q.context for part in turn),
                q.question,
                q.reasoning,
                q.answer,
                q.rejected,
                str(q.label),
            )
            verdicts.append("the same row came before" if key in self._seen else "")
            self._seen.add(key)
        return verdicts

    def _near_duplicates(self, rows: Sequence[Row]) -> list[str]:
        assert self._near
        texts = [
            [
                word
                for text in (
                    *(t for _, t in r.question.context),
                    r.question.question,
                    r.question.reasoning,
                    r.question.answer,
                )
                for word in grams.words(text)
            ]
            for r in rows
        ]
        given = grams.block(texts)
        starts, hashes = grams.runs_of(given.hashes, given.text, minhash.WORDS)
        counts = np.bincount(given.text[starts], minlength=len(rows))
        # of one or two words there is no run of three: only exact duplicates count
        long = counts > 0
        flags = iter(self._near.add(minhash.signatures(hashes, counts[long])) if long.any() else [])
        return ["nearly the same as an earlier row" if has and next(flags) else "" for has in long]

    def _decontamination(self, rows: Sequence[Row]) -> list[str]:
        verdicts = []
        for row, hits in zip(
            rows, self.index.find_all([turns(row.question) for row in rows]), strict=True
        ):
            self.searched[row.source] += row.source not in self._cleaned
            self.hits.update(hits)
            verdicts.append(
                ", ".join(f"{hit.match} match with {hit.benchmark} {hit.split}" for hit in hits)
            )
        return verdicts

    def close(self) -> None:
        """Give up the scratch files, and remove them."""
        self.spool.close()
        if self._near:
            self._near.close()
        shutil.rmtree(self.scratch)

    def remarks(self) -> list[str]:
        """What a person should know of the sources: what is wrong with bad rows, and which keys of
        their rows were not used.
        """
        found = []
        for name, source in self.data.sources.items():
            found += [
                f"{name}: {rows} bad: {reason:.200}"
                for reason, rows in self.why[name].most_common(_EXAMPLES)
            ]
            if keys := sorted({*self.unused[name], *source.ignore}):
                found.append(f"{name}: keys of its rows that are not used: {', '.join(keys):.500}")
        return found

    def hit_list(self) -> list[Hits]:
        return [Hits(**asdict(hit), rows=rows) for hit, rows in sorted(self.hits.items())]


def unescaped(raw: str) -> str:
    """JSON as a reader sees it: its escapes would hide words."""
    return re.sub(
        r"\\(?:u([0-9a-fA-F]{4})|.)",
        lambda escape: chr(int(escape[1], 16)) if escape[1] else " ",
        raw,
    )


def badly_formed(answer: str, data: Data) -> str:
    """What is wrong with an answer's form, "" where nothing is."""
    needed = [
        *data.required_tags,
        *(
            tag
            for tag in ("<think>", "</think>")
            if data.think_tags and tag not in data.required_tags
        ),
    ]
    if missing := [tag for tag in needed if tag not in answer]:
        return f"{missing[0]} is missing"
    opened, closed = answer.count("<think>"), answer.count("</think>")
    if opened or closed:
        if (opened, closed) != (1, 1) or answer.index("<think>") > answer.index("</think>"):
            return "the <think> tags do not match"
        if not any(
            unicodedata.category(character)[0] in "LNSP"
            for character in answer.rpartition("</think>")[2]
        ):
            return "nothing after </think>"
    return ""
