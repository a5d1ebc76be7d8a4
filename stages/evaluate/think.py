"""What a model thinks aloud before it answers: taken off before scoring, and counted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    """A reply without its thinking; `unclosed`: the thinking never ended, so that there is no
    answer.
    """

    text: str
    unclosed: bool = False


@dataclass
class Thinking:
    """The tags around a model's thinking ("": it has none), and what was found so far.

    A chat template may end with the opening tag, so that the reply holds the closing one alone;
    `begun` says so. A reply without either tag is then one that was still thinking if it was cut
    off, and else an answer: a model that was trained on answers alone leaves the thinking out.
    """

    opening: str = ""
    closing: str = ""
    begun: bool = False
    counts: dict[str, int] = field(
        default_factory=lambda: {"replies": 0, "characters": 0, "unclosed": 0}
    )

    def strip(self, reply: str, *, cut_off: bool) -> Answer:
        """The answer in a reply: what follows the last closing tag. `cut_off`: the reply ended at
        the limit of its tokens.
        """
        if not self.closing:
            return Answer(reply)
        before, closed, after = reply.rpartition(self.closing)
        opened = self.opening in reply or (self.begun and cut_off)
        if closed:
            self._count(len(before.replace(self.opening, "", 1)))
            return Answer(after.lstrip())
        if opened:
            self._count(len(reply.replace(self.opening, "", 1)))
            self.counts["unclosed"] += 1
            return Answer("", unclosed=True)
        return Answer(reply)

    def _count(self, characters: int) -> None:
        self.counts["replies"] += 1
        self.counts["characters"] += characters
