"""The edit of conf/experiment/current.yaml, and which parameters count."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agent.run import settings, trial
from agent.run.experiment import slug
from stages.common.errors import PawlError

SOURCE = Path(__file__).resolve().parents[3] / "conf/experiment/current.yaml"


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "current.yaml"
    shutil.copy(SOURCE, path)
    monkeypatch.setattr(settings, "CURRENT", path)
    return path


def comments(path: Path) -> list[str]:
    return [line.partition("#")[2].strip() for line in path.read_text().splitlines() if "#" in line]


def test_comments_and_the_package_line_survive_repeated_edits(current: Path) -> None:
    before = comments(current)
    for rate in (0.0005, 0.0001):
        settings.edit(
            {
                "train.learning_rate": rate,
                "data.sources.mine.count": 3,
                "experiment.hypothesis": f"# {rate} <- half",
            }
        )
    assert current.read_text().startswith("# @package _global_\n")
    assert [line for line in comments(current) if "half" not in line] == before
    assert OmegaConf.load(current).train.learning_rate == 0.0001


@pytest.mark.parametrize(
    "value",
    [
        0.0005,
        1e-05,
        1e22,
        3,
        True,
        "yes",
        "1e3",
        "12:30",
        "null",
        "~",
        "",
        "0x1f",
        "a: b # c",
        "'\"",
        "- x",
        "é 漢 😀",
    ],
)
def test_a_value_comes_back_as_what_it_is(current: Path, value: object) -> None:
    settings.edit({"train.lora_target": value})
    loaded = OmegaConf.load(current).train.lora_target
    assert loaded == value and type(loaded) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "; rm -rf /",
        "$(x)",
        "| a | b",
        "</td><script>",
        "-n",
        "# no comment",
        "x " * 5000,
        "😀",
        "{a: b}",
        "!!python/object:os.system x",
        "*alias",
        "%TAG",
        "@x",
    ],
)
def test_a_hypothesis_is_text_in_yaml(current: Path, text: str) -> None:
    settings.edit({"experiment.hypothesis": trial.hypothesis(text)})
    assert OmegaConf.load(current).experiment.hypothesis == text.strip()


def test_a_hypothesis_cannot_read_the_environment(
    current: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    settings.edit(
        {
            "experiment.hypothesis": trial.hypothesis(
                "${oc.env:SECRET} $${oc.env:SECRET} \\${oc.env:SECRET}"
            )
        }
    )
    assert "hunter2" not in OmegaConf.load(current).experiment.hypothesis


def test_new_lines_of_a_hypothesis_become_blanks() -> None:
    assert trial.hypothesis("a\r\nb\u2028c\x00\ud800") == "a b c\N{REPLACEMENT CHARACTER}?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("; rm -rf", "rm-rf"),
        ("A  B", "a-b"),
        ("learning_rate=5e-4", "learning-rate-5e-4"),
        ("x" * 99, "x" * 40),
    ],
)
def test_a_slug_is_safe(text: str, expected: str) -> None:
    assert slug(text) == expected


@pytest.mark.parametrize("text", ["", "---", "😀", "漢字"])
def test_a_name_of_which_nothing_is_left_is_refused(text: str) -> None:
    with pytest.raises(PawlError, match="no name"):
        slug(text)


def test_seeds_names_and_words_do_not_make_a_new_experiment() -> None:
    params = {
        "train.learning_rate": 0.001,
        "train.seed": 1,
        "train.name": "lora",
        "experiment.hypothesis": "a",
        "tracking.kind": "none",
        "judge.alpha": 0.05,
    }
    same = params | {
        "train.seed": 2,
        "train.name": "x",
        "experiment.hypothesis": "b",
        "tracking.kind": "mlflow",
    }
    assert settings.fingerprint(params) == settings.fingerprint(same)
    for key, value in (("train.learning_rate", 0.002), ("judge.alpha", 0.01)):
        assert settings.fingerprint(params) != settings.fingerprint(params | {key: value})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.learning_rat=5e-4", "did you mean train.learning_rate"),
        ("train.learning_rate=abc", "abc"),
        ("train.learning_rate=-1", "out of range"),
        ("judge.alpha=0.4", "ruler"),
        ("benchmark.val_items=1", "ruler"),
        ("evaluate.temperature=1", "ruler"),
        ("engine.dtype=auto", "ruler"),
        ("tracking.kind=none", "ruler"),
        ("agent.timeout_h=1", "ruler"),
        ("experiment.incumbent=reports/baseline", "--name"),
        ("train=lora", "not an override of one declared parameter"),
        ("+train.zzz=1", "not an override of one declared parameter"),
        ("~train.seed", "not an override of one declared parameter"),
        ("data.sources=1", "sources"),
        ("model.path=${oc.env:HOME}", "may not refer"),
        ("train.learning_rate=choice(1e-4,3e-4)", "several values"),
    ],
)
def test_an_override_that_no_experiment_may_make_is_refused_with_the_reason(
    override: str, expected: str
) -> None:
    with pytest.raises(PawlError) as refusal:
        settings.resolve([override])
    assert expected in str(refusal.value)


@pytest.mark.parametrize(
    "override",
    [
        "data.ngram=50",
        "data.max_contamination=1",
        "data.max_bad_fraction=1",
        "data.sources.chain_sum.part=test",
        "data.sources.mine.part=all",
    ],
)
def test_what_guards_the_benchmark_from_the_training_data_is_closed(override: str) -> None:
    with pytest.raises(PawlError, match="guards the benchmark from the training data"):
        settings.resolve([override])
    assert settings.resolve(["data.sources.chain_sum.count=9"])["data.sources.chain_sum.count"] == 9


@pytest.mark.parametrize("key", ["data.ngram", "data.sources.a.part"])
def test_a_guard_may_not_change_by_reference_either(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    texts = {
        changed: OmegaConf.to_yaml(OmegaConf.from_dotlist(["train.seed=1", f"{key}={changed}"]))
        for changed in (False, True)
    }
    monkeypatch.setattr(settings, "compose", lambda overrides=(): texts[bool(overrides)])
    with pytest.raises(PawlError, match=f"may not change {key}"):
        settings.resolve(["train.seed=2"])


@pytest.mark.parametrize(("part", "refused"), [("all", False), ("train", True)])
def test_the_seed_that_says_which_rows_are_the_benchmarks_is_closed(
    monkeypatch: pytest.MonkeyPatch, part: str, refused: bool
) -> None:
    texts = {
        changed: f"data: {{seed: {int(changed)}, sources: {{a: {{part: {part}}}}}}}"
        for changed in (False, True)
    }
    monkeypatch.setattr(settings, "compose", lambda overrides=(): texts[bool(overrides)])
    if refused:
        with pytest.raises(PawlError, match=r"may not change data\.seed"):
            settings.resolve(["data.seed=1"])
    else:
        assert settings.resolve(["data.seed=1"])["data.seed"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "override",
    [
        "train.logging_steps=9",
        "launcher.timeout_h=9",
        "model.licence=MIT",
        "data.sources.chain_sum.licence=MIT",
        "train.name=x",
        "train.seed=9",
    ],
)
def test_what_shapes_no_result_makes_no_new_experiment(override: str) -> None:
    before, after = settings.flat(settings.compose()), settings.resolve([override])
    assert before != after and settings.fingerprint(before) == settings.fingerprint(after)


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        ("benchmark.seed", True),
        ("benchmark.tasks.a.count", True),
        ("engine.dtype", True),
        ("evaluate.temperature", True),
        ("judge.alpha", False),
        ("evaluate.concurrency", False),
        ("evaluate.retries", False),
        ("evaluate.request_timeout_s", False),
        ("engine.startup_timeout_s", False),
        ("engine.api_key_env", False),
        ("train.learning_rate", False),
    ],
)
def test_the_ruler_is_what_is_asked_and_how(key: str, counts: bool) -> None:
    params = {key: 1, "benchmark.val_items": 200}
    assert (settings.ruler(params) != settings.ruler(params | {key: 2})) is counts
    if counts:  # the same try under another ruler is no repetition
        assert settings.fingerprint(params) != settings.fingerprint(params | {key: 2})


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(PawlError, match="twice"):
        settings.resolve(["train.seed=1", "train.seed=2"])


def test_a_measuring_parameter_may_not_change_by_reference_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {
        False: "train: {seed: 1}\njudge: {alpha: 0.05}\n",
        True: "train: {seed: 2}\njudge: {alpha: 0.5}\n",
    }
    monkeypatch.setattr(settings, "compose", lambda overrides=(): texts[bool(overrides)])
    with pytest.raises(PawlError, match=r"change judge.alpha too"):
        settings.resolve(["train.seed=2"])


def test_values_have_the_declared_type() -> None:
    resolved = settings.resolve(
        [
            "train.learning_rate=5e-4",
            "train.num_train_epochs=2",
            "train.lora_target=",
            "train.gradient_checkpointing=true",
        ]
    )
    values = [
        resolved[f"train.{key}"]
        for key in ("learning_rate", "num_train_epochs", "lora_target", "gradient_checkpointing")
    ]
    assert values == [0.0005, 2.0, "", True] and [type(value) for value in values] == [
        float,
        float,
        str,
        bool,
    ]


@pytest.mark.parametrize("why", ["", "  \n", "???", "\x00\u202e"])
def test_no_experiment_without_a_hypothesis(why: str) -> None:
    with pytest.raises(PawlError, match="needs a hypothesis"):
        trial.hypothesis(why)
