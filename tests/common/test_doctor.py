"""What `make doctor` says: the truth about keys and endpoints, and never a key."""

from __future__ import annotations

import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stages.common import doctor, gpus
from tests.gpu_machines import H100


@pytest.fixture
def server():
    """A server on loopback that answers as its path says, and keeps the headers that it was
    sent.
    """
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            self.send_response(int(self.path.split("/")[1]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", seen
    http.shutdown()


@pytest.mark.parametrize(
    ("code", "good", "told"),
    [(200, True, "HTTP 200"), (401, True, "wants a key"), (503, False, "HTTP 503")],
)
def test_an_endpoint_is_asked_without_a_key(server, monkeypatch, code, good, told):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    url, seen = server
    answered, said = doctor.answer(f"{url}/{code}/v1")
    assert answered is good and told in said
    assert seen[0][0] == f"/{code}/v1/models" and "sk-secret" not in str(seen)


@pytest.mark.parametrize(
    "url", ["http://user:hunter2@127.0.0.1:9/v1", "not a url", "http://", "ftp://x"]
)
def test_an_endpoint_that_does_not_answer_is_told_without_its_password(url):
    good, told = doctor.answer(url)
    assert not good and "hunter2" not in told and "does not answer" in told


@pytest.mark.parametrize("text", [None, "", "[]", "a: [", "engine: {base_url: 7}", "engine: null"])
def test_a_broken_params_yaml_stops_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / "params.yaml").write_text(text)
    assert doctor.endpoints(doctor.settings(tmp_path / "params.yaml")) == {}


def test_every_endpoint_of_params_and_the_tracking_server_are_asked(tmp_path, monkeypatch):
    text = (
        "engine: {base_url: http://a/v1}\ndata: {teacher: {strong: {base_url: http://b/v1}, weak:"
        " {base_url: ''}}}"
    )
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://c")
    found = doctor.endpoints(doctor.settings(tmp_path / "params.yaml"))
    assert found == {
        "engine.base_url": "http://a/v1",
        "data.teacher.strong.base_url": "http://b/v1",
        "MLFLOW_TRACKING_URI": "http://c",
    }


def test_it_says_what_can_run_and_shows_no_key(monkeypatch, capsys, tmp_path):
    (tmp_path / "params.yaml").write_text(
        "engine: {api_key_env: MY_OWN_KEY, base_url: ''}\njudge: {llm: {api_key_env:"
        " sk-not-a-name}}\n"
    )
    (tmp_path / ".env").write_text("export HF_TOKEN=hf_secret\n# OPENAI_API_KEY=sk-old\n")
    monkeypatch.setattr(doctor, "main_root", lambda: tmp_path)
    monkeypatch.setenv("MY_OWN_KEY", "sk-secret")
    monkeypatch.setattr(sys, "argv", ["doctor"])
    doctor.main()
    said = capsys.readouterr().out
    assert (
        "MY_OWN_KEY: set" in said
        and "HF_TOKEN: in .env" in said
        and "secret" not in said
        and "sk-" not in said
    )
    assert (
        "can  engine=transformers" in said
        and "not  engine=vllm\n" in said
        and "python 3.11" in said
    )


def test_a_gpu_is_told_with_its_driver_and_opens_vllm(monkeypatch, tmp_path, capsys, gpu_machine):
    gpu_machine(H100)
    (tmp_path / ".venv-serve/bin").mkdir(parents=True)
    (tmp_path / ".venv-serve/bin/python").touch()
    (tmp_path / ".venv-serve/lib/python3.11/site-packages/vllm-0.33.0.dist-info").mkdir(
        parents=True
    )
    monkeypatch.setattr(doctor, "main_root", lambda: tmp_path)
    monkeypatch.setattr(gpus, "main_root", lambda: tmp_path)
    monkeypatch.setattr(doctor, "no_compiler", lambda python: "")
    assert not {"gpu", "serve"} & doctor.missing().keys()
    monkeypatch.setattr(sys, "argv", ["doctor"])
    doctor.main()
    said = capsys.readouterr().out
    assert (
        "ok   GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB (79.1 free), driver 580.82.07" in said
        and "can  engine=vllm: vllm 0.33.0" in said
        and "fine-tuning on the GPU" in said
    )
    assert "note not yet run on a GPU" in said
    gpus.prove()
    doctor.main()
    assert "not yet run on a GPU" not in capsys.readouterr().out


@pytest.fixture
def with_vllm(monkeypatch, tmp_path, gpu_machine):
    """A machine with a GPU and vLLM's GPU build, whose Python has its headers in tmp_path/include
    and whose path is tmp_path/bin.
    """
    gpu_machine(H100)
    python = tmp_path / ".venv-serve/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {tmp_path}/include\n")
    python.chmod(0o755)
    (tmp_path / ".venv-serve/lib/python3.11/site-packages/vllm-0.33.0.dist-info").mkdir(
        parents=True
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "include/Python.h").touch()
    (tmp_path / "bin/nvidia-smi").symlink_to(shutil.which("nvidia-smi"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor, "main_root", lambda: tmp_path)
    monkeypatch.setattr(doctor, "has_rooms", lambda user=None: True)
    return tmp_path


@pytest.mark.parametrize("compiler", ["gcc", "clang", "my-own-cc"])
def test_a_compiler_of_any_name_lets_vllm_start(with_vllm, monkeypatch, compiler):
    assert "no C compiler" in doctor.missing()["compiler"]
    (with_vllm / "bin" / compiler).touch(mode=0o755)
    if compiler == "my-own-cc":
        monkeypatch.setenv("CC", compiler)
    assert "compiler" not in doctor.missing()


def test_a_python_without_headers_is_told_and_closes_vllm(with_vllm):
    (with_vllm / "bin/gcc").touch(mode=0o755)
    (with_vllm / "include/Python.h").unlink()
    lacks = doctor.missing()
    assert "Python.h" in lacks["compiler"] and "python3-dev" in lacks["compiler"]
    assert (False, "engine=vllm") in doctor.can(lacks, "vllm 0.33.0")


def test_a_python_that_does_not_run_is_no_crash(with_vllm):
    (with_vllm / "bin/gcc").touch(mode=0o755)
    (with_vllm / ".venv-serve/bin/python").write_text("#!/bin/sh\nexit 1\n")
    assert "Python.h" in doctor.missing()["compiler"]


@pytest.mark.parametrize(("platform", "words"), [("darwin", "macOS"), ("win32", "WSL 2")])
def test_another_system_is_named_and_nothing_else_is_tried(monkeypatch, capsys, platform, words):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys, "argv", ["doctor"])
    monkeypatch.setattr(doctor, "checks", None)
    assert doctor.main() == 1
    assert words in capsys.readouterr().out
