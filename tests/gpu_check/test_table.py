"""The table of gpu-check: complete, pasteable and honest, whatever the checks and the machine
do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stages.common import gpus
from stages.common.errors import PawlError
from tests.gpu_check import __main__ as gpu_check
from tests.gpu_check import checks, place
from tests.gpu_check.place import NotRun, Place
from tests.gpu_machines import DIVIDED, H100, OLD_DRIVER


@pytest.fixture
def here(tmp_path: Path, gpu_machine, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A machine with one GPU, on which nothing is copied."""
    gpu_machine(H100)
    monkeypatch.setattr(gpus, "main_root", lambda: tmp_path)
    (tmp_path / "work").mkdir()
    return Place(tmp_path / "work", gpus.usable())


def run(
    monkeypatch: pytest.MonkeyPatch, here: Place, found: dict[str, checks.Check], *arguments: str
) -> int:
    monkeypatch.setattr(gpu_check, "CHECKS", found)
    monkeypatch.setattr(
        gpu_check, "prepared", lambda rehearsal: Place(here.folder) if rehearsal else here
    )
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments])
    return gpu_check.main()


def good(where: Place) -> str:
    return "as it should be"


def bad(where: Place) -> str:
    raise AssertionError("estimate | peak\nare apart")


def broken(where: Place) -> str:
    raise KeyError("runtime_s")


def absent(where: Place) -> str:
    raise NotRun("needs 2 GPUs")


def test_a_failed_check_ends_no_other_and_the_exit_code_tells(
    here: Place, monkeypatch, capsys
) -> None:
    code = run(monkeypatch, here, {"one": bad, "two": broken, "three": absent, "four": good})
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("|")][2:]
    assert [line.split(" | ")[1] for line in lines] == ["FAILED", "FAILED", "not run", "ok"]
    assert (
        "estimate \\| peak are apart" in lines[0]
        and "KeyError" in lines[1]
        and "needs 2 GPUs" in lines[2]
    )
    assert code == 1 and "1 ok, 2 FAILED, 1 not run" in said and "commands.log" in said
    assert gpus.untried(), "nothing is proven"


def test_each_line_is_a_row_of_the_same_four_columns(here: Place, monkeypatch, capsys) -> None:
    run(monkeypatch, here, {"one": bad, "two": good})
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {5}


def test_all_passed_silences_the_note_on_this_machine_and_nothing_less_does(
    here: Place, monkeypatch, capsys
) -> None:
    assert run(monkeypatch, here, {"one": good, "two": good}, "--only", "one") == 0
    assert gpus.untried(), "a part of the checks proves nothing"
    assert run(monkeypatch, here, {"one": good, "two": absent}, "--rehearse") == 0
    assert gpus.untried(), "a rehearsal proves nothing"
    assert run(monkeypatch, here, {"one": good, "two": absent}) == 0
    assert gpus.untried() == ""
    said = capsys.readouterr().out
    assert (
        "REHEARSAL on the CPU" in said and "on 1 x NVIDIA H100 80GB HBM3, driver 580.82.07" in said
    )


@pytest.mark.parametrize(
    ("machine", "words"),
    [([], "no NVIDIA GPU is visible here"), ([OLD_DRIVER], "driver 550.90.07 is too old")],
)
@pytest.mark.parametrize("arguments", [[], ["--ready"]])
def test_without_a_gpu_it_ends_at_once_with_one_line(
    gpu_machine, here: Place, monkeypatch, capsys, machine, words, arguments
) -> None:
    gpu_machine(*machine)
    assert run(monkeypatch, here, {"one": bad}, *arguments) == 1
    told = capsys.readouterr()
    assert told.out == "" and words in told.err and len(told.err.splitlines()) == 1


def test_ready_makes_no_check(here: Place, monkeypatch) -> None:
    assert run(monkeypatch, here, {"one": bad}, "--ready") == 0


def test_an_unknown_check_is_named_with_those_that_exist(here: Place, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, here, {"one": good}, "--only", "tow")
    assert "'tow'" in capsys.readouterr().err


def test_the_first_gpu_alone_is_shown_unless_all_are_asked_for(tmp_path: Path, gpu_machine) -> None:
    gpu_machine(H100, H100)
    where = Place(tmp_path / "work", gpus.usable())
    where.folder.mkdir()
    ask = (sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))")
    assert where.run(*ask).stdout.strip() == "0"
    assert where.run(*ask, all_gpus=True).stdout.strip() == "None"


def test_a_command_that_hangs_fails_its_check_alone_and_leaves_no_process(here: Place) -> None:
    with pytest.raises(AssertionError, match="took longer than 1 s"):
        here.run(
            sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)", limit_s=1
        )


def test_an_error_is_shown_by_its_own_words_and_the_whole_is_in_the_log(here: Place) -> None:
    code = (
        "import sys; sys.exit('a line\\n' * 500 + 'train: error: it does not fit\\n  where:"
        " train.x\\n  fix:   less')"
    )
    with pytest.raises(
        AssertionError, match=r"train: error: it does not fit where: train\.x fix: less"
    ):
        here.run(sys.executable, "-c", code)
    assert (here.folder.parent / "commands.log").read_text().count("a line\n") == 500


def test_checks_that_need_two_gpus_or_a_package_say_so(here: Place, monkeypatch) -> None:
    with pytest.raises(NotRun, match="2 GPUs"):
        checks.first_loss(here, "torchrun")
    with pytest.raises(NotRun, match="2 GPUs"):
        checks.copies_and_halves(here)
    with pytest.raises(NotRun, match="no_such_package is not installed"):
        checks.peak(here, [], needs="no_such_package")
    with pytest.raises(NotRun, match="no adapter"):
        checks.noise(here, invariant=True)


@pytest.mark.parametrize(
    ("losses", "passes"), [({"ddp": 2.0}, True), ({"ddp": 2.01}, True), ({"ddp": 2.5}, False)]
)
def test_two_ways_to_run_two_processes_must_begin_with_one_loss(
    here: Place, monkeypatch, losses, passes
) -> None:
    two = Place(here.folder, [*here.cards, *here.cards], losses)
    for name in ("base_and_long_rows", "compose", "run"):
        monkeypatch.setattr(Place, name, lambda *_, **__: None)
    monkeypatch.setattr(
        Place,
        "report",
        lambda *_: {"processes": 2, "steps": 4, "initial_loss": 2.0, "tokens_per_s": 1.0},
    )
    if passes:
        assert "2.0000" in checks.first_loss(two, "ray")
        return
    with pytest.raises(AssertionError, match="first losses"):
        checks.first_loss(two, "ray")


@pytest.mark.parametrize(
    ("measured", "passes"), [(10.0, True), (8.8, True), (8.0, False), (12.0, False)]
)
def test_an_estimate_off_by_more_than_it_promises_fails(
    here: Place, monkeypatch, measured: float, passes: bool
) -> None:
    from stages.train.memory import PROCESS_GPU

    for name in ("base_and_long_rows", "compose", "run"):
        monkeypatch.setattr(Place, name, lambda *_, **__: None)
    report = {
        "estimated_memory_gib": 10 + PROCESS_GPU,
        "peak_gpu_memory_gib": measured,
        "tokens_per_s": 1.0,
    }
    monkeypatch.setattr(Place, "report", lambda *_: report)
    if passes:
        assert f"peak {measured:.2f}" in checks.peak(here, [])
        return
    with pytest.raises(AssertionError, match=f"peak {measured:.2f}"):
        checks.peak(here, [])


def test_a_changed_text_fails_where_answers_must_repeat(here: Place, monkeypatch) -> None:
    (here.folder / "models/adapter").mkdir(parents=True)
    (here.folder / "reports/noise").mkdir(parents=True)
    (here.folder / "reports/noise/a.json").write_text('{"flips": 0, "texts": 1, "answers": 9}')
    for name in ("compose", "run"):
        monkeypatch.setattr(Place, name, lambda *_, **__: None)
    with pytest.raises(AssertionError, match="1 texts of 9"):
        checks.noise(here, invariant=True)
    assert "1 texts of 9" in checks.noise(here, invariant=False)


def test_a_divided_gpu_can_be_checked(gpu_machine) -> None:
    gpu_machine(DIVIDED)
    assert gpu_check.no_gpu() == ""


def test_pawls_own_errors_are_told_without_a_class_name(here: Place) -> None:
    def refused(where: Place) -> str:
        raise PawlError("the disk is full", fix="free some")

    done = gpu_check.make("one", refused, here)
    assert done.result == "FAILED" and done.figures.startswith("the disk is full")


def test_rows_are_as_long_as_the_checks_say() -> None:
    said = place._row(3, 960)[1]["content"]
    assert len(said.split()) == 960 and said != place._row(4, 960)[1]["content"]
