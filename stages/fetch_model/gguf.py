"""A GGUF file as a Hugging Face folder: weights dequantised by transformers, tokenizer rebuilt from
the GGUF's own tables.

transformers' own conversion of the tokenizer is wrong for SmolLM2: eos becomes `<|im_start|>`, pad
is missing and numbers are no longer split into digits. Built from the tables as below it agreed
with llama.cpp's tokenizer on 3,800 of 3,800 strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.common.errors import PawlError
from stages.common.files import to_json

_CONTROL = 3  # GGUF's token type of special tokens


def convert(source: Path, target: Path, dtype: str) -> None:
    """Write the model in the GGUF file `source` into the folder `target` (safetensors of `dtype`,
    config, tokenizer, chat template).

    Raises:
        PawlError: no GGUF file, or a kind of tokenizer that this module does not know.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
    except ValueError as error:
        raise PawlError(
            f"this is not a GGUF file: {error}", where=source.name, fix="correct model.file"
        ) from None

    def field(name: str) -> Any:
        try:
            return reader.fields[name].contents()
        except KeyError:
            raise PawlError(
                f"the GGUF file lacks the field {name}",
                where=source.name,
                fix="choose another file",
            ) from None

    kind = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise PawlError(
            f"the tokenizer {'/'.join(kind)} is not supported",
            where=source.name,
            fix="add it to stages/fetch_model/gguf.py, with a proof",
        )
    ids = {
        name: int(field(f"tokenizer.ggml.{name}_token_id"))
        for name in ("bos", "eos", "unknown", "padding")
    }
    _write_tokenizer(field, ids, target)
    _write_weights(source, ids, target, dtype)


def _write_tokenizer(field: Callable[[str], Any], ids: dict[str, int], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    inner = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=tokens[ids["bos"]],
        eos_token=tokens[ids["eos"]],
        unk_token=tokens[ids["unknown"]],
        pad_token=tokens[ids["padding"]],
        model_max_length=int(field("llama.context_length")),
        clean_up_tokenization_spaces=False,
        add_prefix_space=False,
    )
    tokenizer.chat_template = field("tokenizer.chat_template")
    tokenizer.save_pretrained(target)
    # any other class ('GPT2Tokenizer' is the hub's) rebuilds the pre-tokenizer on loading and drops
    # Digits again
    _edit(
        target / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        drop="backend",
    )


def _write_weights(source: Path, ids: dict[str, int], target: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=getattr(torch, dtype)
    )
    special = {
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids["padding"],
    }
    model.config.update(special)
    if hasattr(model.config, "unk_token_id"):
        del model.config.unk_token_id
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(target)
    _edit(target / "config.json", {}, drop="_model_name_or_path")  # the temporary folder's name


def _edit(path: Path, changes: dict[str, Any], drop: str) -> None:
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    value.pop(drop, None)
    path.write_text(to_json(value), encoding="utf-8")


def prove(folder: Path, max_new_tokens: int = 48) -> dict[str, Any]:
    """Load the folder as every later stage does, ask one question greedily, and return {prompt,
    text, tokens}.

    Raises:
        PawlError: the reply does not end by itself within `max_new_tokens`, or numbers are not
            split into digits.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if len(tokenizer.tokenize("2026")) != 4:
        raise PawlError(
            "the converted tokenizer does not split numbers into digits",
            where=str(folder),
            fix="see stages/fetch_model/gguf.py",
        )
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = "What is the capital of France?"
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    reply = output[0, inputs["input_ids"].shape[1] :].tolist()
    text = tokenizer.decode(reply, skip_special_tokens=True)
    if reply[-1] != tokenizer.eos_token_id:
        what = (
            f"the converted model does not stop: {len(reply)} tokens and no end after {prompt!r}:"
            f" {text!r:.200}"
        )
        raise PawlError(
            what,
            where=str(folder),
            fix="its end-of-sequence token is wrong; see stages/fetch_model/gguf.py",
        )
    return {"prompt": prompt, "text": text, "tokens": len(reply)}
