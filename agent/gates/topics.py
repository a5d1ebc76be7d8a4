"""Whether a text is about a parameter or about what it does: a quote about something else is no
reason to change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.gates.citations import normal

_CAPACITY = r"capacity|expressive|trainable param|overfit|underfit|low-rank|intrinsic dimension"
_STEP = r"learning rate|\blr\b|step size|diverg|unstable|oscillat|converge"
_PASSES = (
    r"epoch|passes? over|training steps|max_steps|overfit|memori[sz]|number of (training"
    r" )?(steps|updates)"
)
_BATCH = r"batch|gradient noise|accumulat|throughput"
_QUANTITY = (
    r"samples|examples|rows|data ?set size|amount of data|number of (training"
    r" )?(examples|samples)|more data|less data"
)
_QUALITY = r"quality|correct|verif|filter|duplicat|dedup|clean|noise|noisy|consisten|hallucinat|factual|ground"
_FORMAT = r"prompt|template|format|instruction|context|special tokens"
TOPICS: dict[str, str] = {
    r"train\.learning_rate|train\.extra\.loraplus_.*": _STEP,
    r"train\.(lr_scheduler_type|warmup_ratio)|train\.extra\.warmup_steps": (
        f"schedul|warm-?up|decay|{_STEP}"
    ),
    r"train\.(lora_rank|oft_block_size)": rf"\brank\b|\br\b|block size|{_CAPACITY}",
    r"train\.(lora_alpha|use_rslora)": rf"\balpha\b|scaling|rslora|\brank\b|{_STEP}",
    r"train\.(lora_target|additional_target|freeze_trainable_layers|finetuning_type|use_dora|pissa_init)": (
        rf"modules|layers|target|linear|dora|pissa|full fine-?tuning|adapter|{_CAPACITY}"
    ),
    r"train\.(num_train_epochs|max_steps)": _PASSES,
    r"train\.(per_device_train_batch_size|gradient_accumulation_steps)": _BATCH,
    r"train\.(lora_dropout|weight_decay|label_smoothing_factor|neftune_noise_alpha|max_grad_norm)": (
        "dropout|weight decay|regulari[sz]|overfit|smoothing|neftune|noise|clip|grad(ient)?"
        " norm|generali[sz]"
    ),
    r"train\.(cutoff_len|packing)": "length|cutoff|truncat|pack|context|max_seq",
    r"train\.(quantization_bit|precision|gradient_checkpointing)": (
        "quanti[sz]|precision|bf16|fp16|bit|memory|checkpointing"
    ),
    r"train\.template": _FORMAT,
    r"data\.(max_rows|sources\.[^.]+\.(count|weight)|stratify)": (
        f"{_QUANTITY}|mixture|proportion|balance|stratif|{_QUALITY}"
    ),
    r"data\.eval_fraction": f"{_QUANTITY}|evaluation|held[- ]out|validation|overfit",
    r"data\.sources\.[^.]+\.prompt": f"{_FORMAT}|{_QUALITY}",
    r"data\.(think_tags|sources\.[^.]+\.settings\..*)": (
        f"{_FORMAT}|difficult|reasoning|think|{_QUALITY}|{_QUANTITY}"
    ),
    r"data\.(near_duplicates|sources\.[^.]+\.(recipe|tier|candidates|verify)|teacher\..*)": (
        f"teacher|synthetic|sampl|{_QUALITY}"
    ),
    r"model\..*": "model|instruct|base|chat|parameters",
}
"""What a quote about a parameter speaks of: the parameter in other words, or its effect."""


def concerns(key: str, text: str, citation: str = "") -> bool:
    """Whether a quote speaks of a parameter by its name, in other words, or of its effect.
    `citation` may name the very argument.
    """
    said, name = normal(text), key.rpartition(".")[2]
    if (
        normal(name) in said
        or normal(name.replace("_", " ")) in said
        or re.search(rf"[.\s]{re.escape(name)}\]$", citation)
    ):
        return True
    topics: Iterable[str] = [
        words for pattern, words in TOPICS.items() if re.fullmatch(pattern, key)
    ] or [_words(name)]
    return any(re.search(words, said) for words in topics)


def _words(name: str) -> str:
    """Of a parameter without topics: the longer words of its own name."""
    parts = [re.escape(part) for part in name.lower().split("_") if len(part) > 3]
    return "|".join(parts) or re.escape(name.lower())
