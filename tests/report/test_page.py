"""The page: whole, self-contained, the reports' own numbers, and hostile text stays text."""

from __future__ import annotations

import json
import math
import re
import subprocess
from html.parser import HTMLParser

import pytest

from stages.common import noise
from stages.common.config import read_params
from stages.common.errors import PawlError
from stages.common.files import read_json, write_json
from stages.common.reports.evaluation import EvalSummary
from stages.common.schema import Experiment, Judge
from stages.judge.__main__ import judge_reports
from stages.report import charts, lineage
from stages.report.__main__ import show
from stages.report.page import _losses, gather, render
from stages.report.samples import EACH, error_samples
from tests.golden import HERE
from tests.report.history import HOSTILE, write_experiment, write_search
from tests.synthetic import make_row, make_rows, write_losses, write_run, write_side

VOID = {"meta", "rect", "polyline", "br", "img", "link"}
INTERNAL = re.compile(r"#[\w-]+")


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


@pytest.fixture(autouse=True, scope="module")
def drawn_once():
    """The same chart is drawn once: most tests here have the same run."""
    real, known = charts.draw, {}

    def draw(chart, label):
        key = (chart.func, repr((chart.args, chart.keywords)), label)
        if key not in known:
            known[key] = real(chart, label)
        return known[key]

    charts.draw = draw
    yield
    charts.draw = real


@pytest.fixture
def params():
    return read_params(
        "experiment", "model", "data", "benchmark", "train", "engine", "evaluate", "judge"
    )


@pytest.fixture
def run(tmp_path):
    return judged(write_run(tmp_path))


def judged(root, incumbent="reports/baseline", hypothesis="It helps."):
    judge_reports(
        root,
        Judge("rules", "rules", 0.05, 0.01, 0.2),
        Experiment("synthetic", hypothesis, "", incumbent),
    )
    return root


def page(root, params) -> Page:
    return Page(render(gather(root, params)))


@pytest.mark.slow
def test_the_page_shows_the_reports_own_numbers(run, params):
    text = page(run, params).text
    pooled = read_json(run / "reports/judge.json")["evidence"]["pooled"]
    assert "Accepted." in text and f"{100 * pooled['difference']:+.1f} points" in text
    for name, split in (
        ("eval_val", "val"),
        ("baseline", "val"),
        ("eval_test", "test"),
        ("baseline", "test"),
    ):
        for scores in read_json(run / "reports" / name / f"{split}.json")["benchmarks"].values():
            assert (
                f"{100 * scores['accuracy']:.1f} %" in text
                and f"{100 * scores['lenient']:.1f} %" in text
            )


def test_the_page_asks_nothing_of_the_network_and_runs_nothing(run, params):
    html = render(gather(run, params))
    tags = Page(html).tags
    assert not {tag for tag, _ in tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
    }
    assert not [
        attrs
        for _, attrs in tags
        if any(name in attrs for name in ("src", "srcset", "action", "xlink:href", "target"))
    ]
    assert all(INTERNAL.fullmatch(attrs["href"] or "") for _, attrs in tags if "href" in attrs)
    assert not re.search(r"url\((?!#)|@import|https?://", html)
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on")]


@pytest.mark.slow
def test_test_scores_are_folded_away_and_nowhere_else(run, params):
    path = run / "reports/eval_test/test.json"
    summary = read_json(path)
    summary["overall"]["accuracy"] = 0.4321
    write_json(path, summary)
    before, _, after = render(gather(run, params)).partition('<h2 id="test">Test scores</h2>')
    folded = after[after.index("<details") : after.index("</details>")]
    assert "43.2&nbsp;%" in folded and "43.2&nbsp;%" not in before + after.replace(folded, "")
    assert "<details open" not in before + after and "No decision has read them" in folded


def test_hostile_text_stays_text(run, params):
    params.experiment.name = params.experiment.hypothesis = params.model.name = (
        params.benchmark.name
    ) = HOSTILE
    for name in ("eval_val", "baseline"):
        write_side(run / "reports" / name, make_rows(0.5, 10, seed=len(name), tasks=(HOSTILE, "b")))
    write_json(
        run / "reports/build_benchmark.json", {"tasks": {HOSTILE: {"val": 10}, "b": {"val": 10}}}
    )
    judged(run, hypothesis=HOSTILE)
    html = render(gather(run, params))
    shown = Page(html)
    assert (
        not {tag for tag, _ in shown.tags} & {"script", "img"}
        and "{{7*7}}" in shown.text
        and "alert(1)" in shown.text
    )
    assert not set(html) & {"\x00", "\x1b", "\u202e"}
    assert not [attrs for _, attrs in shown.tags if "onerror" in attrs]


def test_a_megabyte_of_text_stays_readable(run, params):
    params.experiment.hypothesis = "x" * 1_000_000
    assert len(render(gather(run, params))) < 200_000


def test_identical_runs_differ_only_in_the_line_of_timings(run, params):
    first = render(gather(run, params))
    for name in ("eval_val/val.json", "baseline/val.json", "eval_test/test.json", "train.json"):
        report = read_json(run / "reports" / name)
        changed = {
            key: 999.0 for key in ("runtime_s", "tokens_per_s", "peak_memory_gib") if key in report
        }
        write_json(run / "reports" / name, {**report, **changed})
    second = render(gather(run, params))
    differing = [
        line
        for line in zip(first.splitlines(), second.splitlines(), strict=True)
        if line[0] != line[1]
    ]
    assert len(differing) == 1 and 'id="timings"' in differing[0][0]


def test_the_baseline_is_drawn_beside_another_incumbent(run, params):
    write_side(run / "experiments" / "0001-first", make_rows(0.4, seed=8))
    content = gather(judged(run, "experiments/0001-first"), params)
    sides = [row["side"] for row in content["scores"] if row["benchmark"] == "All items"]
    assert sides == ["candidate", "incumbent", "baseline"]
    assert all(f"All items, {side}: " in content["scores_chart"]["wide"] for side in sides)


def test_a_veto_and_an_open_question_are_said_at_the_top(run, params):
    write_side(run / "reports/eval_val", make_rows(0.7, seed=2), items_sha256="f" * 64)
    text = page(judged(run), params).text
    assert "Rejected." in text and "Veto: items_sha256" in text


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [1.0],
        [float("nan"), float("inf")],
        [0.0, 0.0, 0.0],
        [1e9, 1e-9],
        [3.0, 2.0, float("nan")],
    ],
)
def test_any_loss_curve_makes_a_valid_drawing(losses, tmp_path):
    write_losses(tmp_path / "loss.csv", losses, held_out=losses)
    drawn = _losses(tmp_path / "loss.csv")["curve"]
    assert bool(drawn) == any(math.isfinite(loss) for loss in losses)
    for svg in drawn.values():
        for tag, attrs in Page(svg).tags:
            assert not re.search(
                r"nan|infinity", " ".join(str(value) for value in attrs.values()), re.IGNORECASE
            ), tag


def test_a_long_curve_is_thinned_but_keeps_its_ends():
    points = [{"step": k, "loss": 1.0, "split": "train"} for k in range(100_000)]
    kept = charts.thinned(points)
    assert len(kept) == charts.MOST_POINTS and (kept[0]["step"], kept[-1]["step"]) == (0, 99_999)


def test_drawings_on_one_page_share_no_identifier(run, params):
    found = re.findall(r'\bid="([^"]+)"', render(gather(run, params)))
    assert len(found) == len(set(found))


def test_the_champions_path_and_every_experiment_are_on_the_page(run, params):
    path = write_search(run / "experiments", 30)
    content = gather(run, params)
    assert [card["folder"] for card in content["path"]] == path and content["champion"][
        "folder"
    ] == path[-1]
    shown = Page(render(content))
    ids = {attrs.get("id") for _, attrs in shown.tags}
    assert {f"exp-{k}" for k in range(1, 31)} <= ids
    assert {attrs["href"] for _, attrs in shown.tags if "href" in attrs} <= {
        f"#{name}" for name in ids if name
    }, "a link leads nowhere"
    assert f"The champion is {path[-1]} ; its path: 0001 →" in shown.text


def test_a_card_says_what_was_tried_why_and_what_came_of_it(run, params):
    write_experiment(run / "experiments", 1, "start", "KEPT", changes=[], accuracy=0.4)
    write_experiment(
        run / "experiments",
        2,
        "half-rate",
        "DISCARDED",
        parent="0001-start",
        incumbent="experiments/0001-start",
        accuracy=0.3,
        words={"Reason": "It forgets."},
        cost={"tokens": 1234, "money": 0.05},
    )
    write_experiment(
        run / "experiments",
        3,
        "too-big",
        "CRASHED",
        parent="0001-start",
        reason="dvc repro failed at train: out of memory",
    )
    text = page(run, params).text
    for told in (
        "half-rate helps",
        "train.learning_rate 0.001 → 0.0005",
        "50.0 % → 30.0 %",
        "-20.0 points (-25.0 to -15.0)",
        "It forgets.",
        "7 min",
        "cost.tokens 1234",
        "out of memory",
        "▲ kept 1",
        "● discarded 1",
        "✚ crashed 1",
    ):
        assert told in text, told


def test_a_broken_record_is_named_and_the_rest_is_shown(run, params):
    write_experiment(run / "experiments", 1, "start", "KEPT")
    for name, text in (
        ("0002-broken", "{"),
        ("0003-list", "[]"),
        ("notes", ""),
        ("0004-deep", "[" * 100_000),
    ):
        (run / "experiments" / name).mkdir()
        (run / "experiments" / name / "record.json").write_text(text)
    write_experiment(run / "experiments", 5, "loop", "KEPT", parent="0005-loop")
    write_experiment(
        run / "experiments",
        6,
        "odd",
        "DISCARDED",
        evidence="none",
        changes="none",
        hypothesis=None,
        parent="0099-gone",
    )
    text = page(run, params).text
    assert (
        "0002-broken, 0003-list, 0004-deep, notes" in text
        and "0001-start" in text
        and "3 experiments" in text
    )


def test_error_samples_are_of_validation_and_first_what_got_lost(run, params):
    write_side(run / "reports/baseline", [make_row(k, k < 3) for k in range(40)])
    rows = [make_row(k, k >= 20, prediction=None if k >= 20 else f"wrong {k}") for k in range(40)]
    write_side(run / "reports/eval_val", rows)
    write_items(run, rows)
    (part,) = error_samples(run, "reports/baseline")
    assert (part["n"], part["wrong"], part["lost"], len(part["items"])) == (40, 20, 3, EACH)
    assert {sample["reply"] for sample in part["items"][:3]} == {"wrong 0", "wrong 1", "wrong 2"}
    assert (
        all(sample["incumbent_right"] for sample in part["items"][:3])
        and not part["items"][3]["incumbent_right"]
    )
    assert all(
        f"val question {sample['reply'].split()[1]}" == sample["question"]
        for sample in part["items"]
    )
    assert error_samples(run, "reports/baseline") == [part]


def write_items(run, rows):
    folder = run / "data/benchmark/val"
    folder.mkdir(parents=True, exist_ok=True)
    items = [
        {"item_id": row.item_id, "question": f"val question {int(row.gold) - 100}"} for row in rows
    ]
    (folder / "chain_sum.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def test_no_text_of_the_test_split_is_shown(run, params):
    html = render(gather(run, params))
    assert "SECRET TEST QUESTION" not in html  # of generate_data.json's hits
    rows = read_json(run / "reports/generate_data.json")
    write_json(
        run / "reports/generate_data.json",
        {**rows, "new": {"example": "ANOTHER SECRET", "share": 0.25}},
    )
    text = page(run, params).text
    assert "ANOTHER SECRET" not in text and "new.share 0.25" in text


def test_reports_with_new_keys_and_without_optional_ones_are_shown(run, params):
    verdict = read_json(run / "reports/judge.json")
    del verdict["curve"]
    write_json(
        run / "reports/judge.json", {**verdict, "spending": {"number": 7, "alpha_spent": 0.01}}
    )
    data = read_json(run / "reports/generate_data.json")
    for source in data["sources"].values():
        del source["too_long"]
        source["low_quality"] = 4
    write_json(run / "reports/generate_data.json", data)
    text = page(run, params).text
    assert "spending.number 7" in text and "low quality" in text and "too long" not in text


@pytest.mark.parametrize("more", [None, {"items": 1511, "towards": "accept", "power": 0.8}])
def test_looks_guards_and_a_language_models_opinion_are_told_where_the_verdict_has_them(
    run, params, more
):
    verdict = read_json(run / "reports/judge.json")
    evidence = verdict["evidence"]
    evidence |= {"level": 0.0076, "look": 2, "further_items": more}
    evidence["guarded"] = [
        {"benchmark": HOSTILE, "low": -0.15, "high": 0.07, "margin": 0.1, "verdict": "unknown"}
    ]
    opinion = read_json(HERE / "judge_vetoed.json")["opinion"] | {"model": HOSTILE}
    write_json(
        run / "reports/judge.json",
        {**verdict, "outcome": "inconclusive", "accepted": False, "opinion": opinion},
    )
    text = page(run, params).text
    assert "accepted below 0.0076 (look 2 at these items, 0.05 over all looks)" in text
    assert "0.0076 is this look's share of it" in text, "the number is explained"
    assert "-15.0 to +7.0 points, unknown" in text and "says no and vetoed the acceptance." in text
    assert ("more items would decide towards “accept”" in text) == bool(more and more["items"])


@pytest.mark.parametrize(
    ("primary", "metric", "told"),
    [
        ("chain_sum", "correct", "Strict accuracy 30.0 % → 40.0 % (+10.0 points"),
        ("", "score", "Mean score 30.0 % → 40.0 % (+10.0 points"),
    ],
)
def test_the_sentence_at_the_top_is_about_what_decided(run, params, capsys, primary, metric, told):
    verdict = read_json(run / "reports/judge.json")
    evidence = verdict["evidence"] | {"primary": primary, "metric": metric}
    key = "accuracy" if metric == "correct" else "score"
    decided = evidence["benchmarks"][primary] if primary else evidence["pooled"]
    decided["incumbent"][key], decided["candidate"][key], decided["difference"], decided["n"] = (
        0.3,
        0.4,
        0.1,
        77,
    )
    write_json(run / "reports/judge.json", {**verdict, "evidence": evidence})
    text = page(run, params).text
    assert (
        f"Accepted. {told}" in text
        and "on 77 validation items of" in text
        and ("chain_sum , which decides" in text) == bool(primary)
    )
    show(run / "reports")
    said = capsys.readouterr().out
    assert "0.300 -> 0.400, +0.100" in said and (
        "77 validation items of chain_sum" in said
    ) == bool(primary)


def test_repeats_of_an_item_are_no_further_items(run, params):
    rows = [make_row(k, k % 2 == 0, repeat=repeat) for k in range(40) for repeat in range(4)]
    for side in ("eval_val", "eval_test", "baseline"):
        for split in ("val", "test"):
            write_side(run / "reports" / side, rows, split=split)
    content = gather(judged(run), params)
    assert {row["n"] for row in content["scores"] + content["test_scores"]} == {40}


def test_sweeps_are_read_from_dvcs_refs(run, params):
    def git(*arguments, **more):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        return subprocess.run(
            ["git", *identity, *arguments],
            cwd=run,
            check=True,
            capture_output=True,
            text=True,
            **more,
        ).stdout.strip()

    git("init", "-q")
    (run / "params.yaml").write_text(
        "train: {learning_rate: 0.001, seed: 1}\nexperiment: {name: a}\n"
    )
    git("add", "-f", "params.yaml", "reports/judge.json")
    git("commit", "-qm", "base")
    base = git("rev-parse", "HEAD")
    verdict = read_json(run / "reports/judge.json")
    for k, (name, rate) in enumerate(
        (("sad-newt", 0.002), ("fit-lynx", 0.003), (f"x{HOSTILE[:3]}".replace("<", "_"), 0.004))
    ):
        verdict["evidence"]["pooled"]["candidate"]["accuracy"] = 0.5 + k / 10
        write_json(run / "reports/judge.json", verdict)
        (run / "params.yaml").write_text(
            f"train: {{learning_rate: {rate}, seed: 1}}\nexperiment: {{name: b}}\n"
        )
        git("commit", "-qam", name)
        git("update-ref", f"refs/exps/{base[:2]}/{base[2:]}/{name}", "HEAD")
        git("reset", "-q", "--hard", base)
    git("update-ref", "refs/exps/exec/EXEC_HEAD", base)
    (found,) = lineage.read_sweeps(run)
    assert found["base"] == base[:7] and found["keys"] == ["train.learning_rate"]
    assert [(row["changed"], round(row["accuracy"], 2)) for row in found["rows"]] == [
        ({"train.learning_rate": rate}, score)
        for rate, score in ((0.004, 0.7), (0.003, 0.6), (0.002, 0.5))
    ]
    text = page(run, params).text
    assert "Sweep from " + base[:7] in text and "fit-lynx" in text and "agent adopt NAME" in text


def test_a_sweep_shows_the_figures_that_decided(run):
    whole = read_json(run / "reports/judge.json")
    evidence = whole["evidence"] | {"primary": "chain_sum"}
    part, pooled = evidence["benchmarks"]["chain_sum"], evidence["pooled"]
    part |= {
        "n": 40,
        "difference": 0.25,
        "candidate": part["candidate"] | {"accuracy": 0.75, "score": 0.5},
    }
    pooled |= {
        "n": 80,
        "difference": 0.0,
        "candidate": pooled["candidate"] | {"accuracy": 0.5, "score": 0.5},
    }
    for changes, expected in (
        ({}, (0.75, 40, 0.25)),
        ({"primary": ""}, (0.5, 80, 0.0)),
        ({"metric": "score"}, (0.5, 40, 0.25)),
    ):
        verdict = json.dumps(whole | {"evidence": evidence | changes}).encode()
        (row,) = lineage._sweep("base", [("sad-newt", "tip")], {"tip:reports/judge.json": verdict})[
            "rows"
        ]
        assert (row["accuracy"], row["n"], row["difference"]) == expected


def test_a_folder_without_git_has_no_sweeps(run, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(run.parent))
    assert lineage.read_sweeps(run) == []


def test_a_missing_report_or_figure_is_named(run, params):
    report = read_json(run / "reports/train.json")
    del report["runtime_s"]
    write_json(run / "reports/train.json", report)
    with pytest.raises(PawlError, match="runtime_s"):
        gather(run, params)
    (run / "reports/judge.json").unlink()
    with pytest.raises(PawlError, match="missing"):
        gather(run, params)


def test_a_chart_and_a_champion_are_of_what_the_same_items_and_settings_measured(run, params):
    folder = run / "experiments"
    old = write_experiment(folder, 1, "old", "KEPT", accuracy=0.66)
    write_json(folder / old / "val.json", {"items_sha256": "a", "settings": {"seed": 0}})
    start = write_experiment(folder, 2, "start", "DISCARDED", accuracy=0.0, changes=[])
    write_json(folder / start / "val.json", {"items_sha256": "b", "settings": {"seed": 0}})
    crashed = write_experiment(folder, 3, "oom", "CRASHED", parent=start, reason="out of memory")
    record = read_json(folder / crashed / "record.json")
    write_json(folder / crashed / "record.json", {**record, "words": "OOM: halve the batch."})
    cards, _ = lineage.read_experiments(folder)
    assert [card["number"] for card in lineage.comparable(cards)] == [2, 3] and not any(
        card["champion"] for card in cards
    )
    text = Page(render(gather(run, params))).text
    assert (
        "1 of the experiments below were measured on other items" in text
        and "None has been kept" in text
    )
    assert "OOM: halve the batch." in text  # a crash's explanation is on the page


def test_without_experiments_nothing_is_compared():
    assert lineage.comparable([]) == []


def test_the_noise_of_the_engine_stands_beside_the_verdict_and_of_an_exact_one_nothing(
    run, params, capsys
):
    exact = page(run, params).text
    path = run / "reports/eval_val/val.json"
    summary = read_json(path)
    summary["fingerprint"]["dtype"] = "bfloat16"
    write_json(path, summary)
    assert "not measured" in page(run, params).text and "not measured" not in exact
    write_json(run / noise.place(EvalSummary.read(path)), {"flips": 7, "answers": 200})
    assert "disagree on 7 of 200 verdicts (3.5 %)" in page(run, params).text
    show(run / "reports")
    assert "disagree on 7 of 200 verdicts" in capsys.readouterr().out
