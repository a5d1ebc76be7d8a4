"""A Hugging Face hub on the loopback interface that speaks as much of its API as a download needs,
and misbehaves on purpose.

    with FakeHub({"org/name": {"config.json": b"{}"}}) as hub:
        ...  # hub.url for HF_ENDPOINT; hub.asked: (path, Range, Authorization) of each request

`fault(path, number)` gets the path of a request and how often it was asked for (from 1), and
returns "" or one of FAULTS. Files over `large` bytes are told with their SHA-256, like those in Git
LFS, and smaller ones with Git's SHA-1.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" + "0" * 34
FAULTS = (
    "cut",
    "500",
    "429",
    "429 for long",
    "silent",
    "slow",
    "no range",
    "other range",
    "too long",
    "wrong",
    "redirect",
    "loop",
    "no json",
    "no commit",
    "escape",
)
"""cut: half of what is left, then the connection ends; slow: a byte now and then; redirect: to
`elsewhere`; escape: a name with '..'
"""

StartHub = Callable[..., "FakeHub"]
"""Of the fixture `start_hub`, see `install`."""


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class FakeHub:
    def __init__(
        self,
        repositories: dict[str, dict[str, bytes]],
        fault: Callable[[str, int], str] = lambda path, number: "",
        *,
        kind: str = "model",
        gated: tuple[str, ...] = (),
        tokens: tuple[str, ...] = (),
        large: int = 1000,
        page: int = 1000,
        slow_s: float = 0.05,
        elsewhere: str = "",
    ) -> None:
        self.repositories, self.fault, self.kind, self.gated, self.tokens = (
            repositories,
            fault,
            kind,
            gated,
            tokens,
        )
        self.large, self.page, self.slow_s, self.elsewhere = large, page, slow_s, elsewhere
        self.asked: list[tuple[str, str, str]] = []
        self._counts: Counter[str] = Counter()
        self._lock, self._over = threading.Lock(), threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with suppress(BrokenPipeError, ConnectionResetError):
                    hub._answer(self, unquote(urlsplit(self.path).path))

            def send(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, text in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), text)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def files(self) -> list[str]:
        """Names of the files that were asked for, in order."""
        return [
            path.partition(f"/resolve/{COMMIT}/")[2]
            for path, _, _ in self.asked
            if "/resolve/" in path
        ]

    def _answer(self, request: Any, path: str) -> None:
        with self._lock:
            self.asked.append(
                (path, request.headers.get("Range", ""), request.headers.get("Authorization", ""))
            )
            self._counts[path] += 1
            number = self._counts[path]
        fault = self.fault(path, number)
        if fault == "silent":
            self._over.wait(30)
        elif fault == "500":
            request.send(500)
        elif fault.startswith("429"):
            request.send(429, Retry_After="86400" if "long" in fault else "0.1")
        elif fault == "loop":
            request.send(307, Location=path)
        elif fault == "redirect":
            request.send(302, Location=f"{self.elsewhere}{path}")
        elif path.startswith("/api/"):
            self._api(request, path.removeprefix(f"/api/{self.kind}s/"), fault)
        else:
            self._file(
                request,
                path.removeprefix("/datasets" if self.kind == "dataset" else "").strip("/"),
                fault,
            )

    def _denied(self, request: Any, repo: str, token_needed: bool) -> bool:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens and token and token not in self.tokens and token != "stranger":
            request.send(401, X_Error_Message="Invalid credentials in Authorization header")
        elif repo not in self.repositories:
            request.send(
                404 if token else 401,
                X_Error_Code="RepoNotFound",
                X_Error_Message="Repository not found",
            )
        elif token_needed and repo in self.gated and token not in self.tokens:
            request.send(
                403 if token else 401,
                X_Error_Code="GatedRepo",
                X_Error_Message="Access to it is restricted",
            )
        else:
            return False
        return True

    def _api(self, request: Any, path: str, fault: str) -> None:
        repo = "/".join(path.split("/")[:2])
        what, _, revision = path.removeprefix(f"{repo}/").partition("/")
        if self._denied(request, repo, token_needed=False):
            return
        if revision not in ("main", COMMIT):
            return request.send(
                404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id"
            )
        if fault == "no json":
            return request.send(200, b"<html>")
        if what == "revision":
            about = {
                "sha": "main" if fault == "no commit" else COMMIT,
                "gated": "manual" if repo in self.gated else False,
            }
            return request.send(200, json.dumps(about).encode())
        entries = [
            self._entry(name, content) for name, content in sorted(self.repositories[repo].items())
        ]
        entries += [{"type": "directory", "path": "onnx", "oid": "0" * 40, "size": 0}]
        if fault == "escape":
            entries[0]["path"] = "../../../outside.json"
        query = urlsplit(request.path).query
        start = int(query.rpartition("cursor=")[2]) if "cursor=" in query else 0
        more = {}
        if start + self.page < len(entries):
            listed = f"{self.url}{urlsplit(request.path).path}"
            more["Link"] = f'<{listed}?recursive=true&cursor={start + self.page}>; rel="next"'
        return request.send(200, json.dumps(entries[start : start + self.page]).encode(), **more)

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "type": "file",
            "path": name,
            "oid": git_sha1(content),
            "size": len(content),
        }
        if len(content) > self.large:
            entry["lfs"] = {
                "oid": hashlib.sha256(content).hexdigest(),
                "size": len(content),
                "pointerSize": 130,
            }
        return entry

    def _file(self, request: Any, path: str, fault: str) -> None:
        repo, _, name = path.partition(f"/resolve/{COMMIT}/")
        if self._denied(request, repo, token_needed=True):
            return
        content = self.repositories[repo].get(name)
        if content is None:
            return request.send(
                404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found"
            )
        if fault == "wrong":
            content = bytes(255 - byte for byte in content)
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        if fault == "no range":
            start = 0
        if start and start >= len(content):
            return request.send(416)
        status = 206 if start else 200
        headers = (
            {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        )
        if fault == "other range":
            status, headers = 206, {"Content-Range": f"bytes 0-{len(content) - 1}/{len(content)}"}
        body = content[start:]
        if fault not in ("cut", "slow", "too long"):
            return request.send(status, body, **headers)
        request.send_response(status)
        for key, text in headers.items():
            request.send_header(key, text)
        request.send_header("Connection", "close")
        if fault != "too long":
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.close_connection = True
        if fault == "cut":
            request.wfile.write(body[: len(body) // 2])
        elif fault == "slow":
            for byte in body:
                request.wfile.write(bytes([byte]))
                if self._over.wait(self.slow_s):
                    return
        else:
            while not self._over.is_set():
                request.wfile.write(b"more" * 1000)


def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """How long a silent or slow hub is borne; it is asked again at once."""
    from stages.common.hub import access, download

    for name, value in {
        "_WAIT_S": 0.001,
        "_SILENCE_S": seconds,
        "_WINDOW_S": seconds,
        "_LEAST_BYTES": 1000,
    }.items():
        monkeypatch.setattr(download, name, value)
    monkeypatch.setattr(access, "_WAIT_S", 0.001)
    monkeypatch.setattr(access, "ANSWER_S", seconds)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartHub]:
    """Gives what starts a hub and makes it the one that HF_ENDPOINT names, with an empty cache in
    `folder`.
    """
    from huggingface_hub import constants

    started: list[FakeHub] = []

    def start(*args: Any, **keys: Any) -> FakeHub:
        hub = FakeHub(*args, **keys).__enter__()
        started.append(hub)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        return hub

    for name, value in {
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(folder / "token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    patience(monkeypatch, 10)
    yield start
    for hub in started:
        hub.__exit__()
