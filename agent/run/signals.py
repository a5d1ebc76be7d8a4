"""Ctrl-C and its like, so that an experiment that is stopped still puts the tree back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt; more are ignored, so that the
    tree is put back in peace.

    Gives a function that ignores them from then on.
    """
    signals = [
        each
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN or each == signal.SIGINT
    ]

    def shield() -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)

    def interrupt(number: int, _: Any) -> None:
        shield()
        raise KeyboardInterrupt(number)

    before = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield shield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
