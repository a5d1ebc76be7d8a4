"""Every code block of the README, so that a newcomer can paste it: commands are parsed or composed,
rows read, errors and files compared.

What runs for minutes is run elsewhere: `make run` in tests/e2e/test_pipeline.py and
test_real_model.py, `make ui` in test_e2e.py here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stages.common import config
from stages.common.errors import PawlError
from stages.common.files import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The commands of all shell blocks and of the text's own `...` that are one, split at && and
    without comments.
    """
    found: list[list[str]] = []
    for language, body in BLOCKS:
        for line in body.splitlines() if language == "sh" else []:
            words: list[str] = []
            for word in [*shlex.split(line, comments=True), "&&"]:
                if word != "&&":
                    words.append(word)
                elif words:
                    found.append(words)
                    words = []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_can_be_pasted(words, monkeypatch):
    program, *rest = words
    if program == "make":
        done = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        listed = re.findall(
            r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        assert {word for word in rest if "=" not in word} <= set(listed), (
            "make help does not tell it"
        )
    elif words[:3] == ["python", "-m", "stages.common.config"]:
        config.compose([word for word in rest[2:] if word != "--keep"])
    elif words[:3] == ["python", "-m", "agent"]:
        agent(rest[2:], monkeypatch)
    elif words[:2] == ["python", "-m"] and words[2] in (
        "stages.judge",
        "stages.train",
        "stages.generate_data",
    ):
        takes(words[2], rest[2:], monkeypatch)
    elif words[:2] == ["git", "restore"]:
        assert all((ROOT / name).exists() for name in words[2:])
    elif words[:2] == ["git", "commit"]:
        assert words[2] == "-am" and len(words) == 4
    elif program == "dvc":
        dvc(rest)
    elif program == "export":
        assert re.fullmatch(r"[A-Z_]+=\S+", rest[0]) and len(rest) == 1
        known = "".join(
            path.read_text(encoding="utf-8")
            for path in [*(ROOT / "stages").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml")]
        )
        assert rest[0].partition("=")[0] in known, "nothing reads that variable"
    else:
        raise AssertionError(f"no test knows {program}: say here how it is run")


def agent(words, monkeypatch):
    from agent.__main__ import parse
    from agent.run import settings

    args = parse(words)
    if args.command == "try":
        assert settings.resolve(args.overrides) != settings.flat(
            (ROOT / "params.yaml").read_text(encoding="utf-8")
        )


def takes(module, words, monkeypatch):
    """The stage's own parser takes it, and overrides compose. What it then does is what its own
    tests show.
    """
    if "--check" in words:
        config.compose([word for word in words if not word.startswith("--")])
    monkeypatch.setattr(sys, "argv", [module, *words])
    parsed = []

    def parse(parser, *arguments):
        parsed.append(REAL_PARSE(parser, *arguments))
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(Parsed):
        importlib.import_module(f"{module}.__main__").main()
    assert parsed


REAL_PARSE = argparse.ArgumentParser.parse_args


class Parsed(Exception):
    """Raised where a command line was taken, so that nothing is run."""


def dvc(words):
    """DVC's own parser takes it, and what it composes is a valid configuration."""
    from dvc.cli import parse_args
    from dvc.utils.hydra import get_hydra_sweeps

    args = parse_args(words)
    overrides = getattr(args, "set_param", None) or []
    sweeps = (
        get_hydra_sweeps({"params.yaml": overrides})
        if any("choice(" in each for each in overrides)
        else [{"params.yaml": overrides}]
    )
    for sweep in [sweeps[0], *sweeps[1:][-1:]] if overrides else []:  # of a grid its two corners
        config.compose(sweep["params.yaml"])
    for target in getattr(args, "targets", None) or []:
        assert target in (ROOT / "dvc.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "conf/sweep").iterdir()), ids=lambda path: path.name
)
def test_every_sweep_of_conf_composes(path):
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    words = shlex.split(first.partition("            ")[0].removeprefix("# "))
    assert (
        words[:2] == ["make", "sweep"] and f"SWEEP={path.stem}" in words and path.suffix == ".args"
    )
    dvc(["exp", "run", "--queue", *shlex.split(" ".join(rest))])


def test_every_block_is_of_a_kind_that_is_tested():
    assert {language for language, _ in BLOCKS} <= {"sh", "text", "yaml", "jsonl"} and len(
        BLOCKS
    ) == README.count("```") / 2
    assert len(commands()) > 20


def test_the_two_commands_come_first():
    assert commands()[:2] == [["make", "run"], ["make", "ui"]]


def test_the_configuration_composes_in_the_place_that_it_names(tmp_path, monkeypatch):
    (body,) = [body for language, body in BLOCKS if language == "yaml"]
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf/experiment/current.yaml").write_text(body, encoding="utf-8")
    monkeypatch.setattr(config, "CONF", tmp_path / "conf")
    monkeypatch.setattr(config, "ROOT", tmp_path)
    text = config.compose()
    assert "path: data/local/items.jsonl" in text and "name: mine" in text


def test_the_error_is_shown_as_it_comes(tmp_path):
    (shown,) = [
        body for language, body in BLOCKS if language == "text" and body.startswith("config: error")
    ]
    where = re.search(r"where: (\S+):(\d+)", shown)
    for name in ("conf", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dvc.yaml").write_text("")
    path = tmp_path / where[1]
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[int(where[2]) - 1] = lines[int(where[2]) - 1].replace("lora_rank", "lora_rnak")
    path.write_text("".join(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "stages.common.config"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr == shown


def test_make_clean_spares_what_was_paid_for_or_waits(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = ["eval", "looks.jsonl", "spool", "teacher", "train"]
    for name in ("eval", "logs", "merged", "spool", "teacher", "train"):
        (tmp_path / ".pawl" / name).mkdir(parents=True)
    (tmp_path / ".pawl/looks.jsonl").touch()
    for _ in range(2):
        assert subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True).returncode == 0
    assert sorted(path.name for path in (tmp_path / ".pawl").iterdir()) == kept


def test_a_port_that_is_taken_is_named_with_another_one(tmp_path):
    (tmp_path / ".venv").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = ["make", "-o", ".venv/ready", "ui", f"PORT={port}"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (
        done.returncode
        and f"port {port} is taken" in done.stderr
        and f"PORT={port + 1} make ui" in done.stderr
    )


def test_what_the_readmes_commands_write_is_no_change_for_git():
    paths = [
        "dvc_plots/index.html",
        "mlflow.db",
        "reports/track.txt",
        "models/adapter/x",
        ".pawl/x",
    ]
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == paths


def test_the_command_that_passes_the_tests_stands_beside_make_run_with_its_time():
    (line,) = [line for line in README.splitlines() if "`make test`" in line]
    assert "hour" in line and README.index(line) < README.index("## What lies where")


def test_the_tree_is_there():
    (tree,) = [body for language, body in BLOCKS if language == "text" and "dvc.yaml" in body]
    for line in tree.splitlines():
        assert (ROOT / line.split()[0]).exists(), line
    stages = re.findall(r"\w+", tree.splitlines()[0].partition("pipeline:")[2])
    declared = re.findall(
        r"^  (\w+):", (ROOT / "dvc.yaml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(stages) == sorted(declared)


def test_the_rows_are_rows_that_the_data_stage_reads():
    (body,) = [body for language, body in BLOCKS if language == "jsonl"]
    rows = [json.loads(line) for line in body.splitlines()]
    assert [sorted(row) for row in rows] == [
        ["answer", "question"],
        ["input", "instruction", "output"],
        ["messages"],
    ]


def test_pictures_are_there_and_light_and_the_page_fits_a_reader():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures == ["docs/page.png", "docs/mlflow.png"]
    assert all(
        (ROOT / path).read_bytes()[:4] == b"\x89PNG" and (ROOT / path).stat().st_size < 300_000
        for path in pictures
    )
    assert len(README.splitlines()) <= 300
    for target in re.findall(r"(?<!!)\[[^\]]+\]\(([^)]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists()


def test_paths_named_in_the_text_exist():
    made = {
        "reports/index.html",
        "data/local",
        "experiments/",
        "experiments/looks.jsonl",
        "data/train/rejected.jsonl",
    }
    for path in re.findall(
        r"`((?:conf|stages|agent|reports|experiments|prompts|tests|data|docs)/[\w./*-]*)`", README
    ):
        assert path in made or list(ROOT.glob(path.rstrip("/"))), path


STAGES = sorted(f"stages.{path.parent.name}" for path in (ROOT / "stages").glob("*/__main__.py"))
ENTRIES = [
    "agent",
    "stages.common.compare",
    "stages.common.config",
    "stages.common.doctor",
    "stages.common.process",
    *STAGES,
]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_point_explains_itself_with_an_example(name, monkeypatch, capsys):
    module = importlib.import_module(
        f"{name}.__main__" if Path(ROOT / name.replace(".", "/")).is_dir() else name
    )
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as done:
        module.main()
    told = capsys.readouterr().out
    assert done.value.code == 0 and f"python -m {name}" in told.partition("\n\n")[2], (
        "an example, not only the usage line"
    )
    monkeypatch.setattr(sys, "argv", [name, "--no-such-option"])
    with pytest.raises((SystemExit, PawlError)) as refused:
        module.main()
    assert (
        getattr(refused.value, "code", 2) in (2, 3)
        and len(capsys.readouterr().err.splitlines()) < 25
    )


def test_every_command_of_the_agent_explains_itself_with_an_example(capsys):
    from agent.__main__ import parse

    with pytest.raises(SystemExit):
        parse(["--help"])
    names = re.search(r"\{([\w,-]+)\}", capsys.readouterr().out)[1].split(",")
    assert {"run", "try", "adopt", "history"} <= set(names)
    for name in names:
        with pytest.raises(SystemExit) as done:
            parse([name, "--help"])
        assert done.value.code == 0 and f"python -m agent {name}" in capsys.readouterr().out


def test_an_error_is_one_screen_without_a_traceback_unless_asked(tmp_path):
    for name in ("conf", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    for debug in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "stages.track"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PATH": "", "PAWL_DEBUG": debug},
        )
        assert (
            done.returncode == 1
            and "track: error: a file that this step needs is missing" in done.stderr
        )
        assert "  where: " in done.stderr and "  fix:   run 'dvc repro'" in done.stderr
        assert ("Traceback" in done.stderr) == bool(debug) and (
            debug or len(done.stderr.splitlines()) <= 25
        )
