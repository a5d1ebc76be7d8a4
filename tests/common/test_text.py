"""Text from outside is shown, never obeyed."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from stages.common.text import markdown, plain, visible


@pytest.mark.slow
def test_nothing_unseen_gets_through():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    for step in range(0, len(everything), 50_000):
        shown = visible(everything[step : step + 50_000], 60_000)
        assert not {unicodedata.category(c) for c in shown if c not in "\u200c\u200d"} & {
            "Cc",
            "Cf",
            "Cs",
            "Zl",
            "Zp",
        }
        shown.encode("utf-8")


def test_text_is_cut_to_its_limit_in_little_time():
    assert len(plain("x " * 10_000_000, 100)) == 100
    assert plain(" a \n\t b\r\n ") == "a b"
    assert visible(" a\n") == " a "


def test_markdown_shows_markup_as_it_was_written():
    assert markdown("<b>*x*</b> [a](b) | # `c`") == r"&lt;b&gt;\*x\*&lt;/b&gt; \[a\](b) \| \# \`c\`"
