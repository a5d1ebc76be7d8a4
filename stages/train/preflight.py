"""A configuration that cannot work is refused here, in seconds and without a GPU, with the key and
the fix.
"""

from __future__ import annotations

import math
import os
import re
import socket
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import read_json
from stages.common.schema import Launcher, Train
from stages.train import memory
from stages.train.arguments import micro_steps, resumable, separate, steps
from stages.train.combinations import check_combinations
from stages.train.fit import check_disk, check_memory, gpus, processes
from stages.train.known import argument_types, check_extra, check_types, refuse
from stages.train.packages import check_model
from stages.train.rendering import Served, Trained, check_template, refused_by_template
from stages.train.rows import Rows, aligned, check_stage, lengths, read_rows, write_longest


def check_job(job: dict[str, Any]) -> dict[str, Any]:
    """`check` for a job written as JSON by launch.py."""
    given = dict(job)
    return check(Train(**given.pop("train")), Launcher(**given.pop("launcher")), **given)


def check(
    train: Train,
    launcher: Launcher,
    *,
    config: dict[str, Any],
    engine: str,
    data: str,
    served: dict[str, Any],
    micro: str = "",
    rebuilt: bool = False,
    free_gib: float | None = None,
) -> dict[str, Any]:
    """Every check, cheap ones first.

    Args:
        config: what LLaMA-Factory will be given.
        engine: kind of the engine that will serve the result.
        served: how the result will be asked: the folder of the `model`, arguments of its chat
            `template`, the tag `think_close`.
        data: the folder data/train.
        micro: a folder for the longest rows, where a micro run wants them.
        rebuilt: data/train is of another configuration and will be built anew, so what its rows say
            is a warning.
        free_gib: memory of each GPU when the training will get it, if others still use it; None: it
            is looked at.

    Returns:
        {"config", "memory", "warnings"}, and `longest_tokens` of the training rows.

    Raises:
        PawlError: with exit code 3, the first thing that cannot work.
    """
    check_extra(train.extra)
    warnings = check_combinations(train, launcher, engine, gpus=gpus(train))
    rows = read_rows(Path(data))
    soft = warnings if rebuilt else None
    _told(soft, check_stage, rows, train)
    if train.eval_strategy in ("steps", "epoch") and not rows.held_out:
        _told(soft, _no_eval, train)
    check_types(train.extra, argument_types())
    elsewhere = not config["use_cpu"] and not gpus(train)
    # the GPUs are a cluster's, and the parser looks at this machine
    here = (
        {name: value for name, value in config.items() if name not in ("bf16", "fp16")}
        | {"use_cpu": True}
        if elsewhere
        else config
    )
    model = meta_model(config)  # before parse: afterwards ZeRO-3 takes part in making any model
    parsed = parse(here, distributed=launcher.kind != "local")
    check_model(train, model.config.model_type)
    targets = check_modules(model, train)
    count = processes(train, launcher)
    first = micro_steps(train, bool(config["use_cpu"]))
    tried = first * count if micro and steps(train, rows.train, count) > first else 0
    _told(soft, check_thoughts, rows, str(served["think_close"]))
    longest, order = check_rows(rows, train, parsed, served, model, soft)
    if tried:
        batch = train.per_device_train_batch_size * train.gradient_accumulation_steps
        write_longest(Path(micro), rows, order, batch * tried)
    warnings += short_training(train, rows, steps(train, rows.train, count))
    if not order and train.stage != "pt":
        warnings.append(
            f"the rows are not those of stage {train.stage}, so memory is told for rows of"
            " train.cutoff_len"
        )
    evaluates = rows.held_out > 0 and train.eval_strategy != "no"
    need, more = check_memory(
        model,
        train,
        targets,
        launcher,
        longest,
        gpu=not config["use_cpu"],
        free_gib=free_gib,
        evaluates=evaluates,
    )
    checkpoints = check_disk(model, train, targets, launcher, Path(config["output_dir"]))
    if launcher.checkpoint_steps and not resumable(train):
        warnings.append(
            "LLaMA-Factory cannot resume this kind of training: no checkpoints are kept, and a"
            " killed run starts again"
        )
    elif launcher.checkpoint_steps and separate(launcher):
        warnings.append(
            "no checkpoints are kept, and a killed run starts again: set launcher.storage to a"
            " folder that every node sees"
        )
    return {
        "config": config,
        "memory": need,
        "warnings": [*warnings, *more],
        "longest_tokens": longest,
        "checkpoint_gib": checkpoints,
        "rows": rows.train,
        "eval_rows": rows.held_out,
    }


def _told(soft: list[str] | None, check_one: Any, *arguments: Any) -> None:
    """Run a check of rows; with `soft` (data/train will be built anew) what it finds is a
    warning.
    """
    try:
        check_one(*arguments)
    except PawlError as error:
        if soft is None:
            raise
        soft.append(f"data/train will be built anew; as it is now: {error.what}")


def _no_eval(train: Train) -> None:
    fix = "set data.eval_fraction, or train.eval_strategy=auto"
    raise refuse(
        f"train.eval_strategy is {train.eval_strategy}, but data/train holds no eval rows",
        "train.eval_strategy",
        fix,
    )


def short_training(train: Train, rows: Rows, total: int) -> list[str]:
    """Warnings about a training with so few steps that a setting means something else than it
    says.
    """
    found = []
    batch = train.per_device_train_batch_size * train.gradient_accumulation_steps
    if rows.train < batch:
        found.append(
            f"{rows.train} rows are fewer than the {batch} of one optimizer step (batch size times"
            " gradient accumulation)"
        )
    given = float(train.extra.get("warmup_steps", train.warmup_ratio))
    if train.warmup_ratio == 1 and "warmup_steps" not in train.extra:
        found.append(
            "train.warmup_ratio is 1, which the trainer takes for one step: set"
            " train.extra.warmup_steps"
        )
    warm = int(given) if given >= 1 else math.ceil(given * total)
    if warm >= total and given:
        key = "train.extra.warmup_steps" if "warmup_steps" in train.extra else "train.warmup_ratio"
        found.append(
            f"the warm-up ({key}) takes {warm} steps and the training has {total}: the learning"
            " rate is never reached"
        )
    if total == 1 and warm:
        found.append(
            "the only step is made at a learning rate of 0, so nothing is learnt: train more steps,"
            " or set train.warmup_ratio=0"
        )
    if rows.held_out and train.eval_strategy in ("auto", "steps") and train.eval_steps > total:
        found.append(
            f"train.eval_steps is {train.eval_steps:g} and the training has {total} steps: the"
            " held-out rows are not evaluated"
        )
    return found


def check_thoughts(rows: Rows, closing: str) -> None:
    """Refuse rows that teach a model to think aloud if the evaluation will not take the thoughts
    off.
    """
    thinking = sum("</think>" in line for line in rows.first)
    if 2 * thinking > len(rows.first) and closing != "</think>":
        fix = "add \"evaluate.think_open='<think>'\" \"evaluate.think_close='</think>'\""
        raise refuse(
            "the rows hold <think>, which evaluation would score as part of the answer",
            "evaluate.think_close",
            fix,
        )


def parse(config: dict[str, Any], distributed: bool) -> Any:
    """LLaMA-Factory's own parser and its checks. Returns its (model, data, training, finetuning,
    generating) arguments.
    """
    # what needs several processes is checked as one of one
    if distributed and "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
    from llamafactory.hparams import get_train_args

    try:
        return get_train_args(dict(config))
    except (
        ValueError,
        TypeError,
        AssertionError,
        ImportError,
        KeyError,
        OSError,
        RuntimeError,
    ) as error:
        text = " ".join(str(error).split())
        named = [
            name
            for name in re.findall(r"[a-z][a-z0-9_]+", text)
            if name in config or f"`{name}`" in text
        ]
        key = "train"
        if named:
            ours = named[0] in Train.__dataclass_fields__
            key = f"train.{named[0]}" if ours else f"train.extra.{named[0]}"
        raise refuse(
            f"LLaMA-Factory refuses the configuration: {text[:600]}",
            key,
            f"change {key}, which it names",
        ) from None


def meta_model(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    try:
        return memory.meta_model(AutoConfig.from_pretrained(config["model_name_or_path"]))
    except (ValueError, OSError, KeyError) as error:
        fix = (
            "choose a causal language model that transformers knows (trust_remote_code models"
            " cannot be estimated)"
        )
        raise refuse(
            f"the base's config.json describes no causal language model: {str(error)[:300]}",
            "model",
            fix,
        ) from None


def check_modules(model: Any, train: Train) -> list[str]:
    """The last names of the modules that get an adapter; refuses names that the model does not
    have.
    """
    present = {name.rpartition(".")[2] for name, _ in model.named_modules() if name}
    layers = model.config.get_text_config().num_hidden_layers
    if train.finetuning_type not in ("lora", "oft"):
        return []
    key = "lora_target" if train.finetuning_type == "lora" else "extra.oft_target"
    target = (
        train.lora_target
        if train.finetuning_type == "lora"
        else str(train.extra.get("oft_target", "all"))
    )
    for name, value in ((key, target), ("additional_target", train.additional_target)):
        for part in filter(None, (part.strip() for part in value.split(","))):
            if (
                part not in present
                and not (part == "all" and name == key)
                and not any(n.endswith(f".{part}") for n, _ in model.named_modules())
            ):
                there = sorted(present - {str(number) for number in range(layers)})
                fix = f"the model has: {', '.join(there)[:300]}"
                raise refuse(
                    f"train.{name} names {part}, which the model does not have",
                    f"train.{name}",
                    fix,
                )
    if target != "all":
        return [part.strip().rpartition(".")[2] for part in target.split(",")]
    from llamafactory.model.model_utils.misc import find_all_linear_modules

    return sorted(find_all_linear_modules(model, True))


def check_rows(
    rows: Rows, train: Train, parsed: Any, serving: dict[str, Any], model: Any, soft: Any
) -> tuple[int, list[int]]:
    """Template, special tokens and lengths, on rendered rows. Returns the tokens of the longest row
    (cutoff_len for plain text), and the order of the longest rows by tokens.
    """
    from jinja2 import TemplateError
    from llamafactory.data import get_template_and_fix_tokenizer
    from llamafactory.model import load_tokenizer
    from transformers import AutoTokenizer

    model_args, data_args, *_ = parsed
    tokenizer = load_tokenizer(model_args)["tokenizer"]
    served = AutoTokenizer.from_pretrained(serving["model"])
    sizes = (len(served), model.config.get_text_config().vocab_size)
    if sizes[0] > sizes[1] and not train.extra.get("resize_vocab"):
        fix = (
            "take the tokenizer that belongs to the base, or set train.extra.resize_vocab and"
            " train.additional_target"
        )
        raise refuse(
            f"the tokenizer has {sizes[0]} tokens, the model only {sizes[1]}", "model", fix
        )
    try:
        template = get_template_and_fix_tokenizer(tokenizer, data_args)
    except TemplateError as error:
        raise refused_by_template(
            error, "what LLaMA-Factory asks of it to find its parts"
        ) from None
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        fix = (
            "choose LLaMA-Factory's template of this model"
            if not train.template
            else "leave it empty, or choose one of LLaMA-Factory's"
        )
        raise refuse(f"no template: {error}", "train.template", fix) from None
    examples = aligned(rows.longest, rows, data_args)
    if train.stage != "pt":
        looked_at = list(
            zip(
                [*range(1, len(rows.first) + 1), *rows.numbers[:4]],
                aligned(rows.first, rows, data_args) + examples[:4],
                strict=True,
            )
        )
        trained = Trained(
            template, tokenizer, several=train.stage == "sft", mask_history=data_args.mask_history
        )
        check_template(
            trained,
            Served(served, serving["template"]),
            [(f"row {number} of data/train", row) for number, row in looked_at],
            train.template,
            ends(Path(serving["model"]), served),
        )
    found = lengths(examples, train, template, tokenizer, data_args)
    order = sorted(range(len(found)), key=lambda number: -found[number])
    # plain text, or rows of another stage: each may be as long as one is allowed to be
    if not any(found):
        return train.cutoff_len, []
    _told(soft, _check_length, max(found), train)
    return min(max(found), train.cutoff_len), order


def _check_length(longest: int, train: Train) -> None:
    if longest > train.cutoff_len:
        fix = (
            "raise train.cutoff_len, or let generate_data remove such rows: 'dvc repro"
            " generate_data'"
        )
        raise refuse(
            f"the longest row has {longest} tokens and would be cut at {train.cutoff_len}",
            "train.cutoff_len",
            fix,
        )


def ends(folder: Path, tokenizer: Any) -> set[int]:
    """Token ids that end a generation: the tokenizer's, and those of generation_config.json, which
    the engines obey.
    """
    file = folder / "generation_config.json"
    given = read_json(file).get("eos_token_id") if file.exists() else None
    found = {tokenizer.eos_token_id, *(given if isinstance(given, list) else [given])} - {None}
    if not found:
        raise refuse(
            "no token ends a generation",
            "model",
            "set eos_token in the base's tokenizer_config.json",
        )
    return found
