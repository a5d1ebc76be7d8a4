"""A file that one stage writes and another reads, as a model: what is in it, and one error if it is
broken.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from stages.common.errors import PawlError
from stages.common.files import read_object, without_repeats, write_json
from stages.common.redaction import redact

LARGEST = 1e18
"""A figure beyond this was never measured."""
LARGEST_COUNT = 2**53
"""Beyond it, JSON's readers disagree on a whole number."""
_NAME = re.compile(r"[\w()-]{1,40}( [\w-]{1,20})?")
"""A key that an error may show. Longer ones could be texts of an item."""


def _figure(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= LARGEST:  # NaN is never at most
        raise ValueError("should be a number")
    return value


Figure = Annotated[float, PlainValidator(_figure)]
"""A finite number. A whole one stays whole, so that it is written as it was read."""
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Share = Annotated[Figure, Field(ge=0, le=1)]


class Part(BaseModel):
    """A part of a report.

    A key that is not declared is kept: another version may have written it. A key that was not set
    is not written.
    """

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, allow_inf_nan=False, serialize_by_alias=True
    )

    def plain(self) -> dict[str, Any]:
        """As a file has it, in its order of keys."""
        ordered: dict[str, Any] = _ordered(self.model_dump(exclude_unset=True))
        return ordered


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(each) for each in value] if isinstance(value, list) else value


class Report(Part):
    """A whole file. `remedy` says what to do if it is broken."""

    remedy: ClassVar[str] = "run 'dvc repro' to make the report again"

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a file.

        Raises:
            PawlError: it is missing, no JSON, or not this report; with the file and the first key
                that is wrong.
        """
        return cls.check(read_object(path), str(path))

    @classmethod
    def find(cls, path: Path | str) -> Self | None:
        """The same, but None if the file is missing or broken: for readers who can do without
        it.
        """
        try:
            return cls.read(path)
        except (PawlError, OSError):
            return None

    @classmethod
    def find_in(cls, text: str | bytes | None) -> Self | None:
        """The report in a text, such as a file of an earlier commit; None if there is none."""
        try:
            return cls.model_validate(json.loads(text or b"", object_pairs_hook=without_repeats))
        except (ValueError, RecursionError):  # of pydantic too
            return None

    @classmethod
    def check(cls, value: Any, where: str) -> Self:
        """A value as this report.

        Raises:
            PawlError: it is something else.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise PawlError(problem(error), where=where, fix=cls.remedy) from None

    def write(self, path: Path | str) -> None:
        write_json(path, self.plain())


def problem(error: ValidationError) -> str:
    """What is wrong first, and at which key. It shows no value: a value may be a secret, or the
    text of an item.
    """
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    key = ".".join(str(part) if _NAME.fullmatch(str(part)) else "..." for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if first["type"] == "missing":
        reason = "is missing"
    elif first["type"] == "extra_forbidden":
        reason = "is unknown here"
    rest = f", and {len(more)} more" if more else ""
    return redact(f"{key} {reason}{rest}".strip())
