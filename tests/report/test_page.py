"""The page: whole, self-contained, the reports' own numbers, and hostile text stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import read_json, write_json
from stages.common.schema import Experiment, Judge
from stages.judge.__main__ import judge_reports
from stages.report import drawing
from stages.report.page import gather, render
from tests.synthetic import make_rows, write_losses, write_run, write_side

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)> {{7*7}} {% if %} "quoted" \' & \x00 \x1b[31m \u202e txet'
VOID = {"meta", "line", "rect", "path", "polyline", "br", "img", "link"}


class Page(HTMLParser):
    """Text and tags of a page; fails where a tag is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def params():
    return read_params("experiment", "model", "data", "benchmark", "train", "engine", "evaluate", "judge")


@pytest.fixture
def run(tmp_path):
    return judged(write_run(tmp_path))


def judged(root, incumbent="reports/baseline", hypothesis="It helps."):
    judge_reports(root, Judge("rules", "rules", 0.05, 0.01, 0.2), Experiment("synthetic", hypothesis, "", incumbent))
    return root


def page(root, params) -> Page:
    return Page(render(gather(root, params)))


def test_the_page_shows_the_reports_own_numbers(run, params):
    text = page(run, params).text
    pooled = read_json(run / "reports/judge.json")["evidence"]["pooled"]
    assert "Accepted." in text and f"{100 * pooled['difference']:+.1f} points" in text
    for name, split in (("eval_val", "val"), ("baseline", "val"), ("eval_test", "test"), ("baseline", "test")):
        for scores in read_json(run / "reports" / name / f"{split}.json")["benchmarks"].values():
            assert f"{100 * scores['accuracy']:.1f} %" in text and f"{100 * scores['lenient']:.1f} %" in text


def test_the_page_asks_nothing_of_the_network_and_runs_nothing(run, params):
    html = render(gather(run, params))
    tags = Page(html).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    assert not [attrs for _, attrs in tags if any(name in attrs for name in ("src", "href", "srcset", "action"))]
    assert not re.search(r"url\(|@import|https?://", html)
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on")]


def test_test_scores_are_folded_away_and_nowhere_else(run, params):
    path = run / "reports/eval_test/test.json"
    summary = read_json(path)
    summary["overall"]["accuracy"] = 0.4321
    write_json(path, summary)
    before, _, after = render(gather(run, params)).partition("<h2>Test scores</h2>")
    folded = after[after.index("<details") : after.index("</details>")]
    assert "43.2&nbsp;%" in folded and "43.2&nbsp;%" not in before + after.replace(folded, "")
    assert "<details open" not in before + after and "No decision has read them" in folded


def test_hostile_text_stays_text(run, params):
    params.experiment.name = params.experiment.hypothesis = params.model.name = params.benchmark.name = HOSTILE
    for name in ("eval_val", "baseline"):
        write_side(run / "reports" / name, make_rows(0.5, 10, seed=len(name), tasks=(HOSTILE, "b")))
    write_json(run / "reports/build_benchmark.json", {"tasks": {HOSTILE: {"val": 10}, "b": {"val": 10}}})
    judged(run, hypothesis=HOSTILE)
    html = render(gather(run, params))
    shown = Page(html)
    assert not {tag for tag, _ in shown.tags} & {"script", "img"} and "{{7*7}}" in shown.text and "alert(1)" in shown.text
    assert not set(html) & {"\x00", "\x1b", "\u202e"}
    assert not [attrs for _, attrs in shown.tags if "onerror" in attrs]


def test_a_megabyte_of_text_stays_readable(run, params):
    params.experiment.hypothesis = "x" * 1_000_000
    assert len(render(gather(run, params))) < 200_000


def test_identical_runs_differ_only_in_the_line_of_timings(run, params):
    first = render(gather(run, params))
    for name in ("eval_val/val.json", "baseline/val.json", "eval_test/test.json", "train.json"):
        report = read_json(run / "reports" / name)
        changed = {key: 999.0 for key in ("runtime_s", "tokens_per_s", "peak_memory_gib") if key in report}
        write_json(run / "reports" / name, {**report, **changed})
    second = render(gather(run, params))
    differing = [line for line in zip(first.splitlines(), second.splitlines(), strict=True) if line[0] != line[1]]
    assert len(differing) == 1 and 'id="timings"' in differing[0][0]


def test_the_baseline_is_drawn_beside_another_incumbent(run, params):
    write_side(run / "experiments" / "0001-first", make_rows(0.4, seed=8))
    text = page(judged(run, "experiments/0001-first"), params).text
    assert "incumbent, strict" in text and "baseline, lenient" in text and "candidate, strict" in text


def test_lists_keep_their_blanks(run, params):
    assert "validation of the candidate 240 s, validation of the baseline" in page(run, params).text


def test_a_veto_and_an_open_question_are_said_at_the_top(run, params):
    write_side(run / "reports/eval_val", make_rows(0.7, seed=2), items_sha256="f" * 64)
    text = page(judged(run), params).text
    assert "Rejected." in text and "Veto: items_sha256" in text


@pytest.mark.parametrize("losses", [[], [1.0], [float("nan"), float("inf")], [0.0, 0.0, 0.0], [1e9, 1e-9], [3.0, 2.0, float("nan")]])
def test_any_loss_curve_makes_a_valid_page(run, params, losses):
    write_losses(run / "reports/loss.csv", losses, held_out=losses)
    for tag, attrs in page(run, params).tags:
        if tag in ("polyline", "rect", "line"):
            assert not re.search(r"nan|inf", " ".join(str(value) for value in attrs.values()))


def test_bars_stay_inside_the_drawing():
    for share, n in ((0.0, 1), (1.0, 1), (0.5, 7), (1.0, 10_000)):
        row = drawing.bar("x", "candidate", share, n)
        assert drawing.LEFT <= row["x_low"] <= row["x"] <= row["x_high"] <= drawing.WIDTH - drawing.RIGHT


def test_a_missing_report_or_figure_is_named(run, params):
    report = read_json(run / "reports/train.json")
    del report["runtime_s"]
    write_json(run / "reports/train.json", report)
    with pytest.raises(PawlError, match="runtime_s"):
        gather(run, params)
    (run / "reports/judge.json").unlink()
    with pytest.raises(PawlError, match="missing"):
        gather(run, params)
