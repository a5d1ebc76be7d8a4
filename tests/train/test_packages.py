"""What is named and absent is refused before the model is loaded, and so is what would be left out
in silence.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from typing import Any

import pytest

from stages.common.errors import PawlError
from stages.train import packages
from tests.train.test_arguments import train

NEEDS: list[tuple[dict[str, Any], str, str]] = [
    ({"quantization_bit": 4}, "train.quantization_bit", "bitsandbytes"),
    ({"quantization_bit": 8}, "train.quantization_bit", "bitsandbytes"),
    (
        {"quantization_bit": 4, "extra": {"quantization_method": "hqq"}},
        "train.quantization_bit",
        "hqq",
    ),
    ({"optim": "adamw_8bit"}, "train.optim", "bitsandbytes"),
    ({"optim": "paged_lion_32bit"}, "train.optim", "bitsandbytes"),
    ({"optim": "rmsprop_bnb"}, "train.optim", "bitsandbytes"),
    ({"optim": "adamw_torch_8bit"}, "train.optim", "torchao"),
    ({"optim": "galore_adamw_8bit"}, "train.optim", "galore_torch"),
    ({"optim": "adalomo"}, "train.optim", "lomo_optim"),
    ({"extra": {"flash_attn": "fa2"}}, "train.extra.flash_attn", "flash_attn"),
    ({"extra": {"flash_attn": "fa3"}}, "train.extra.flash_attn", "flash_attn_interface"),
    ({"extra": {"enable_liger_kernel": True}}, "train.extra.enable_liger_kernel", "liger_kernel"),
    ({"extra": {"fp8": True}}, "train.extra.fp8", "torchao"),
    ({"extra": {"fp8": True, "fp8_backend": "te"}}, "train.extra.fp8", "transformer_engine"),
]
ON_A_GPU_ALONE = [
    changes
    for changes, _, package in NEEDS
    if package not in ("torchao", "galore_torch", "lomo_optim")
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "key", "package"), NEEDS)
def test_a_package_that_is_absent_is_named(
    changes: dict[str, Any], key: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else object()
    )
    with pytest.raises(
        PawlError, match=f"needs the package {package}, which is not installed"
    ) as refused:
        packages.check_packages(train(**changes), gpu=True)
    assert refused.value.code == 3 and refused.value.where == key and refused.value.fix
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    packages.check_packages(train(**changes), gpu=True)


@pytest.mark.parametrize("changes", ON_A_GPU_ALONE)
def test_without_a_gpu_it_is_the_gpu_that_is_missing(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(PawlError, match="works on a GPU alone"):
        packages.check_packages(train(**changes), gpu=False)


@pytest.mark.parametrize(
    "optim", ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"]
)
def test_what_torch_has_itself_needs_nothing(optim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    packages.check_packages(train(optim=optim), gpu=False)
    packages.check_packages(train(extra={"flash_attn": "sdpa"}), gpu=False)


def test_what_checkpointing_is_moved_to_the_host_by_wants_checkpointing_and_a_gpu() -> None:
    section = train(extra={"use_unsloth_gc": True}, gradient_checkpointing=True)
    packages.check_packages(section, gpu=True)
    with pytest.raises(PawlError, match="there is no GPU"):
        packages.check_packages(section, gpu=False)
    section.gradient_checkpointing = False
    with pytest.raises(PawlError, match="which is off") as refused:
        packages.check_packages(section, gpu=True)
    assert "train.gradient_checkpointing=true" in refused.value.fix


def test_a_kind_of_model_that_it_would_be_left_out_for_is_refused() -> None:
    liger, shifted = train(extra={"enable_liger_kernel": True}), train(extra={"shift_attn": True})
    packages.check_model(liger, "qwen2")
    packages.check_model(shifted, "llama")
    packages.check_model(train(), "smollm3")
    for section, kind in ((liger, "smollm3"), (shifted, "qwen2")):
        with pytest.raises(PawlError, match=f"for models of type {kind}"):
            packages.check_model(section, kind)


@pytest.mark.e2e
def test_the_kinds_of_models_are_those_of_the_installed_trainer() -> None:
    from llamafactory.extras.constants import SUPPORTED_CLASS_FOR_S2ATTN
    from llamafactory.model.model_utils import liger_kernel

    source = (
        inspect.getsource(liger_kernel.apply_liger_kernel)
        .partition("model_type = ")[2]
        .partition("require_logits")[0]
    )
    found = {
        name
        for line in re.findall(r"model_type (?:==|in) (.+):", source)
        for name in re.findall(r'"(\w+)"', line)
    }
    assert found == set(packages._LIGER) and set(packages._SHIFTED) == SUPPORTED_CLASS_FOR_S2ATTN
