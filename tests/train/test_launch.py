"""How training is started, how its failures read, and what is kept of it."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stages.common import lease
from stages.common.config import compose, read_params
from stages.common.errors import PawlError
from stages.common.files import write_json
from stages.common.schema import Launcher
from stages.train import __main__ as stage
from stages.train import cluster, launch, result
from stages.train.arguments import FSDP, micro_steps
from stages.train.losses import losses_csv, summarize, trainer_state
from tests.gpu_machines import H100
from tests.train.rows import write_data
from tests.train.test_arguments import train
from tests.train.test_checkpoints import saved

SERVED = {"model": "m", "template": {}, "think_close": ""}


def launcher(*overrides: str, folder: Path) -> Launcher:
    (folder / "params.yaml").write_text(compose(overrides), encoding="utf-8")
    return read_params("launcher", path=folder / "params.yaml").launcher


def commands(folder: Path, *overrides: str, micro: bool = False) -> list[str]:
    config = {"dataset_dir": "d", "output_dir": str(folder), "use_cpu": True}
    section = train(micro_steps=2)
    planned = launch.plan(
        config, section, launcher(*overrides, folder=folder), folder, "transformers", SERVED, micro
    )
    return [" ".join(argv).partition("-m ")[2] for argv in planned]


def test_one_process_checks_tries_and_trains_where_it_can(tmp_path: Path) -> None:
    assert commands(tmp_path, micro=True) == [f"stages.train.worker {tmp_path}/job.json"]
    job = json.loads((tmp_path / "job.json").read_text())
    assert job["preflight"] and [run["name"] for run in job["runs"]] == ["micro", "train"]
    micro = job["runs"][0]["config"]
    assert (
        micro["max_steps"] == 2
        and micro["output_dir"] != str(tmp_path)
        and micro["save_strategy"] == "no"
    )


@pytest.mark.slow
def test_torchrun_is_told_how_many_and_where_to_meet(tmp_path: Path) -> None:
    one = commands(tmp_path, "launcher=torchrun", "launcher.workers=2")
    assert (
        "preflight-job.json" in one[0]
        and "torch.distributed.run --nproc_per_node 2 --standalone -m stages.train.worker" in one[1]
    )
    assert "--nproc_per_node gpu" in commands(tmp_path, "launcher=torchrun")[1]
    many = commands(
        tmp_path,
        "launcher=torchrun",
        "launcher.nodes=3",
        "launcher.node_rank=1",
        "launcher.master_addr=10.0.0.1",
        "launcher.master_port=29500",
    )[1]
    assert "--nnodes 3 --node_rank 1 --master_addr 10.0.0.1 --master_port 29500" in many


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["launcher=torchrun", "launcher.nodes=2"],
            ["do not know where to meet", "launcher.master_addr"],
        ),
        (["launcher.node_rank=1"], ["launcher.node_rank is 1"]),
        (["train.quantization_bit=3"], ["choose 0, 4 or 8"]),
        (["train.freeze_trainable_layers=0"], ["train.freeze_trainable_layers is 0"]),
    ],
)
def test_an_impossible_section_is_refused_when_it_is_composed(
    overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(PawlError) as refused:
        compose(overrides)
    for word in words:
        assert word in str(refused.value)


def test_ray_runs_each_training_in_its_cluster(tmp_path: Path) -> None:
    found = commands(tmp_path, "launcher=ray", "launcher.workers=2", micro=True)
    assert [line.split()[0] for line in found] == [
        "stages.train.worker",
        "stages.train.cluster",
        "stages.train.cluster",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "chosen", "free", "shown"),
    [
        ([], None, [80, 80], "0"),
        ([], None, [1, 80], "1"),
        ([], "2,3", [80, 80, 1, 70], "3"),
        (["launcher=torchrun"], None, [80, 1], "0,1"),
        (["launcher=torchrun"], "1,2", [80, 80, 80, 80], "1,2"),
        (["launcher=torchrun", "launcher.workers=2"], None, [1, 80, 80], "1,2"),
        (["launcher=ray", "launcher.workers=2"], None, [80, 80], None),
    ],
)
def test_a_training_gets_as_many_gpus_as_it_has_processes_and_the_free_ones(
    tmp_path: Path,
    gpu_machine,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    chosen: str | None,
    free: list[int],
    shown: str | None,
) -> None:
    """Ray places its workers itself."""
    gpu_machine(*(replace(H100, free=gib * 1024) for gib in free))
    monkeypatch.setattr(lease, "_SETTLE_S", -1.0)
    if chosen:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    asked = launch.wanted(launcher(*overrides, folder=tmp_path), use_cpu=False)
    with lease.leased(asked, "train") as gpus:
        assert gpus.environment().get("CUDA_VISIBLE_DEVICES") == shown
    assert not launch.wanted(launcher(*overrides, folder=tmp_path), use_cpu=True).cards


def test_fsdp_is_known_before_the_model_is_loaded(tmp_path: Path) -> None:
    """transformers and LLaMA-Factory look at the environment; without it each process loads the
    whole model onto its own GPU.
    """
    env = launch.environment(tmp_path, False, "fsdp")
    assert env["ACCELERATE_USE_FSDP"] == "true"
    assert env["FSDP_VERSION"] == "2"
    assert env["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
    assert set(FSDP) <= set(cluster._PASSED_ON), "on a Ray cluster too"
    assert not set(FSDP) & set(launch.environment(tmp_path, False, "none"))


def test_a_gpu_gets_an_allocator_without_gaps_unless_the_user_chose_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert (
        launch.environment(tmp_path, False, "none")["PYTORCH_ALLOC_CONF"]
        == "expandable_segments:True"
    )
    assert "PYTORCH_ALLOC_CONF" not in launch.environment(tmp_path, True, "none")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    assert (
        launch.environment(tmp_path, False, "none")["PYTORCH_ALLOC_CONF"]
        == "backend:cudaMallocAsync"
    )
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert "PYTORCH_ALLOC_CONF" not in launch.environment(tmp_path, False, "none")


def test_a_gpu_tries_the_longest_rows_first_and_a_cpu_only_if_asked(tmp_path: Path) -> None:
    gpu, cpu = {"use_cpu": False}, {"use_cpu": True}
    assert [micro_steps(train(micro_steps=wanted), False) for wanted in (0, -1, 3)] == [1, 0, 3]
    assert [micro_steps(train(micro_steps=wanted), True) for wanted in (0, -1, 3)] == [0, 0, 3]
    assert launch.micro_config(gpu, train(), tmp_path)["max_steps"] == 1
    assert launch.micro_config(cpu, train(micro_steps=2), tmp_path)["max_steps"] == 2


OOM = (
    "x\nRuntimeError: [enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate"
    " memory: out of memory"
)


def written(folder: Path, log: str) -> Path:
    (folder / "log").write_text(log)
    return folder / "log"


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (1, OOM, ["batch_size"]),
        (
            1,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            ["per_device_train_batch_size"],
        ),
        (
            1,
            "safetensors_rust.SafetensorError: I/O error: No space left on device (os error 28)",
            ["disk is full"],
        ),
        (-9, "", ["signal 9", "batch_size"]),
        (124, "Cannot allocate memory", ["launcher.timeout_h (2 hours)", "starts it again"]),
        (1, "Traceback\nKeyError: 'x'", ["exit code 1", "KeyError: 'x'", "train.log"]),
    ],
)
def test_a_failed_trainer_says_why_on_one_screen(
    tmp_path: Path, code: int, log: str, words: list[str]
) -> None:
    error = launch.failure(code, tmp_path, written(tmp_path, log), timeout_s=7200)
    for word in words:
        assert word in str(error)
    (tmp_path / "log").write_text(log + "\n" + "noise " * 2000)
    error = launch.failure(code, tmp_path, tmp_path / "log", timeout_s=7200)
    assert len(str(error).splitlines()) < 24 and max(map(len, str(error).splitlines())) < 260
    assert error.details["exit_code"] == code and error.details["timed_out"] == (code == 124)
    assert error.details["signal"] == (9 if code == -9 else 0) and log in error.details["tail"]


def test_the_root_cause_is_rank_0s_own_word_not_the_end_of_a_shared_log(tmp_path: Path) -> None:
    write_json(
        tmp_path / "failure-1.json",
        {"what": "RuntimeError: Connection closed by peer", "during": "train", "traceback": "peer"},
    )
    write_json(
        tmp_path / "failure-0.json",
        {"what": "ValueError: root", "during": "train", "traceback": "Traceback\nValueError: root"},
    )
    error = launch.failure(1, tmp_path, written(tmp_path, "noise of torchrun"), timeout_s=1)
    assert error.details["traceback"].endswith("ValueError: root") and "ValueError: root" in str(
        error
    )


def test_a_rank_that_only_lost_its_peer_does_not_hide_the_one_that_failed(tmp_path: Path) -> None:
    lost = "[gloo/transport/tcp/pair.cc:544] Connection closed by peer"
    write_json(
        tmp_path / "failure-0.json",
        {"what": f"RuntimeError: {lost}", "during": "train", "traceback": lost},
    )
    write_json(
        tmp_path / "failure-1.json",
        {"what": "OSError: No space left on device", "during": "train", "traceback": "the root"},
    )
    error = launch.failure(1, tmp_path, tmp_path / "none", timeout_s=1)
    assert error.details["traceback"] == "the root" and "disk is full" in error.fix


def test_the_first_traceback_of_a_log_of_many_megabytes_is_found_in_little_memory(
    tmp_path: Path,
) -> None:
    root = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    step()",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    with open(tmp_path / "log", "w") as log:
        log.write("loading\n" * 1000 + "".join(f"[rank1]: {line}\n" for line in root))
        for _ in range(8):
            log.write("\r50%" * 250_000 + "\n")  # a progress bar
        log.write(
            "Traceback (most recent call last):\n  File"
            ' "run.py"\ntorch.distributed.elastic.ChildFailedError: train FAILED\n'
        )
    tracemalloc.start()
    error = launch.failure(1, tmp_path, tmp_path / "log", timeout_s=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        error.details["traceback"] == "\n".join(root) and "per_device_train_batch_size" in error.fix
    )
    assert (
        "ChildFailedError" in error.details["tail"]
        and peak < 2e6 < (tmp_path / "log").stat().st_size / 4
    )


def test_a_traceback_right_behind_a_progress_bar_is_found(tmp_path: Path) -> None:
    log = written(
        tmp_path,
        "\r 10%|#    | 1/10\r 20%|##   | 2/10Traceback (most recent call last):\n  File"
        " 'x'\nKeyError: 'root'\nend\n",
    )
    error = launch.failure(1, tmp_path, log, timeout_s=1)
    assert (
        error.details["traceback"]
        == "Traceback (most recent call last):\n  File 'x'\nKeyError: 'root'"
    )


def test_a_cause_that_is_named_long_before_the_end_is_found(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "OSError: No space left on device\n" + "waiting for the others\n" * 20_000
    )
    assert "disk is full" in launch.failure(1, tmp_path, tmp_path / "log", timeout_s=1).fix


def test_a_warning_in_the_log_is_not_taken_for_the_cause_that_a_worker_left(tmp_path: Path) -> None:
    write_json(
        tmp_path / "failure-0.json",
        {"what": "KeyError: 'x'", "during": "train", "traceback": "KeyError: 'x'"},
    )
    log = written(tmp_path, "warning: No module named 'triton', some kernels are off")
    assert "read the log" in launch.failure(1, tmp_path, log, timeout_s=1).fix


def test_a_warning_in_the_log_is_not_taken_for_the_cause_of_a_kill(tmp_path: Path) -> None:
    warning = (
        "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named"
        " 'triton'\n"
    )
    error = launch.failure(
        -9, tmp_path, written(tmp_path, warning + "a line of progress\n" * 5000), timeout_s=1
    )
    assert (
        "not enough memory" in error.fix
        and "triton" not in str(error)
        and not error.details["traceback"]
    )


def test_a_refusal_of_the_preflight_keeps_its_words_and_its_exit_code(tmp_path: Path) -> None:
    told = {
        "what": "no",
        "where": "train.x",
        "fix": "set train.x",
        "during": "preflight",
        "traceback": "t",
    }
    write_json(tmp_path / "failure-0.json", told)
    error = launch.failure(1, tmp_path, tmp_path / "none", timeout_s=1)
    assert (error.what, error.where, error.fix, error.code) == ("no", "train.x", "set train.x", 3)


def test_a_loss_that_became_nan_is_named_with_its_step(tmp_path: Path) -> None:
    told = {
        "what": "NonFiniteLossError: the loss became nan at step 7",
        "during": "train",
        "traceback": "NonFiniteLossError",
    }
    write_json(tmp_path / "failure-0.json", told)
    error = launch.failure(4, tmp_path, tmp_path / "none", timeout_s=1)
    assert error.what == "the loss became nan at step 7" and "train.learning_rate" in error.fix


def test_the_time_left_counts_days(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {
        "step": 1,
        "steps": 9,
        "loss": 1.0,
        "eval_loss": None,
        "tokens_per_s": 5.0,
        "left_s": 30 * 3600.0,
    }
    (tmp_path / "progress.jsonl").write_text(json.dumps(entry) + "\n")
    launch._Progress(tmp_path)()
    assert "5 tokens/s, 1 day, 6:00:00 left" in capsys.readouterr().out


def test_a_rate_that_is_not_known_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {
        "step": 1,
        "steps": 9,
        "loss": 1.0,
        "eval_loss": None,
        "tokens_per_s": None,
        "left_s": 1.0,
    }
    (tmp_path / "progress.jsonl").write_text(json.dumps(entry) + "\n")
    launch._Progress(tmp_path)()
    assert capsys.readouterr().out == "train: step 1/9, loss 1.000, 0:00:01 left\n"


@pytest.mark.slow
def test_what_cannot_be_resumed_does_not_go_on_from_a_checkpoint_that_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(
        launch, "plan", lambda config, *rest, **more: begun.append(config) or iter(())
    )
    monkeypatch.setattr(launch, "LOG", tmp_path / "log")
    monkeypatch.setattr(launch, "read_json", lambda path: {})
    for section, goes_on in ((train(), True), (train(pissa_init=True), False)):
        folder = tmp_path / str(goes_on)
        saved(folder, 3)
        config = launch.resumed(
            {"use_cpu": True, "output_dir": str(folder)}, section, launcher(folder=tmp_path), {}
        )
        launch.launch(
            config,
            section,
            launcher(folder=tmp_path),
            folder,
            engine="transformers",
            served=SERVED,
            timeout_s=9,
        )
        assert (
            ("resume_from_checkpoint" in begun[-1]) is goes_on is (folder / "checkpoint-3").exists()
        )


def test_a_result_of_code_or_rows_that_were_edited_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """callback.py and worker.py are modules of the trainer's process, which the guard of
    load_params does not see.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage.checkpoints, "main_root", lambda: tmp_path)
    monkeypatch.setattr(stage, "base_model", lambda: ({"name": "base", "files": {}}, tmp_path))
    rows = write_data(tmp_path / "data/train", "sft") / "train.jsonl"
    kept: list[Path] = []
    monkeypatch.setattr(stage.result, "keep", lambda *places: kept.append(places[0]))

    def trained(*given: Any, **more: Any) -> launch.Run:
        rows.write_text(rows.read_text() + "\n")
        return launch.Run(1.0, 1.0, {}, {"warnings": []})

    monkeypatch.setattr(stage, "launch", trained)
    with pytest.raises(PawlError, match="edited while this stage ran"):
        stage.run(
            train(), launcher(folder=tmp_path), "transformers", read_params("evaluate").evaluate
        )
    assert not kept


def state(tmp_path: Path, losses: list[float]) -> Path:
    history: list[dict[str, Any]] = [
        {"step": step, "epoch": step / 10, "loss": loss} for step, loss in enumerate(losses, 1)
    ]
    history.append({"step": len(losses), "epoch": 1.0, "train_runtime": 12.5})
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": history, "global_step": len(losses), "epoch": 1.0})
    )
    return tmp_path


def test_a_training_that_ended_before_its_first_log_has_the_mean_of_its_losses(
    tmp_path: Path,
) -> None:
    """Packed rows: how many there will be is known to the trainer alone."""
    history = [{"step": 2, "epoch": 1.0, "train_loss": 1.25, "train_runtime": 3.0}]
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": history, "global_step": 2, "epoch": 1.0})
    )
    record = trainer_state(tmp_path)
    assert (
        losses_csv(record).splitlines()[1:] == ["2,1.0000,train,1.250000"]
        and summarize(record)["final_loss"] == 1.25
    )
    history[0]["train_loss"] = math.nan
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": history, "global_step": 2, "epoch": 1.0})
    )
    with pytest.raises(PawlError, match="became nan"):
        trainer_state(tmp_path)


def test_losses_come_from_the_trainers_record(tmp_path: Path) -> None:
    record = trainer_state(state(tmp_path, [2.0, 1.0, 0.5]))
    assert summarize(record) == {
        "initial_loss": 2.0,
        "final_loss": 0.5,
        "best_eval_loss": None,
        "steps": 3,
        "epochs": 1.0,
    }
    assert losses_csv(record).splitlines()[:2] == [
        "step,epoch,split,loss",
        "1,0.1000,train,2.000000",
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_fails_the_stage(tmp_path: Path, bad: float) -> None:
    with pytest.raises(PawlError, match="at step 2"):
        trainer_state(state(tmp_path, [1.0, bad]))


def test_a_run_that_logged_nothing_fails_the_stage(tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no loss"):
        trainer_state(state(tmp_path, []))


def test_equal_training_gives_equal_bytes(tmp_path: Path) -> None:
    kept = []
    # peft keeps them in a set, whose order changes from run to run
    for order in (["q_proj", "v_proj"], ["v_proj", "q_proj"]):
        output = tmp_path / "output"
        output.mkdir(exist_ok=True)
        (output / "adapter_model.safetensors").write_bytes(b"weights")
        (output / "training_args.bin").write_bytes(b"host name and time")
        place = f"/home/{order[0]}/models/base"
        (output / "adapter_config.json").write_text(
            json.dumps({"target_modules": order, "r": 16, "base_model_name_or_path": place})
        )
        result.keep(output, tmp_path, tmp_path / "adapter", train())
        kept.append({path.name: path.read_bytes() for path in (tmp_path / "adapter").iterdir()})
    assert kept[0] == kept[1] and set(kept[0]) == {
        "adapter_model.safetensors",
        "adapter_config.json",
    }
    assert json.loads(kept[0]["adapter_config.json"])["base_model_name_or_path"] == "models/base", (
        "in every clone"
    )
    result.keep(output, tmp_path, tmp_path / "adapter", train(), origin="Qwen/Qwen3-0.6B")
    assert (
        json.loads((tmp_path / "adapter/adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
        == "Qwen/Qwen3-0.6B"
    )


def test_a_whole_model_is_kept_with_the_bases_own_tokenizer(tmp_path: Path) -> None:
    output, base = tmp_path / "output", tmp_path / "base"
    for folder, words in ((output, "changed for training"), (base, "the base's own")):
        folder.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (folder / name).write_text(words)
    (base / "config.json").write_text("base")
    (output / "config.json").write_text(
        json.dumps({"model_type": "trained", "_name_or_path": "/home/anna/base"})
    )
    for number in (1, 2):
        (output / f"model-0000{number}-of-00002.safetensors").write_bytes(b"weights")
    (output / "model.safetensors.index.json").write_text("{}")
    (output / "optimizer.pt").write_bytes(b"x")
    digest = result.keep(output, base, tmp_path / "adapter", train(finetuning_type="full"))
    kept = {path.name: path.read_text() for path in (tmp_path / "adapter").iterdir()}
    assert (
        json.loads(kept["config.json"]) == {"model_type": "trained"}
        and kept["tokenizer.json"] == kept["chat_template.jinja"] == "the base's own"
    )
    assert "optimizer.pt" not in kept and "adapter_config.json" not in kept and len(digest) == 64


def test_a_training_that_left_nothing_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    with pytest.raises(PawlError, match="no weights"):
        result.keep(tmp_path / "output", tmp_path / "output", tmp_path / "adapter", train())
    assert not (tmp_path / "adapter").exists()


def figures(gpu: dict[str, Any]) -> dict[str, Any]:
    told = {
        "tokens": 1000,
        "seconds": 10.0,
        "total_parameters": 10**9,
        "trainable_parameters": 10**7,
        "processes": 2,
        "resumed_from_step": 0,
    }
    preflight = {
        "rows": 5,
        "memory": {"estimate_gib": {"total": 1.5}},
        "warnings": ["memory is short"],
    }
    return result.figures(
        launch.Run(12.34, 2.5, told | gpu, preflight), {"num_input_tokens_seen": 1000}, "a" * 64
    )


def test_rates_are_counted_from_tokens_and_parameters() -> None:
    found = figures({})
    assert found["warnings"][0] == "memory is short", "for the judge"
    assert found["processes"] == 2, "GPU hours are counted from them"
    assert found["tokens_per_s"] == 100 and found["utilisation"] is None
    assert found["tflop_per_s"] == pytest.approx(100 * (4e9 + 2e7) / 1e12, abs=1e-4), (
        "frozen weights need no gradient"
    )
    known = figures({"gpu": "NVIDIA H100 80GB HBM3", "peak_gpu_memory_gib": 1.0})
    assert known["utilisation"] == pytest.approx(found["tflop_per_s"] / 989 / 2, abs=1e-4)


def test_rates_of_tokens_that_were_not_counted_are_absent() -> None:
    found = figures({"gpu": "NVIDIA H100 80GB HBM3", "peak_gpu_memory_gib": 1.0, "tokens": None})
    assert [found[name] for name in ("tokens", "tokens_per_s", "tflop_per_s", "utilisation")] == [
        None
    ] * 4
    assert found["total_parameters"] == 10**9, "counted without tokens"


@pytest.mark.parametrize(
    ("gpu", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("Tesla T4", 65),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA B200", None),
    ],
)
def test_a_rate_is_of_this_card_and_of_no_other_with_a_like_name(
    gpu: str, rate: int | None
) -> None:
    assert result._peak(gpu) == rate
