"""The failures that are recognised: what they look like in an error, a trace or a log, why they happen, and what to do."""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """A failure that is recognised. `patterns` are regular expressions of one line, case ignored."""

    label: str
    name: str
    patterns: tuple[str, ...]
    why: str
    fix: str


# the first that matches counts, so what is certain comes before what is only likely
CAUSES = (
    Cause(
        "ENV",
        "disk full",
        (
            r"No space left on device", r"disk is full", r"Disk quota exceeded", r"errno 28\b",
            r"inline_container.{0,40}unexpected pos", r"StreamWriter failed writing",  # what torch.save says of it
        ),
        "The disk is full, so a file could not be written; nothing half-written was kept.",
        "Free space and run again: .pawl/merged can be rebuilt, and 'dvc gc' drops cached results that no commit needs.",
    ),
    Cause(
        "OOM",
        "GPU memory",
        (r"CUDA out of memory", r"OutOfMemoryError", r"CUBLAS_STATUS_ALLOC_FAILED", r"HIP out of memory", r"No available memory for"),
        "The memory of the GPU did not suffice for model, activations and optimiser together.",
        "Halve train.per_device_train_batch_size and double train.gradient_accumulation_steps, switch train.gradient_checkpointing on or "
        "lower train.cutoff_len; for a server, lower engine.max_model_len.",
    ),
    Cause(
        "OOM",
        "machine memory",
        (
            r"\bMemoryError\b", r"can'?t allocate memory", r"Cannot allocate memory", r"DefaultCPUAllocator", r"Unable to allocate",
            r"oom-kill", r"Out of memory: Killed", r"ran out of memory", r"failed to map segment", r"std::bad_alloc",
        ),
        "The memory of the machine did not suffice.",
        "Lower train.per_device_train_batch_size (and raise train.gradient_accumulation_steps), train.cutoff_len or evaluate.concurrency, "
        "or run on a machine with more memory.",
    ),
    Cause(
        "CONFIG",
        "diverged",
        (
            r"loss\b.{0,30}\b(?:is|became|was) (?:nan|inf|not finite)", r"not finite", r"non-?finite",
            r"['\"](?:loss|grad_norm)['\"]: ['\"]?(?:nan|inf)\b", r"diverged", r"\bNaN loss",
        ),
        "The training loss became NaN or infinite: the run diverged.",
        "Lower train.learning_rate (a tenth is a good first try) or lengthen train.warmup_ratio; with fp16, use bf16.",
    ),
    Cause(
        "CONFIG",
        "unknown key",
        (
            r"unknown (?:key|section)", r"not used by the HfArgumentParser", r"Key '[^']+' (?:is )?not in", r"Could not override",
            r"unrecognized arguments", r"unexpected keyword argument",
        ),
        "A parameter has a name that nothing knows.",
        "Correct the name (the message names it, and often the nearest one that exists); 'python -m stages.common.config' checks them all.",
    ),
    Cause(
        "ENV",
        "missing package",
        (
            r"ModuleNotFoundError", r"No module named", r"PackageNotFoundError", r"\bis not installed\b", r"please (?:run )?.?pip install",
            r"requires? .{0,60} to be installed", r"program not found", r"command not found",
        ),
        "A package or a program that this stage needs is not installed.",
        "Run 'make' to install what the lock names; an optional library belongs into pyproject.toml and the lock ('make lock'), and "
        "'make serve-env' installs vLLM.",
    ),
    Cause(
        "DATA",
        "empty data",
        (
            r"cannot find valid samples", r"empty dataset", r"no (?:training )?rows", r"dataset is empty", r"num_samples=0", r"\b0 rows",
            r"\bno items\b", r"empty JSON file", r"no (?:row|example)s? (?:is|are|was|were) left",
        ),
        "No usable rows are left in the data.",
        "reports/data_card.md names the filter that removed them: a source that is empty or of another format, data.max_rows, or rows all "
        "longer than train.cutoff_len.",
    ),
    Cause(
        "DATA",
        "format of the data",
        (
            r"JSONDecodeError", r"broken line", r"not valid JSON", r"expected a JSON object", r"column missing", r"ArrowInvalid",
            r"DatasetGenerationError", r"not UTF-8", r"chat.template (?:is not set|is missing)",
        ),
        "A file of data or results is not in the form that this stage reads.",
        "Mend the file and line that the message names, or make it again with 'dvc repro -f' on the stage that writes it.",
    ),
    Cause(
        "ENV",
        "missing file",
        (r"FileNotFoundError", r"No such file or directory", r"file .{0,40}is missing\b"),
        "A file that this stage needs is not there.",
        "'dvc repro' makes what the pipeline can make, 'dvc pull' fetches what a remote holds; a path of your own has to exist.",
    ),
    Cause(
        "CONFIG",
        "value",
        (
            r"out of range", r"of the wrong type", r"choose one of", r"ValueError", r"has no value", r"ScannerError", r"ParserError",
            r"mapping values are not allowed",
        ),
        "A parameter has a value that this stage does not take.",
        "Correct the key that the message names; the comments in conf/ say what each one does.",
    ),
)  # fmt: skip
