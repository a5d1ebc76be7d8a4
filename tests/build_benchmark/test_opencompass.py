"""OpenCompass's own benchmarks as items: every configuration loads, what is at hand renders, what
is not says what gets it.
"""

from __future__ import annotations

import functools
import json
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from stages.build_benchmark import convert, opencompass, splits
from stages.build_benchmark.__main__ import make
from stages.common.choices import ASK
from stages.common.errors import PawlError
from stages.common.files import ROOT, read_jsonl, write_jsonl, write_text
from stages.common.questions import normalize
from stages.common.schema import Benchmark, Suite, validate
from stages.common.scoring import Task, scorer

NAMES = sorted(
    path.stem for path in (ROOT / "conf/benchmark").glob("*.yaml") if "suites:" in path.read_text()
)


@functools.cache
def declared(name: str) -> Benchmark:
    merged = OmegaConf.merge(
        OmegaConf.structured(Benchmark), OmegaConf.load(ROOT / f"conf/benchmark/{name}.yaml")
    )
    benchmark = OmegaConf.to_object(merged)
    assert isinstance(benchmark, Benchmark)
    validate(benchmark, "benchmark")
    return benchmark


def suites(name: str) -> dict[str, Suite]:
    found = declared(name).suites
    assert found
    return found


def test_the_benchmarks_that_people_ask_for_are_there() -> None:
    wanted = (
        "gsm8k math_500 aime24 aime25 gpqa mmlu mmlu_pro bbh arc_c arc_e hellaswag piqa boolq"
        " commonsenseqa truthfulqa ifeval humaneval mbpp livecodebench financeiq chembench medqa"
        " longbench custom_mcq custom_qa"
    )
    assert set(wanted.split()) <= {name for name in NAMES if suites(name)}


@pytest.mark.e2e
@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_loads_in_opencompass_and_its_scorer_can_be_made(name: str) -> None:
    for key, suite in suites(name).items():
        for config in opencompass.configurations(suite, key):
            spec = json.loads(json.dumps(opencompass.scoring(config, suite)))
            if "AccEvaluator" in spec["evaluator"]["type"] and name != "arc_c":
                continue  # one of them is enough
            made = scorer(Task("t", "val", [], spec), declared(name))
            assert callable(made.postprocess) and (made.metric or not spec["metric"])
            assert set(config["infer_cfg"]) >= {"retriever", "inferencer"} and suite.licence


def rows_for(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Two rows with every column that a dataset's templates name."""
    import re

    template = json.dumps(opencompass.to_json(config["infer_cfg"]), ensure_ascii=False)
    names = {name for name in re.findall(r"\{([A-Za-z_0-9]+)\}", template)} | set(
        config["reader_cfg"]["input_columns"]
    )
    names |= {config["reader_cfg"]["output_column"] or "answer"}
    return [{name: f"{name} {number}" for name in sorted(names)} for number in range(6)]


@pytest.mark.e2e
@pytest.mark.parametrize("name", NAMES)
def test_every_template_renders(name: str) -> None:
    """Without the data: rows with the columns that the templates name stand in for what the loader
    gives.
    """
    from datasets import Dataset

    base = opencompass.importlib.import_module("opencompass.datasets.base").BaseDataset
    for key, suite in suites(name).items():
        for config in opencompass.configurations(suite, key)[:3]:
            rows = rows_for(config)
            kind = type(
                "Given", (base,), {"load": staticmethod(lambda rows=rows: Dataset.from_list(rows))}
            )
            columns = {
                key: value
                for key, value in config["reader_cfg"].items()
                if not key.endswith("_split")
            }
            turns = opencompass.render(config, kind(reader_cfg=columns))
            assert len(turns) == 6 and all(
                part[-1]["role"] == "user" or part[-1]["role"] == "assistant" for part in turns
            )
            shown = config["reader_cfg"]["input_columns"][0]
            assert any(
                f"{column} 5"
                in turns[5][-1]["content"] + turns[5][-2 if len(turns[5]) > 1 else -1]["content"]
                for column in [shown, *config["reader_cfg"]["input_columns"]]
            ), turns[5]


def gsm8k(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int = 12, **changes: Any
) -> Benchmark:
    rows = [{"question": f"How many is {n}?", "answer": str(n)} for n in range(count)]
    convert.gsm8k(rows, tmp_path / "data/local/gsm8k")
    monkeypatch.setattr(opencompass, "ROOT", tmp_path)
    suite = Suite(
        config="gsm8k.gsm8k_gen_1d7fe4", path="data/local/gsm8k", metric="accuracy", licence="MIT"
    )
    return Benchmark(
        **{
            "name": "g",
            "seed": 1,
            "suites": {"gsm8k": suite},
            "splits": "ends",
            "val_items": 100,
            "test_items": 100,
            **changes,
        }
    )


def items(root: Path, split: str, name: str = "gsm8k") -> list[dict[str, Any]]:
    return list(read_jsonl(root / f"data/benchmark/{split}/{name}.jsonl"))


@pytest.mark.e2e
def test_the_first_half_validates_and_the_last_half_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(gsm8k(tmp_path, monkeypatch), tmp_path / "out")
    val, test = items(tmp_path / "out", "val"), items(tmp_path / "out", "test")
    assert [item["answer"] for item in val] == list("012345") and [
        item["answer"] for item in test
    ] == ["6", "7", "8", "9", "10", "11"]
    assert not {item["item_id"] for item in val} & {item["item_id"] for item in test}
    turns = val[0]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 4 + ["user"] and val[0][
        "question"
    ] == turns[-1]["content"]
    scoring = json.loads((tmp_path / "out/data/benchmark/val/gsm8k.scoring.json").read_text())
    assert (
        scoring["evaluator"]["type"].endswith(".Gsm8kEvaluator") and scoring["metric"] == "accuracy"
    )


@pytest.mark.e2e
def test_a_seeded_split_is_another_one_for_another_seed_and_the_same_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for seed in (1, 1, 2):
        make(
            gsm8k(
                tmp_path, monkeypatch, 40, seed=seed, splits="seeded", val_items=10, test_items=10
            ),
            tmp_path / "out",
        )
        found.append(
            [
                item["item_id"]
                for split in ("val", "test")
                for item in items(tmp_path / "out", split)
            ]
        )
        assert len(set(found[-1])) == 20
    assert found[0] == found[1] != found[2]


@pytest.mark.e2e
def test_the_benchmarks_own_validation_split_is_used_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = gsm8k(tmp_path, monkeypatch, splits="own")
    with pytest.raises(PawlError, match="no validation split of its own"):
        make(benchmark, tmp_path / "out")
    benchmark.suites["gsm8k"].val_split = "train"
    write_jsonl(
        tmp_path / "data/local/gsm8k/train.jsonl",
        [{"question": f"Train {n}?", "answer": f"#### {n}"} for n in range(5)],
    )
    make(benchmark, tmp_path / "out")
    assert ["Train" in item["question"] for item in items(tmp_path / "out", "val")] == [True] * 5
    assert len(items(tmp_path / "out", "test")) == 12


@pytest.mark.e2e
def test_a_question_that_the_file_repeats_is_asked_once_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = gsm8k(tmp_path, monkeypatch, 6)
    rows = [
        {"question": f"How  many is {n}?", "answer": f"#### {n}"}
        for n in (0, 1, 2, 3, 4, 5, 0, 2, 0)
    ]
    write_jsonl(tmp_path / "data/local/gsm8k/test.jsonl", rows)
    report = make(benchmark, tmp_path / "out").plain()["tasks"]["gsm8k"]
    assert (
        report["duplicates"] == 3
        and report["repeated"] == [[1, 7, 9], [3, 8]]
        and report["val"] == report["test"] == 3
    )
    asked = [
        normalize(item["question"])
        for split in ("val", "test")
        for item in items(tmp_path / "out", split)
    ]
    assert len(asked) == len(set(asked))


@pytest.mark.e2e
def test_the_same_dataset_twice_is_refused_where_its_splits_would_cross(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = gsm8k(tmp_path, monkeypatch)
    benchmark.suites["again"] = benchmark.suites["gsm8k"]
    with pytest.raises(PawlError, match="two datasets are called gsm8k"):
        splits.build(benchmark)


def test_data_that_are_not_here_are_an_error_with_the_command_that_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencompass, "ROOT", tmp_path)
    with pytest.raises(PawlError, match="are not here") as caught:
        splits.build(declared("mmlu"))
    assert caught.value.fix.startswith("curl ") and "data/local" in caught.value.fix


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_not_in_a_package_names_its_one_command(name: str) -> None:
    for suite in suites(name).values():
        assert suite.package or suite.get


@pytest.mark.parametrize("name", NAMES)
def test_data_come_from_where_opencompass_or_their_makers_keep_them(name: str) -> None:
    own = {
        "boolq": "dl.fbaipublicfiles.com/glue/superglue",
        "financeiq": "github.com/Duxiaoman-DI",
        "medqa": "xuxuxuxuxu/MedQA_US_test",
    }
    kept = (
        Path(sysconfig.get_paths()["purelib"]) / "opencompass/utils/datasets_info.py"
    ).read_text(encoding="utf-8")
    for suite in suites(name).values():
        for address in re.findall(r"https?://\S+", suite.get):
            assert address in kept or (name in own and own[name] in suite.get)
    assert name not in own or own[name] in next(iter(suites(name).values())).get


@pytest.mark.e2e
def test_data_that_the_loader_cannot_read_name_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = gsm8k(tmp_path, monkeypatch)
    write_text(tmp_path / "data/local/gsm8k/test.jsonl", '{"question": 1\n')
    with pytest.raises(PawlError, match="cannot load gsm8k") as caught:
        splits.build(benchmark)
    assert "GSM8KDataset" in caught.value.fix


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": "gsm8k.gsm8k_gen_zzz"}, "no configuration"),
        ({"abbreviations": ["gsm9k"]}, "no dataset 'gsm9k'"),
    ],
)
def test_a_configuration_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    benchmark = gsm8k(tmp_path, monkeypatch)
    for key, value in change.items():
        setattr(benchmark.suites["gsm8k"], key, value)
    with pytest.raises(PawlError, match=message) as caught:
        splits.build(benchmark)
    assert "gsm8k" in caught.value.fix


@pytest.mark.e2e
def test_braces_in_a_question_bring_in_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = gsm8k(tmp_path, monkeypatch)
    rows = [
        {"question": f"{n} {{answer}} {{idx}} {{subdivision}}", "answer": f"#### 77{n}"}
        for n in range(4)
    ]
    write_jsonl(tmp_path / "data/local/gsm8k/test.jsonl", rows)
    make(benchmark, tmp_path / "out")
    for number, item in enumerate(items(tmp_path / "out", "val")):
        assert f"{number} {{answer}} {{idx}} {{subdivision}}" in item[
            "question"
        ] and "77" not in json.dumps(item["messages"])


@pytest.mark.e2e
def test_multiple_choice_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencompass, "ROOT", tmp_path)
    rows = [{"question": f"Colour {n}?", "A": "red", "B": "blue", "answer": "B"} for n in range(4)]
    rows[1]["C"] = "green"
    write_jsonl(tmp_path / "data/local/items.jsonl", rows)
    benchmark = declared("custom_mcq")
    make(benchmark, tmp_path / "out")
    val = items(tmp_path / "out", "val", "items")
    assert val[0]["question"] == f"Colour 0?\nA. red\nB. blue\n{ASK}" and val[1][
        "question"
    ].endswith(f"C. green\n{ASK}")
    assert (
        val[0]["messages"] == [{"role": "user", "content": val[0]["question"]}]
        and val[0]["answer"] == "B"
    )
    write_jsonl(
        tmp_path / "data/local/items.jsonl",
        [*rows, {"question": "x", "A": "a", "B": "b", "answer": "C"}],
    )
    with pytest.raises(PawlError, match="none of the choices") as caught:
        make(benchmark, tmp_path / "out")
    assert caught.value.where.endswith(":5")


@pytest.mark.e2e
def test_questions_of_ones_own_are_asked_with_their_passages_and_choices_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencompass, "ROOT", tmp_path)
    rows: list[dict[str, Any]] = [
        {"question": f"Colour {n}?", "context": "It is {answer}.", "answer": float(n)}
        for n in range(4)
    ]
    write_jsonl(tmp_path / "data/local/items.jsonl", rows)
    make(declared("custom_qa"), tmp_path / "out")
    val = items(tmp_path / "out", "val", "items")
    assert [(one["messages"][0]["content"], one["answer"]) for one in val] == [
        (f"It is {{answer}}.\n\nColour {n}?", str(n)) for n in range(2)
    ]
    for extra, reason in (
        ({"hint": "it is a colour of the sea"}, "hint"),
        ({"choices": ["a", "b"], "answer": "A"}, "with choices"),
    ):
        write_jsonl(
            tmp_path / "data/local/items.jsonl", [*rows, {"question": "x", "answer": "y", **extra}]
        )
        with pytest.raises(PawlError, match=reason) as caught:
            make(declared("custom_qa"), tmp_path / "out")
        assert caught.value.where.endswith(":5")


def test_the_right_choice_does_not_keep_its_place() -> None:
    rows = [
        {
            "question": f"q{n}",
            "choices": ["right", "b", "c", "d"],
            "labels": list("ABCD"),
            "answer": "A",
        }
        for n in range(40)
    ]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = convert.shuffled_choices(rows, Path(folder) / "x")
        found = list(read_jsonl(path))
    assert (
        all(row[row["answer"]] == "right" for row in found)
        and len({row["answer"] for row in found}) == 4
    )


@pytest.mark.e2e
def test_a_question_among_the_worked_examples_of_its_own_prompt_is_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCompass's five-shot ARC takes its examples from the file that it asks about."""
    monkeypatch.setattr(opencompass, "ROOT", tmp_path)
    rows = [
        {
            "question": f"Which {n}?",
            "choices": [f"a{n}", f"b{n}", "c", "d"],
            "labels": list("ABCD"),
            "answer": "A",
        }
        for n in range(20)
    ]
    convert.arc(rows, tmp_path / "data/local/arc")
    suite = Suite(
        config="ARC_c.ARC_c_few_shot_gen_e9b043",
        path="data/local/arc.jsonl",
        metric="accuracy",
        licence="CC",
    )
    benchmark = Benchmark(
        name="a", seed=1, suites={"arc_c": suite}, splits="ends", val_items=100, test_items=100
    )
    report = make(benchmark, tmp_path / "out").plain()["tasks"]["ARC-c"]
    assert report["in_worked_examples"] == 5 and report["val"] + report["test"] == 14
    for split in ("val", "test"):
        for item in items(tmp_path / "out", split, "ARC-c"):
            assert [turn["content"] for turn in item["messages"]].count(item["question"]) == 1
