"""The cause of a dead server is found in its log, and the known fix named."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.evaluate.serve import server_log

# as vLLM 0.33 writes them, cut: the cause stands far above the end
DEAD = {
    "ValueError: Free memory on device (20.1/23.6 GiB) on startup is less than desired GPU memory utilization": (
        "gpu_memory_utilization"
    ),
    "ValueError: To serve at least one request (32768), 4.0 GiB KV cache is needed, which is larger than": (
        "max_model_len"
    ),
    "RuntimeError: The NVIDIA driver on your system is too old.": "update the NVIDIA driver",
    "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.": "gcc",
    "AssertionError: 28 is not divisible by tensor parallel size 8": "tensor_parallel=auto",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "free the GPU",
    "RuntimeError: NCCL error: unhandled system error": "NCCL_P2P_DISABLE",
    "RuntimeError: Failed to infer device type": "vllm_cpu",
}


@pytest.mark.parametrize(("line", "fix"), DEAD.items())
def test_a_dead_server_is_explained_by_its_cause_and_not_by_its_last_lines(
    tmp_path: Path, line: str, fix: str
) -> None:
    log = tmp_path / "serve.log"
    end = "RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n"
    log.write_text(
        f"INFO loading\n(EngineCore pid=7) ERROR {line}\n"
        + "  frame of a traceback, of which there are many\n" * 200
        + end
    )
    shown, told = server_log.last_words(log)
    assert fix in told
    assert shown.splitlines()[0].endswith(line) and "See root cause above" in shown


def test_an_unknown_error_is_shown_first_and_given_no_fix(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text(
        "KeyError: 'rope_scaling'\n"
        + "noise\n" * 2000
        + "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    shown, fix = server_log.last_words(log)
    assert shown.startswith("KeyError: 'rope_scaling'") and fix == ""
    assert server_log.last_words(tmp_path / "none") == ("", "")
