"""What `make doctor` says: the truth about keys and endpoints, and never a key."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stages.common import doctor
from tests.gpu_machines import H100


@pytest.fixture
def server():
    """A server on loopback that answers as its path says, and keeps the headers that it was sent."""
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


@pytest.mark.parametrize(("code", "good", "told"), [(200, True, "HTTP 200"), (401, True, "wants a key"), (503, False, "HTTP 503")])
def test_an_endpoint_is_asked_without_a_key(server, monkeypatch, code, good, told):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    url, seen = server
    answered, said = doctor.answer(f"{url}/{code}/v1")
    assert answered is good and told in said
    assert seen[0][0] == f"/{code}/v1/models" and "sk-secret" not in str(seen)


@pytest.mark.parametrize("url", ["http://user:hunter2@127.0.0.1:9/v1", "not a url", "http://", "ftp://x"])
def test_an_endpoint_that_does_not_answer_is_told_without_its_password(url):
    good, told = doctor.answer(url)
    assert not good and "hunter2" not in told and "does not answer" in told


@pytest.mark.parametrize("text", [None, "", "[]", "a: [", "engine: {base_url: 7}", "engine: null"])
def test_a_broken_params_yaml_stops_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / "params.yaml").write_text(text)
    assert doctor.endpoints(doctor.settings(tmp_path / "params.yaml")) == {}


def test_every_endpoint_of_params_and_the_tracking_server_are_asked(tmp_path, monkeypatch):
    text = "engine: {base_url: http://a/v1}\ndata: {teacher: {strong: {base_url: http://b/v1}, weak: {base_url: ''}}}"
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://c")
    found = doctor.endpoints(doctor.settings(tmp_path / "params.yaml"))
    assert found == {"engine.base_url": "http://a/v1", "data.teacher.strong.base_url": "http://b/v1", "MLFLOW_TRACKING_URI": "http://c"}


def test_it_says_what_can_run_and_shows_no_key(monkeypatch, capsys, tmp_path):
    (tmp_path / "params.yaml").write_text("engine: {api_key_env: MY_OWN_KEY, base_url: ''}\njudge: {llm: {api_key_env: sk-not-a-name}}\n")
    (tmp_path / ".env").write_text("export HF_TOKEN=hf_secret\n# OPENAI_API_KEY=sk-old\n")
    monkeypatch.setattr(doctor, "main_root", lambda: tmp_path)
    monkeypatch.setenv("MY_OWN_KEY", "sk-secret")
    monkeypatch.setattr(sys, "argv", ["doctor"])
    doctor.main()
    said = capsys.readouterr().out
    assert "MY_OWN_KEY: set" in said and "HF_TOKEN: in .env" in said and "secret" not in said and "sk-" not in said
    assert "can  engine=transformers" in said and "not  engine=vllm\n" in said and "python 3.11" in said


def test_a_gpu_is_told_with_its_driver_and_opens_vllm(monkeypatch, tmp_path, capsys, gpu_machine):
    gpu_machine(H100)
    (tmp_path / ".venv-serve/bin").mkdir(parents=True)
    (tmp_path / ".venv-serve/bin/python").touch()
    (tmp_path / ".venv-serve/lib/python3.11/site-packages/vllm-0.33.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(doctor, "main_root", lambda: tmp_path)
    assert not {"gpu", "serve"} & doctor.missing().keys()
    monkeypatch.setattr(sys, "argv", ["doctor"])
    doctor.main()
    said = capsys.readouterr().out
    assert (
        "ok   GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB (79.1 free), driver 580.82.07" in said
        and "can  engine=vllm: vllm 0.33.0" in said
        and "fine-tuning on the GPU" in said
    )
