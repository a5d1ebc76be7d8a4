"""Servers are started as meant, watched, and always gone afterwards; a GPU's command line is
checked without a GPU.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from stages.common import llm
from stages.common.errors import PawlError
from stages.common.gpus import prove
from stages.common.lease import Wanted, leased
from stages.common.models import fixed_date
from stages.common.placement import Split
from stages.common.schema import LLM, Engine
from stages.evaluate.serve import adapter as adapters
from stages.evaluate.serve import commands, engine, server
from tests.fake_server import FakeServer
from tests.gpu_machines import H100, RTX4090, TURING, Gpu

SERVER = """
import json, sys, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        print("dying now", flush=True); import os; os._exit(7)
print("loading", flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def settings(kind: str, **changes: object) -> Engine:
    known = {
        "name": kind,
        "kind": kind,
        "dtype": "float32",
        "max_model_len": 1024,
        "startup_timeout_s": 20.0,
    }
    return Engine(**{**known, **changes})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def make_adapter(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 16, "rank_pattern": {}, **config}))
    (folder / "adapter_model.safetensors").write_bytes(b"lora")
    return folder


def render(
    kind: str,
    model: Path,
    adapter: Path | None = None,
    gpus: int = 0,
    copies: int = 1,
    **changes: object,
) -> commands.Command:
    return commands.command(
        settings(kind, **changes),
        model,
        adapter,
        port=9100,
        split=Split(gpus, copies),
        python="/env/bin/python",
    )


def value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


@pytest.mark.parametrize("kind", ["transformers", "vllm", "vllm_cpu"])
def test_every_server_listens_on_the_loopback_interface_only_and_asks_no_hub(
    kind: str, model: Path
) -> None:
    started = render(kind, model)
    assert value(started.argv, "--host") == "127.0.0.1" and value(started.argv, "--port") == "9100"
    assert value(started.argv, "--dtype") == "float32"
    assert started.env["HF_HUB_OFFLINE"] == "1" and started.env["DO_NOT_TRACK"] == "1"


def test_transformers_names_its_model_by_folder(model: Path) -> None:
    started = render("transformers", model, max_model_len=2048)
    assert started.argv[:3] == ["/env/bin/python", "-m", "stages.evaluate.serve.batching"]
    assert (
        value(started.argv, "--model") == str(model) == started.model
        and value(started.argv, "--max-model-len") == "2048"
    )
    assert value(started.argv, "--device") == "cpu" and started.env["OMP_WAIT_POLICY"] == "PASSIVE"
    on_gpu = render("transformers", model, gpus=1)
    assert value(on_gpu.argv, "--device") == "cuda" and "OMP_WAIT_POLICY" not in on_gpu.env


def test_vllm_spreads_over_the_visible_gpus(model: Path) -> None:
    assert value(render("vllm", model, gpus=4).argv, "--tensor-parallel-size") == "4"
    assert "--tensor-parallel-size" not in render("vllm", model, gpus=1).argv
    assert value(render("vllm", model, gpus=2, copies=4).argv, "--data-parallel-size") == "4"
    assert "--data-parallel-size" not in render("vllm", model, gpus=4).argv
    started = render("vllm", model, gpus=1, extra_args=["--seed", "7"], gpu_memory_utilization=0.5)
    assert started.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert started.argv[-2:] == ["--seed", "7"] and started.model == "base"
    assert (
        value(started.argv, "--gpu-memory-utilization") == "0.5"
        and value(started.argv, "--max-model-len") == "1024"
    )
    assert value(started.argv, "--chat-template") == str(model / "chat_template.jinja")
    assert "VLLM_BATCH_INVARIANT" not in started.env
    assert started.env["VLLM_NO_USAGE_STATS"] == "1" and "VLLM_CPU_KVCACHE_SPACE" not in started.env


@pytest.mark.parametrize("kind", ["vllm", "vllm_cpu"])
def test_vllm_samples_as_it_is_asked_and_not_as_the_models_folder_says(
    kind: str, model: Path
) -> None:
    """Qwen2.5's generation_config.json has repetition_penalty and top_k, which vLLM would take for
    whatever a request leaves out.
    """
    assert value(render(kind, model).argv, "--generation-config") == "vllm"


def test_vllm_cpu_bounds_its_cache_unless_told_otherwise(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert render("vllm_cpu", model, gpus=4).env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "--tensor-parallel-size" not in render("vllm_cpu", model, gpus=4).argv
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "6")
    assert render("vllm_cpu", model).env["VLLM_CPU_KVCACHE_SPACE"] == "6"


@pytest.mark.parametrize(
    ("rank", "pattern", "allowed"),
    [(1, {}, 8), (8, {}, 8), (9, {}, 16), (16, {"q_proj": 100}, 128), (512, {}, 512)],
)
def test_vllm_serves_the_adapter_with_the_next_rank_it_knows(
    rank: int, pattern: dict, allowed: int, model: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(tmp_path / "adapter", r=rank, rank_pattern=pattern)
    started = render("vllm", model, adapter)
    assert "--enable-lora" in started.argv and value(started.argv, "--max-lora-rank") == str(
        allowed
    )
    assert (
        value(started.argv, "--lora-modules") == f"adapter={adapter}" and started.model == "adapter"
    )


def test_a_rank_that_vllm_cannot_serve_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="rank is 1024"):
        render("vllm", model, make_adapter(tmp_path / "adapter", r=1024))


def test_the_adapter_is_known_by_what_it_computes(tmp_path: Path) -> None:
    first = make_adapter(
        tmp_path / "a", base_model_name_or_path="/here", target_modules=["q_proj", "v_proj"]
    )
    again = make_adapter(
        tmp_path / "b", base_model_name_or_path="/there", target_modules=["v_proj", "q_proj"]
    )
    assert adapters.sha256(first) == adapters.sha256(again)
    assert adapters.sha256(first) != adapters.sha256(
        make_adapter(tmp_path / "c", target_modules=["q_proj", "v_proj"], r=8)
    )
    (again / "adapter_model.safetensors").write_bytes(b"other")
    assert adapters.sha256(first) != adapters.sha256(again)


def test_without_vllm_the_error_says_how_to_get_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_SERVE_PYTHON", str(tmp_path / "absent"))
    with (
        pytest.raises(PawlError) as caught,
        engine.serve(settings("vllm_cpu"), model, None, tmp_path / "log"),
    ):
        pass
    assert "make serve-env" in caught.value.fix


def test_a_model_without_chat_template_is_refused_before_anything_starts(
    model: Path, tmp_path: Path
) -> None:
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text("{}")
    with (
        pytest.raises(PawlError, match="no chat template"),
        engine.serve(settings("transformers"), model, None, tmp_path / "log"),
    ):
        pass


@pytest.fixture
def fake_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that is started instead of an engine; returns its path."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def command(*args: object, port: int, **kwargs: object) -> commands.Command:
        return commands.Command(
            [sys.executable, str(script), "--port", str(port), "--model", "m"], "fake"
        )

    monkeypatch.setattr(engine, "command", command)
    return script


def test_a_server_that_dies_at_start_is_noticed_at_once_and_shows_its_last_lines(
    fake_command: Path, model: Path, tmp_path: Path
) -> None:
    fake_command.write_text("import sys; print('cannot allocate 4 GiB', flush=True); sys.exit(3)")
    begun = time.monotonic()
    with pytest.raises(PawlError, match=r"(?s)code 3.*cannot allocate 4 GiB"):
        with engine.serve(
            settings("transformers", startup_timeout_s=60), model, None, tmp_path / "log"
        ):
            pass
    assert time.monotonic() - begun < 10


def test_a_server_that_never_gets_ready_is_stopped(
    fake_command: Path, model: Path, tmp_path: Path
) -> None:
    noted = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    fake_command.write_text(f"import os, time; {noted}; print('slow', flush=True); time.sleep(60)")
    with pytest.raises(PawlError, match=r"(?s)not ready after 1.5 s.*slow"):
        with engine.serve(
            settings("transformers", startup_timeout_s=1.5), model, None, tmp_path / "log"
        ):
            pass
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_server_is_gone_and_its_port_free_after_the_block_and_after_an_error(
    fake_command: Path, model: Path, tmp_path: Path
) -> None:
    ports = []
    for fail in (False, True):
        try:
            with engine.serve(settings("transformers"), model, None, tmp_path / "log") as endpoint:
                ports.append(int(endpoint.base_url.split(":")[2].split("/")[0]))
                if fail:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_that_dies_in_the_middle_gives_the_evaluation_its_last_lines(
    fake_command: Path, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(PawlError, match=r"(?s)code 7.*dying now"):
        with engine.serve(settings("transformers"), model, None, tmp_path / "log") as endpoint:
            asked = LLM(
                base_url=endpoint.base_url,
                model=endpoint.model,
                max_output_tokens=4,
                timeout_s=5,
                retries=1,
            )
            llm.ask(asked, [[{"role": "user", "content": "hello"}]], {}, watch=endpoint.check)


def test_the_fingerprint_names_no_port_time_or_path(
    fake_command: Path, model: Path, tmp_path: Path
) -> None:
    seen = []
    for _ in range(2):
        with engine.serve(
            settings("transformers"), model, None, tmp_path / "log", weights_sha256="abc"
        ) as endpoint:
            seen.append(endpoint.fingerprint)
    assert (
        seen[0] == seen[1] and seen[0]["base_sha256"] == "abc" and seen[0]["adapter_sha256"] is None
    )
    assert str(tmp_path) not in json.dumps(seen[0])


@pytest.mark.parametrize(
    ("wanted", "stored", "asked"),
    [("auto", "bfloat16", "bfloat16"), ("float32", "bfloat16", "float32")],
)
def test_a_merged_model_is_asked_in_the_precision_of_its_base(
    wanted: str,
    stored: str,
    asked: str,
    model: Path,
    tmp_path: Path,
    fake_command: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What merges writes is float32: "auto" would then mean another precision for the candidate
    than for its base.
    """
    (model / "config.json").write_text(json.dumps({"dtype": stored}))
    seen: list[str] = []
    usual = engine.command
    monkeypatch.setattr(
        engine, "command", lambda kind, *args, **kwargs: seen.append(kind.dtype) or usual(**kwargs)
    )
    with engine.serve(
        settings("transformers", dtype=wanted), model, None, tmp_path / "log", weights_sha256="abc"
    ) as endpoint:
        assert set(seen) == {asked} and endpoint.fingerprint["dtype"] == asked


def test_meanwhile_runs_once_while_the_server_starts(
    fake_command: Path, model: Path, tmp_path: Path
) -> None:
    calls: list[int] = []
    with engine.serve(
        settings("transformers"), model, None, tmp_path / "log", meanwhile=lambda: calls.append(1)
    ):
        assert calls == [1]


def test_an_external_server_must_list_the_model(tmp_path: Path, model: Path) -> None:
    with FakeServer(models=("a", "b")) as server:
        with pytest.raises(PawlError, match="just one model") as caught:
            with engine.serve(
                settings("external", base_url=server.url), model, None, tmp_path / "log"
            ):
                pass
        assert "a, b" in caught.value.fix
        with pytest.raises(PawlError, match="does not serve 'c'"):
            with engine.serve(
                settings("external", base_url=server.url, served_model="c"),
                model,
                None,
                tmp_path / "log",
            ):
                pass
        with engine.serve(
            settings("external", base_url=f"{server.url}/", served_model="b"),
            model,
            None,
            tmp_path / "log",
        ) as endpoint:
            assert (endpoint.base_url, endpoint.model) == (server.url, "b")


def test_the_key_of_an_external_server_is_in_no_error(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    outside = settings(
        "external", base_url="http://127.0.0.1:9", api_key_env="PAWL_TEST_KEY", startup_timeout_s=2
    )
    with (
        pytest.raises(PawlError, match="does not list its models") as caught,
        engine.serve(outside, model, None, tmp_path / "log"),
    ):
        pass
    assert "sk-very-secret" not in str(caught.value)
    with FakeServer() as server:
        with engine.serve(
            settings("external", base_url=server.url, api_key_env="PAWL_TEST_KEY"),
            model,
            None,
            tmp_path / "log",
        ) as endpoint:
            assert "sk-very-secret" not in repr(endpoint)
        assert server.authorizations == ["Bearer sk-very-secret"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [("redirect", "it redirects to"), ("endless", "longer than"), ("drip_headers", "did not end")],
)
def test_an_external_servers_list_is_bounded_and_no_key_follows_a_redirect(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    monkeypatch.setenv("PAWL_TEST_KEY", "sk-very-secret")
    begun = time.monotonic()
    with (
        FakeServer() as other,
        FakeServer(get_fault=fault, elsewhere=f"{other.url}/models", hang_s=10.0) as server,
    ):
        timeout_s = 9 if fault == "endless" else 1
        outside = settings(
            "external",
            base_url=server.url,
            api_key_env="PAWL_TEST_KEY",
            startup_timeout_s=timeout_s,
        )
        with (
            pytest.raises(PawlError, match=said),
            engine.serve(outside, model, None, tmp_path / "log"),
        ):
            pass
    assert not other.authorizations and time.monotonic() - begun < 9


def test_an_external_server_is_never_asked_in_an_adapters_name(tmp_path: Path, model: Path) -> None:
    with FakeServer() as server, pytest.raises(PawlError, match="cannot be given an adapter"):
        with engine.serve(
            settings("external", base_url=server.url),
            model,
            make_adapter(tmp_path / "adapter"),
            tmp_path / "log",
        ):
            pass


def test_an_external_server_serves_the_fine_tuned_model_under_a_name_of_its_own(
    tmp_path: Path, model: Path
) -> None:
    with FakeServer(models=("base", "tuned")) as server:
        outside = settings(
            "external", base_url=server.url, served_model="base", served_adapter="tuned"
        )
        adapter = make_adapter(tmp_path / "adapter")
        with (
            engine.serve(outside, model, None, tmp_path / "log") as one,
            engine.serve(outside, model, adapter, tmp_path / "log") as other,
        ):
            assert (one.model, other.model) == ("base", "tuned")
            differs = {
                key
                for key in other.fingerprint
                if one.fingerprint.get(key) != other.fingerprint[key]
            }
            assert differs == {
                "adapter_sha256",
                "adapter_served_as",
            }, "the judge takes what begins with adapter for the model"
        wrong = settings(
            "external", base_url=server.url, served_model="base", served_adapter="gone"
        )
        with (
            pytest.raises(PawlError, match="does not serve 'gone'"),
            engine.serve(wrong, model, adapter, tmp_path / "log"),
        ):
            pass


def test_full_fine_tuning_is_served_as_the_model_that_it_is(
    tmp_path: Path, model: Path, fake_command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    (tuned / "config.json").write_text("{}")
    (tuned / "model.safetensors").write_bytes(b"other weights")
    (tuned / "chat_template.jinja").write_text("{{ messages }}")
    started: list[Path] = []
    usual = engine.command
    monkeypatch.setattr(
        engine,
        "command",
        lambda kind, folder, *args, **kwargs: started.append(folder) or usual(**kwargs),
    )
    with engine.serve(
        settings("transformers"), model, tuned, tmp_path / "log", weights_sha256="abc"
    ) as endpoint:
        assert set(started) == {tuned.resolve()}
        assert (
            endpoint.fingerprint["base_sha256"] == "abc"
            and len(endpoint.fingerprint["adapter_sha256"]) == 64
        )


def write_tensors(path: Path, *names: str) -> None:
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in names}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)


@pytest.mark.parametrize(
    ("config", "tensors", "merged"),
    [
        ({}, ["base.q.lora_A.weight"], False),
        ({"use_dora": True}, ["base.q.lora_A.weight"], True),
        ({"modules_to_save": ["lm_head"]}, ["base.q.lora_A.weight"], True),
        ({"bias": "all"}, ["base.q.lora_A.weight"], True),
        (
            {"bias": "none"},
            ["base.q.lora_A.weight", "base.embed_tokens.weight"],
            True,
        ),  # a vocabulary of another size
        ({"trainable_token_indices": [1]}, ["base.q.lora_A.weight"], True),
    ],
)
def test_what_vllm_cannot_serve_beside_its_base_is_merged(
    tmp_path: Path, config: dict, tensors: list[str], merged: bool
) -> None:
    adapter = make_adapter(tmp_path / "adapter", **config)
    write_tensors(adapter / "adapter_model.safetensors", *tensors)
    assert adapters.needs_merge(adapter) == merged


def test_several_machines_split_the_model_through_ray(model: Path) -> None:
    started = render("vllm", model, gpus=4, nodes=2)
    assert (
        value(started.argv, "--pipeline-parallel-size") == "2"
        and value(started.argv, "--tensor-parallel-size") == "4"
    )
    assert value(started.argv, "--distributed-executor-backend") == "ray"


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_machine):
    """A machine with these GPUs, whose vLLM is a server that answers; yields the fingerprint."""

    def make(model: Path, *gpus: Gpu, **changes: object) -> tuple[dict, commands.Command]:
        gpu_machine(*gpus)
        monkeypatch.setattr(engine, "interpreter", lambda kind: sys.executable)
        monkeypatch.setattr(engine, "engine_version", lambda kind, python: "vllm 0.33.0")
        seen = []

        @contextmanager
        def started(
            name: str, start: server.Make, log: Path, startup_s: float, meanwhile, wanted: Wanted
        ) -> Iterator[server.Running]:
            with leased(wanted, "test") as lease:
                seen.append(start(9100, lease))
                yield server.Running(9100, seen[0].model, lambda: None)

        monkeypatch.setattr(server, "started", started)
        with engine.serve(
            settings("vllm", dtype="bfloat16", **changes), model, None, log=tmp_path / "log"
        ) as endpoint:
            return endpoint.fingerprint, seen[0]

    return make


def test_on_a_gpu_answers_do_not_depend_on_their_batch_and_the_fingerprint_says_so(
    model: Path, on_gpu
) -> None:
    fingerprint, started = on_gpu(model, H100, H100)
    assert (
        started.env["VLLM_BATCH_INVARIANT"] == "1"
        and value(started.argv, "--data-parallel-size") == "2"
    )
    assert fingerprint["gpu"] == "NVIDIA H100 80GB HBM3"
    assert fingerprint["tensor_parallel"] == 1 and fingerprint["batch_invariant"] is True


def test_a_clone_serves_one_copy_and_the_main_checkout_as_many_as_there_are_free_gpus(
    model: Path, on_gpu, monkeypatch
) -> None:
    """In a clone that DVC made others work beside it; and a small GPU for the display serves
    nothing.
    """
    busy, small = replace(H100, free=20_000), replace(RTX4090, free=24_000)
    alone, started = on_gpu(model, H100, busy, small, H100)
    assert (
        value(started.argv, "--data-parallel-size") == "2"
        and started.env["CUDA_VISIBLE_DEVICES"] == "0,3"
    )
    monkeypatch.setattr(engine, "main_root", lambda: Path("/the/main/checkout"))
    beside, started = on_gpu(model, H100, busy, small, H100)
    assert "--data-parallel-size" not in started.argv and started.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert alone == beside, "the answers are the same"


def test_a_gpu_that_cannot_is_told_and_marked(model: Path, on_gpu, capsys) -> None:
    fingerprint, started = on_gpu(model, TURING)
    assert "VLLM_BATCH_INVARIANT" not in started.env and fingerprint["batch_invariant"] is False
    assert "may answer a few items differently" in capsys.readouterr().out


def test_memory_that_others_hold_changes_the_share_and_not_the_fingerprint(
    model: Path, on_gpu
) -> None:
    free, empty = on_gpu(model, H100)
    full, crowded = on_gpu(model, replace(H100, free=65000))
    assert free == full
    assert value(empty.argv, "--gpu-memory-utilization") == "0.9"
    assert float(value(crowded.argv, "--gpu-memory-utilization")) == pytest.approx(0.784, abs=0.001)


def test_a_server_on_a_gpu_says_that_this_was_not_run_until_it_was(
    model: Path, on_gpu, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("stages.common.gpus.main_root", lambda: tmp_path)
    on_gpu(model, H100)
    assert "not yet run on a GPU" in capsys.readouterr().out
    prove()
    on_gpu(model, H100)
    assert "not yet run on a GPU" not in capsys.readouterr().out


def test_vllm_without_a_gpu_is_refused_before_anything_starts(model: Path, on_gpu) -> None:
    with pytest.raises(PawlError, match="none is visible"):
        on_gpu(model)


@pytest.mark.parametrize(
    ("kind", "installed"), [("vllm", "vllm-cpu 0.32.0"), ("vllm_cpu", "vllm 0.33.0")]
)
def test_the_other_build_of_vllm_is_refused(tmp_path: Path, kind: str, installed: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {installed}\n")
    python.chmod(0o755)
    with pytest.raises(PawlError, match=f"engine={kind} needs") as caught:
        commands.engine_version(kind, str(python))
    assert "make serve-env" in caught.value.fix


def test_the_cpu_build_never_computes_on_a_gpu(model: Path) -> None:
    assert render("vllm_cpu", model).env["CUDA_VISIBLE_DEVICES"] == ""


def test_vllm_serves_the_fixed_date_also_where_it_writes_the_prompt_itself(model: Path) -> None:
    """gpt-oss: vLLM builds its system turn without the chat template, from this variable or today's
    date.
    """
    assert "VLLM_SYSTEM_START_DATE" not in render("vllm", model).env
    (model / "chat_template.jinja").write_text(
        fixed_date(date(2024, 7, 26)) + "{{ strftime_now('%Y') }}"
    )
    assert render("vllm", model).env["VLLM_SYSTEM_START_DATE"] == "2024-07-26"
    assert value(render("vllm", model).argv, "--chat-template") == str(
        model / "chat_template.jinja"
    )
