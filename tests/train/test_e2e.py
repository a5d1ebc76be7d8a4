"""Real trainings of a tiny random model: every recipe, refusals that need LLaMA-Factory, kills,
equal bytes with and without us.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.common.config import compose, read_params
from stages.common.errors import PawlError
from stages.common.files import ROOT, read_json, sha256_file, write_json, write_jsonl
from stages.common.models import fixed_arguments, with_template
from stages.common.schema import Config
from stages.fetch_model import tiny
from stages.train import fit, preflight, result
from stages.train.arguments import arguments
from stages.train.combinations import check_combinations
from stages.train.losses import summarize, trainer_state
from stages.train.rows import count_rows
from tests.train.rows import write_data

pytestmark = pytest.mark.e2e

RECIPES = sorted(path.stem for path in (ROOT / "conf/train").glob("*.yaml"))
NEEDS_A_GPU = {"qlora"}
SMALL = ["model=tiny_random", "train.device=cpu", "train.cutoff_len=512", "train.logging_steps=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and rows of every kind."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "base").mkdir()
    tiny.write(folder / "base", "float32")
    for stage in ("sft", "pt", "dpo", "kto", "rm"):
        write_data(folder / stage, stage)
    write_data(folder / "held-out", "sft", held_out=6)
    return folder


def params(place: Path, *overrides: str) -> Config:
    path = place / "params.yaml"
    path.write_text(compose([*SMALL, *overrides]), encoding="utf-8")
    return read_params("train", "launcher", "engine", "evaluate", path=path)


def ask(
    place: Path, found: Config, output: Path, data: str = "", base: str = "base"
) -> dict[str, Any]:
    """The configuration of a training, and what preflight wants to know beside it."""
    rows = place / (data or found.train.stage)
    asked = found.evaluate
    trained = with_template(place / base, fixed_arguments(asked.template), place)
    config = arguments(
        found.train,
        model=str(trained),
        data=str(rows),
        output=str(output),
        use_cpu=True,
        has_eval=(rows / "eval.jsonl").exists(),
        checkpoint_steps=found.launcher.checkpoint_steps,
        distributed=found.launcher.kind != "local",
        rows=count_rows(rows),
        template=asked.template,
    )
    served = {
        "model": str(place / base),
        "template": asked.template,
        "think_close": asked.think_close,
    }
    return {"config": config, "engine": found.engine.kind, "data": str(rows), "served": served}


def work(folder: Path, runs: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    write_json(folder / "job.json", {"preflight": None, "runs": runs})
    env = {
        **os.environ,
        "DISABLE_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
    }
    argv = [sys.executable, "-m", "stages.train.worker", str(folder / "job.json")]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, env=env)


@pytest.fixture(scope="module")
def trained(place: Path) -> Iterator[dict[str, tuple[Config, Path]]]:
    """Two optimizer steps of every recipe, after its preflight, in one process. The fixture's
    value: settings and output of each.
    """
    folder = place / "recipes"
    folder.mkdir()
    runs, asked = [], {}
    for name in RECIPES:
        found = params(place, f"train={name}", "train.max_steps=2")
        output = folder / name / "out"
        if name in NEEDS_A_GPU:
            with pytest.raises(PawlError, match="works on a GPU alone"):
                check_combinations(found.train, found.launcher, "transformers", gpus=0)
            continue
        checked = ask(place, found, output)
        assert (
            preflight.check(found.train, found.launcher, **checked)["memory"]["estimate_gib"][
                "total"
            ]
            > 0
        )
        runs.append({"name": name, "config": checked["config"]})
        asked[name] = (found, output)
    done = work(folder, runs)
    assert done.returncode == 0, done.stderr[-3000:]
    yield asked


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in NEEDS_A_GPU])
def test_every_recipe_trains_and_leaves_what_can_be_served(
    place: Path, trained: dict[str, tuple[Config, Path]], name: str
) -> None:
    from safetensors.torch import load_file

    found, output = trained[name]
    figures = read_json(output.parent / "figures.json")
    state = read_json(output / "trainer_state.json")
    assert (
        state["global_step"] == 2 and figures["trainable_parameters"] > 0 and figures["tokens"] > 0
    )
    result.keep(output, place / "base", output.parent / "kept", found.train)
    kept = output.parent / "kept"
    if found.train.finetuning_type in ("lora", "oft"):
        config = read_json(kept / "adapter_config.json")
        weights = load_file(kept / "adapter_model.safetensors")
        moved = [
            key
            for key in weights
            if ("lora_B" in key or "oft_R" in key) and float(weights[key].abs().max()) > 0
        ]
        assert moved, "the adapter learned nothing"
        assert name != "pissa" or (
            config["r"] == 2 * found.train.lora_rank
            and not str(config["init_lora_weights"]).startswith("pissa")
        )
        assert (
            config.get("use_dora", False) == found.train.use_dora
            and config.get("use_rslora", False) == found.train.use_rslora
        )
        return
    before, after = (
        load_file(place / "base/model.safetensors"),
        load_file(kept / "model.safetensors"),
    )
    changed = {key for key in before if not before[key].equal(after[key].to(before[key].dtype))}
    assert (kept / "tokenizer.json").read_bytes() == (place / "base/tokenizer.json").read_bytes()
    layers = {int(key.split(".")[2]) for key in changed if key.startswith("model.layers.")}
    assert layers == {0, 1}, "both layers of the tiny model are among the last four"
    assert ("model.embed_tokens.weight" in changed) is (found.train.finetuning_type == "full")


def test_the_estimate_counts_what_the_trainer_trains(
    place: Path, trained: dict[str, tuple[Config, Path]]
) -> None:
    from stages.train import memory

    for name, (found, output) in trained.items():
        model = preflight.meta_model({"model_name_or_path": str(place / "base")})
        targets = preflight.check_modules(model, found.train)
        counted = memory.trainable(model, found.train, targets)
        told = read_json(output.parent / "figures.json")["trainable_parameters"]
        head = 64 + 1 if name == "rm" else 0
        assert counted + head == told, name


def test_one_row_and_a_few_rows_train_to_the_end_with_the_defaults(place: Path) -> None:
    cases = [(rows, packing) for rows in (1, 3, 7, 32) for packing in (False, True)]
    runs = []
    for rows, packing in cases:
        name = f"rows-{rows}-{packing}"
        write_data(place / name, "sft", rows=rows)
        found = params(place, f"train.packing={str(packing).lower()}", "train.logging_steps=5")
        checked = ask(place, found, place / "few" / name / "out", data=name)
        told = preflight.check(found.train, found.launcher, **checked)
        assert rows == 32 or [
            warning for warning in told["warnings"] if "fewer than the 8" in warning
        ]
        runs.append({"name": name, "config": checked["config"]})
    done = work(place / "few", runs)
    assert done.returncode == 0, done.stderr[-3000:]
    for rows, packing in cases:
        output = place / "few" / f"rows-{rows}-{packing}" / "out"
        state = trainer_state(output)
        assert (
            summarize(state)["initial_loss"] > 0
            and (output / "adapter_model.safetensors").is_file()
        )
        assert packing or state["global_step"] == -(-rows // 8)


# like the published ones of SmolLM3 and Qwen3: thoughts of past answers are dropped, an empty one
# is served where thinking is off
THINKING = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n' + ('/no_think' if not"
    " enable_thinking|default(true) else '/think') + '<|im_end|>\n' }}{% endif %}{% for message in"
    " messages %}{% set said = message['content'].split('</think>')[-1].lstrip('\n') %}{{"
    " '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' and loop.last"
    " %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ said + '<|im_end|>\n' }}{% endfor %}{% if"
    " add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if not"
    " enable_thinking|default(true) %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("overrides", "turns", "refused"),
    [
        ([], 1, ""),
        (["+evaluate.template.enable_thinking=false"], 1, ""),
        ([], 2, "prompt"),
        (["+train.extra.mask_history=true"], 2, ""),
    ],
)
def test_a_thinking_template_is_trained_as_it_is_served_or_refused(
    place: Path, overrides: list[str], turns: int, refused: str
) -> None:
    base, rows = place / "thinking", place / f"turns-{turns}"
    if not base.exists():
        shutil.copytree(place / "base", base)
        (base / "chat_template.jinja").write_text(THINKING)
    info = read_json(write_data(rows, "sft") / "dataset_info.json")
    said = [
        {"role": role, "content": f"{role} {number}"}
        for number in range(turns)
        for role in ("user", "assistant")
    ]
    write_jsonl(rows / info["train"]["file_name"], [{"messages": said}] * 8)
    found = params(place, *overrides)
    checked = ask(place, found, place / "out", data=rows.name, base="thinking")
    if not refused:
        preflight.check(found.train, found.launcher, **checked)
        return
    with pytest.raises(PawlError, match=refused) as error:
        preflight.check(found.train, found.launcher, **checked)
    assert "row 1 of data/train" in error.value.what and "mask_history" in error.value.fix


def test_held_out_rows_are_evaluated_while_it_trains(place: Path) -> None:
    folder = place / "evaluated"
    folder.mkdir()
    checked = ask(place, params(place, "train.max_steps=4"), folder / "out", data="held-out")
    assert work(folder, [{"name": "run", "config": checked["config"]}]).returncode == 0
    history = read_json(folder / "out/trainer_state.json")["log_history"]
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [
        1,
        2,
        3,
        4,
    ], "an eighth of four steps is every step"


def test_a_loss_that_becomes_nan_ends_the_run_at_once(place: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = place / "nan"
    folder.mkdir()
    model = AutoModelForCausalLM.from_pretrained(place / "base")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    broken = place / "nan-base"
    broken.mkdir()
    for path in (place / "base").iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    model.save_pretrained(broken)
    checked = ask(place, params(place, "train.max_steps=50"), folder / "out", base="nan-base")
    done = work(folder, [{"name": "run", "config": checked["config"]}])
    assert done.returncode == 4
    assert "the loss became nan at step 1" in read_json(folder / "failure-0.json")["what"]
    assert not list((folder / "out").glob("*.safetensors"))


def test_weights_that_became_nan_after_the_last_logged_loss_are_no_result(place: Path) -> None:
    folder = place / "late-nan"
    folder.mkdir()
    config = ask(
        place, params(place, "train.max_steps=1", "train.warmup_ratio=0.0"), folder / "out"
    )["config"]
    # the one loss there is comes before the step
    done = work(folder, [{"name": "run", "config": config | {"learning_rate": 1e39}}])
    assert done.returncode == 4
    assert (
        "the weights became NaN or infinite by step 1"
        in read_json(folder / "failure-0.json")["what"]
    )
    assert not list((folder / "out").glob("*.safetensors"))


BROKEN: list[tuple[str, list[str], str, list[str]]] = [
    (
        "unknown extra",
        ["+train.extra.flash_atn=fa2"],
        "sft",
        ["flash_atn", "did you mean train.extra.flash_attn"],
    ),
    (
        "renamed",
        ["+train.extra.evaluation_strategy=steps"],
        "sft",
        ["eval_strategy", "set train.eval_strategy"],
    ),
    (
        "ours",
        ["+train.extra.output_dir=x"],
        "sft",
        ["train.extra.output_dir", "set by the pipeline"],
    ),
    (
        "save only the model",
        ["+train.extra.save_only_model=true"],
        "sft",
        ["save_only_model", "cannot be resumed"],
    ),
    (
        "wrong type",
        ["+train.extra.adam_beta1=high"],
        "sft",
        ["train.extra.adam_beta1", "'high'", "a number"],
    ),
    (
        "unknown scheduler",
        ["train.lr_scheduler_type=cosin"],
        "sft",
        ["LLaMA-Factory refuses", "cosin"],
    ),
    (
        "unknown optimizer",
        ["train.optim=adamw_torchx"],
        "sft",
        ["LLaMA-Factory refuses", "adamw_torchx"],
    ),
    (
        "unknown template",
        ["train.template=smolm2"],
        "sft",
        ["train.template", "smolm2 does not exist"],
    ),
    (
        "another template",
        ["train.template=alpaca"],
        "sft",
        ["train.template (alpaca)", "at token 0", "leave train.template empty"],
    ),
    (
        "a default system prompt",
        ["train.template=smollm2"],
        "sft",
        ["train.template (smollm2)", "differs"],
    ),
    ("rows of another kind", ["train=dpo"], "sft", ["train.stage is dpo", "answers"]),
    ("no rows", [], "empty", ["no training rows"]),
    (
        "no eval rows",
        ["train.eval_strategy=epoch"],
        "sft",
        ["train.eval_strategy is epoch", "data.eval_fraction"],
    ),
    ("rows too long", ["train.cutoff_len=16"], "sft", ["train.cutoff_len", "cut at 16"]),
    (
        "too many positions",
        ["train.cutoff_len=4096"],
        "sft",
        ["train.cutoff_len is 4096", "2048 positions"],
    ),
    (
        "no such module",
        ["train.lora_target=q_proj\\,qkv"],
        "sft",
        ["train.lora_target names qkv", "q_proj"],
    ),
    (
        "no such whole module",
        ["train.additional_target=wte"],
        "sft",
        ["train.additional_target names wte", "embed_tokens"],
    ),
    (
        "dora on full",
        ["train=full", "train.use_dora=true"],
        "sft",
        ["train.use_dora", "belongs to LoRA"],
    ),
    (
        "rank above vllm's",
        ["train.lora_rank=1024", "engine=vllm"],
        "sft",
        ["train.lora_rank", "512"],
    ),
    (
        "pissa under zero3",
        ["train=pissa", "train.parallel=zero3", "launcher=torchrun", "launcher.workers=2"],
        "sft",
        ["PiSSA", "zero3"],
    ),
    (
        "zero without deepspeed",
        ["train.parallel=zero2", "launcher=torchrun", "launcher.workers=2"],
        "sft",
        ["deepspeed"],
    ),
    (
        "reference of pissa",
        ["train=dpo", "train.pissa_init=true"],
        "dpo",
        ["PiSSA", "train.pref_loss=orpo"],
    ),
    ("a row that cannot be read", [], "garbled", ["LLaMA-Factory cannot read a row"]),
    (
        "more memory than there is",
        ["train.per_device_train_batch_size=2000000"],
        "sft",
        ["GiB", "train.per_device_train_batch_size"],
    ),
    (
        "attention without its package",
        ["+train.extra.flash_attn=fa2"],
        "sft",
        ["train.extra.flash_attn", "GPU"],
    ),
    ("thoughts that would be scored", [], "thoughts", ["evaluate.think_close"]),
    (
        "conflicting arguments",
        ["+train.extra.use_galore=true"],
        "sft",
        ["LLaMA-Factory refuses", "GaLore"],
    ),
]


@pytest.mark.parametrize(
    ("overrides", "data", "words"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
def test_what_cannot_work_is_refused_with_the_key_and_the_fix(
    place: Path, overrides: list[str], data: str, words: list[str]
) -> None:
    if data == "empty":
        write_data(place / "empty", "sft", rows=0)
    if data == "thoughts":
        write_data(place / "thoughts", "sft", answer="<think>\nwell\n</think>\n\none")
    if data == "garbled":
        (write_data(place / "garbled", "sft") / "train.jsonl").write_text(
            '{"text": "no messages here"}\n' * 8
        )
    found = params(place, *overrides)
    begun = time.monotonic()
    with pytest.raises(PawlError) as refused:
        preflight.check(found.train, found.launcher, **ask(place, found, place / "out", data=data))
    assert time.monotonic() - begun < 30
    assert refused.value.code == 3 and refused.value.fix
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("recipe", ["dpo", "orpo", "kto"])
def test_memory_is_told_for_the_longest_row_allowed_where_the_rows_are_of_another_stage(
    place: Path, recipe: str
) -> None:
    """--check of a stage whose rows will be made anew."""
    found = params(place, f"train={recipe}")
    told = preflight.check(
        found.train, found.launcher, **ask(place, found, place / "out", data="sft"), rebuilt=True
    )
    assert (
        told["memory"]["tokens"] == found.train.cutoff_len == 512
        and told["memory"]["estimate_gib"]["activations"] > 0
    )
    assert [
        warning
        for warning in told["warnings"]
        if "memory is told for rows of train.cutoff_len" in warning
    ]


def test_a_full_disk_is_refused_before_it_is_full(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = params(place)
    monkeypatch.setattr(fit.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(PawlError, match=r"GiB are free") as refused:
        preflight.check(found.train, found.launcher, **ask(place, found, place / "out"))
    assert refused.value.where == "launcher.checkpoint_steps"


@pytest.mark.parametrize(
    ("damage", "words"),
    [("no template", "no chat template"), ("small", "the model only 200"), ("no end", "ends")],
)
def test_a_base_that_could_not_be_served_is_refused(
    place: Path, tmp_path: Path, damage: str, words: str
) -> None:
    for path in (place / "base").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if damage == "no template":
        (tmp_path / "chat_template.jinja").unlink()
    if damage == "small":
        write_json(
            tmp_path / "config.json", read_json(tmp_path / "config.json") | {"vocab_size": 200}
        )
    if damage == "no end":
        write_json(tmp_path / "generation_config.json", {"eos_token_id": 0})
        settings = read_json(tmp_path / "tokenizer_config.json")
        write_json(tmp_path / "tokenizer_config.json", settings | {"eos_token": "<|endoftext|>"})
    found = params(place)
    asked = ask(place, found, place / "out")
    asked["config"]["model_name_or_path"] = asked["served"]["model"] = str(tmp_path)
    with pytest.raises(PawlError, match=words):
        preflight.check(found.train, found.launcher, **asked)


def forked(folder: Path, attempts: list[dict[str, Any]]) -> list[int]:
    write_json(folder / "attempts.json", attempts)
    env = {
        **os.environ,
        "DISABLE_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
    }
    argv = [sys.executable, "-m", "tests.train.forked", str(folder / "attempts.json")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


STEPS = 24


def outcome(output: Path) -> tuple[list[dict[str, Any]], str]:
    """The loss history without its clock, and the weights."""
    history = read_json(output / "trainer_state.json")["log_history"]
    # train_loss is a mean over the steps of one attempt
    clock = ("runtime", "per_second", "total_flos", "train_loss")
    timeless = [
        {key: value for key, value in entry.items() if not any(word in key for word in clock)}
        for entry in history
    ]
    return timeless, sha256_file(output / "adapter_model.safetensors")


def test_killed_at_ten_random_steps_each_resumes_to_the_same_bytes(place: Path) -> None:
    """Also: checkpoints, our callback and a micro run before it change no byte of what
    LLaMA-Factory alone makes.
    """
    folder = place / "killed"
    folder.mkdir()
    rng = random.Random(17)
    kills = [
        (step, "save" if number % 3 == 2 else "step")
        for number, step in enumerate(rng.sample(range(1, STEPS), 10))
    ]

    def runs(name: str, checkpoint_steps: int) -> list[dict[str, Any]]:
        found = params(
            place,
            f"train.max_steps={STEPS}",
            f"launcher.checkpoint_steps={checkpoint_steps}",
            "train.lora_dropout=0.1",
        )
        return [
            {"name": "train", "config": ask(place, found, folder / name, data="held-out")["config"]}
        ]

    micro = {"name": "micro", "config": runs("micro", 0)[0]["config"] | {"max_steps": 2}}
    attempts: list[dict[str, Any]] = [
        {"folder": str(folder / "alone"), "runs": runs("alone", 0), "watched": False},
        {"folder": str(folder / "whole"), "runs": [micro, *runs("whole", 4)]},
    ]
    for number, (step, where) in enumerate(kills):
        name = f"kill-{number}"
        attempts.append(
            {"folder": str(folder / name), "runs": runs(name, 4), "kill_at": step, "kill_in": where}
        )
        attempts.append({"folder": str(folder / name), "runs": runs(name, 4), "resume": True})
    codes = forked(folder, attempts)
    # nothing is saved any more, so nothing kills it
    late = [where == "save" and step > STEPS - 4 for step, where in kills]
    assert codes == [0, 0, *(code for never in late for code in ((0 if never else -9), 0))]
    undisturbed = outcome(folder / "alone")
    assert outcome(folder / "whole") == undisturbed
    for number in range(len(kills)):
        assert outcome(folder / f"kill-{number}") == undisturbed, kills[number]
    resumed = [
        read_json(folder / f"kill-{number}/figures.json")["resumed_from_step"]
        for number in range(len(kills))
    ]
    # a kill in a step loses what came after the last multiple of four; one while saving loses that
    # multiple too
    whole = [(step - 1) // 4 * 4 for step, _ in kills]
    assert resumed == [last for (last, never) in zip(whole, late, strict=True) if not never or last]
