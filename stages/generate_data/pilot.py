"""A look at what a teacher gives before all of it is paid for: yield and price of the first rows,
and an end where nothing is usable.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from stages.common.errors import PawlError
from stages.common.questions import Bad
from stages.generate_data.rows import Row
from stages.generate_data.teacher import Teacher

ROWS = 20
"""The first rows, asked for alone and told of."""
_LEAST, _WRONGLY = 0.1, 1e-4
IN_A_ROW = math.ceil(math.log(_WRONGLY) / math.log(1 - _LEAST))
"""So many unusable rows in a row end the stage (88): a teacher that is right in one of ten is
stopped by chance once in 10,000 times.
"""


class Pilot:
    """What the teacher of one source gave so far. `where` is the source's key."""

    def __init__(self, where: str, teacher: Teacher) -> None:
        self.where, self.teacher = where, teacher
        self.seen = self.usable = self._barren = 0

    def left(self) -> int:
        """How many rows are still to be asked for alone."""
        return max(0, ROWS - self.seen)

    def watch(self, results: Generator[Any, None, None]) -> Iterator[Any]:
        """The results as they are.

        Raises:
            PawlError: IN_A_ROW of them in a row cannot be used; shows one.
        """
        # while the teacher is still there: what is in flight is paid for, and kept
        with closing(results):
            for result in results:
                is_usable = not isinstance(result, Bad) and (
                    isinstance(result, Row) or not isinstance(result[0], Row)
                )
                self.seen, self.usable = self.seen + 1, self.usable + is_usable
                self._barren = 0 if is_usable else self._barren + 1
                if self.seen == ROWS:
                    self._tell()
                if self._barren == IN_A_ROW:
                    raise self._stopped(result)
                yield result

    def _tell(self) -> None:
        spent = self.teacher.usage
        tokens = (spent.prompt_tokens + spent.output_tokens) / ROWS
        price = (
            f"{spent.cost / ROWS:.3g} and {tokens:.0f} tokens a row asked for"
            if spent.cost
            else f"{tokens:.0f} tokens a row asked for"
        )
        print(
            f"generate_data: {self.where}: pilot: {self.usable} of the first {ROWS} rows are"
            f" usable, {price}",
            flush=True,
        )

    def _stopped(self, result: Any) -> PawlError:
        where, why, said = (
            (result.where, result.reason, result.raw)
            if isinstance(result, Bad)
            else (result[0].where, *result[1:])
        )
        asked = (
            "" if isinstance(result, Bad) else f"\n    asked: {_line(result[0].question.question)}"
        )
        known = (
            ""
            if isinstance(result, Bad) or not result[0].question.answer
            else f"\n    right: {_line(result[0].question.answer)}"
        )
        what = (
            f"{IN_A_ROW} rows in a row of {self.teacher.llm.model} cannot be used ({self.usable} of"
            f" {self.seen} could)"
        )
        fix = (
            f"take a stronger model for {self.teacher.where}, easier questions or more candidates,"
            " or see that verify suits the answers"
        )
        shown = f"; the last, {where}: {why}{asked}{known}\n    reply: {_line(said)}"
        return PawlError(what + shown, where=self.where, fix=f"{fix}; what was paid for is kept")


def _line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 300 else f"{flat[:150]} ... {flat[-150:]}"
