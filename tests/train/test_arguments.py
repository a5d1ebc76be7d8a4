"""What LLaMA-Factory is told: every declared parameter reaches it, our own keys cannot be taken
over, and the default stays what it was.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stages.common.config import compose, read_params
from stages.common.errors import PawlError
from stages.common.schema import Launcher, Train
from stages.train import __main__ as stage
from stages.train.arguments import DECIDES_OTHERS, RENAMED, SYSTEM, arguments, resumable, separate
from stages.train.known import check_extra, check_types


def train(**changes: Any) -> Train:
    section = read_params("train").train
    for name, value in changes.items():
        setattr(section, name, value)
    return section


def config(section: Train | None = None, **places: Any) -> dict[str, Any]:
    return arguments(
        section or train(), **{"model": "m", "data": "d", "output": "o", "use_cpu": True, **places}
    )


# for each method and stage, values other than the neutral ones
_ALL = (
    {
        "finetuning_type": "lora",
        "additional_target": "embed_tokens",
        "use_rslora": True,
        "use_dora": True,
        "pissa_init": True,
        "template": "t",
        "packing": True,
        "quantization_bit": 4,
        "neftune_noise_alpha": 5.0,
        "label_smoothing_factor": 0.1,
    },
    {"finetuning_type": "oft"},
    {"finetuning_type": "freeze"},
    {"stage": "dpo"},
    {"stage": "kto"},
)


def test_every_declared_parameter_reaches_the_trainer() -> None:
    told = {key for changes in _ALL for key in config(train(**changes))}
    assert {spec.name for spec in fields(Train)} - DECIDES_OTHERS <= told


def test_the_parameters_that_decide_others_do() -> None:
    plain = config()
    for changes in (
        {"precision": "fp16"},
        {"gradient_checkpointing": True},
        {"parallel": "zero2"},
        {"parallel": "fsdp"},
        {"extra": {"x": 1}},
    ):
        assert config(train(**changes)) != plain
    assert not {"bf16", "fp16"} & set(config(train(precision="fp32")))
    assert (
        config(has_eval=True)["eval_strategy"] == "steps"
        and config(has_eval=True)["eval_dataset"] == "eval"
    )
    assert "eval_strategy" not in config(train(eval_strategy="no"), has_eval=True)
    assert config(train(eval_strategy="epoch"), has_eval=True)["eval_strategy"] == "epoch"
    assert config(checkpoint_steps=7)["save_steps"] == 7 and config()["save_strategy"] == "no"


def test_the_default_tells_the_trainer_what_it_was_told_when_its_result_was_committed() -> None:
    """The keys that shape the weights, as they were when the adapter in dvc.lock was trained."""
    was = {
        "stage": "sft",
        "finetuning_type": "lora",
        "learning_rate": 0.001,
        "num_train_epochs": 1.0,
        "max_steps": -1,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "cutoff_len": 256,
        "lora_rank": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "lora_target": "all",
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.1,
        "weight_decay": 0.0,
        "seed": 42,
        "logging_steps": 5,
        "bf16": True,
        "use_cpu": True,
        "disable_gradient_checkpointing": True,
        "dataset": "train",
        "do_train": True,
        "include_num_input_tokens_seen": "non_padding",
        "overwrite_cache": True,
        "overwrite_output_dir": True,
        "report_to": "none",
        "plot_loss": False,
        "model_name_or_path": "m",
        "dataset_dir": "d",
        "output_dir": "o",
    }
    shapes_nothing = {"logging_nan_inf_filter", "save_strategy", "save_steps", "save_total_limit"}
    the_trainers_own_defaults = {"optim": "adamw_torch_fused", "max_grad_norm": 1.0}
    text = compose(["experiment=current"])
    assert "name: lora" in text
    told = {
        key: value
        for key, value in config(checkpoint_steps=50).items()
        if key not in shapes_nothing
    }
    assert told == was | the_trainers_own_defaults


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"evaluation_strategy": "steps"}, ["eval_strategy", "set train.eval_strategy"]),
        ({"no_cuda": True}, ["use_cpu", "set train.device"]),
        ({"max_seq_length": 512}, ["cutoff_len", "set train.cutoff_len"]),
        (
            {"group_by_length": True},
            ["train_sampling_strategy", "set train.extra.train_sampling_strategy"],
        ),
        ({"output_dir": "x"}, ["train.extra.output_dir is set by the pipeline", "models/adapter"]),
        ({"report_to": "wandb"}, ["set by the pipeline", "track"]),
        ({"save_only_model": True}, ["cannot be resumed"]),
        ({"overwrite_output_dir": False}, ["leave it out"]),
        ({"learning_rate": 1}, ["our own", "set train.learning_rate"]),
        ({"auto_find_batch_size": True}, ["set train.per_device_train_batch_size"]),
        ({"trust_remote_code": True}, ["never run"]),
        ({"add_tokens": "<a>"}, ["the base's tokenizer", "train.extra.resize_vocab=true"]),
        ({"hub_token": "hf_x"}, ["train.extra.hub_token is a secret", "committed"]),
        ({"hf_hub_token": "hf_x"}, ["train.extra.hf_hub_token is a secret", "committed"]),
        ({"swanlab_api_key": "x"}, ["is a secret", "committed"]),
    ],
)
def test_a_key_that_is_ours_or_was_renamed_is_refused_with_what_to_set_instead(
    extra: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(PawlError) as refused:
        check_extra(extra)
    assert refused.value.code == 3
    for word in words:
        assert word in str(refused.value)
    assert "hf_x" not in str(refused.value)


KNOWN: dict[str, Any] = {
    "flash_attn": str,
    "lora_rank": int,
    "data_seed": int | None,
    "neat_packing": bool,
    "adam_beta1": float,
}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            {"flash_atn": "fa2"},
            ["no argument flash_atn", "did you mean set train.extra.flash_attn"],
        ),
        ({"lora_rnk": 4}, ["did you mean set train.lora_rank"]),
        ({"zzzzzz": 1}, ["no argument zzzzzz", "hparams"]),
        ({"neat_packing": "yes"}, ["'yes'", "true or false"]),
        ({"data_seed": 1.5}, ["1.5", "a whole number or null"]),
        ({"adam_beta1": True}, ["True", "a number"]),
    ],
)
def test_an_unknown_key_or_a_wrong_type_is_refused_by_name(
    extra: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(PawlError) as refused:
        check_types(extra, KNOWN)
    for word in words:
        assert word.replace("set train", "train") in str(refused.value).replace(
            "set train", "train"
        )


def test_what_fits_is_taken() -> None:
    check_types(
        {"flash_attn": "fa2", "data_seed": None, "neat_packing": True, "adam_beta1": 1}, KNOWN
    )
    check_extra({"flash_attn": "fa2"})


@pytest.mark.parametrize(
    ("changes", "can"), [({}, True), ({"stage": "rm"}, False), ({"pissa_init": True}, False)]
)
def test_what_cannot_be_resumed_keeps_no_checkpoints(changes: dict[str, Any], can: bool) -> None:
    section = train(**changes)
    assert resumable(section) is can
    assert (config(section, checkpoint_steps=5)["save_strategy"] == "steps") is can


def test_several_nodes_keep_checkpoints_if_all_of_them_see_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage, "has_eval", lambda data: False)
    for nodes, storage, saves in ((1, "", "steps"), (2, "", "no"), (2, "/shared", "steps")):
        launcher = Launcher(
            kind="torchrun", workers=1, nodes=nodes, storage=storage, checkpoint_steps=5
        )
        assert resumable(train(), separate(launcher)) is (saves == "steps")
        assert (
            stage.configuration(train(), launcher, Path("m"), read_params("evaluate").evaluate)[
                "save_strategy"
            ]
            == saves
        )


def test_names_that_are_refused_are_not_also_offered() -> None:
    assert not set(RENAMED) & set(SYSTEM)
    assert not set(RENAMED) & {spec.name for spec in fields(Train)}
