"""An OpenAI-compatible server on the loopback interface that misbehaves on purpose.

    with FakeServer(fault=lambda number, body: "500" if number % 10 == 0 else "") as server:
        ...  # server.url, server.bodies, server.authorizations

`fault` gets the number of the request (from 1) and its body, and returns "" or one of FAULTS.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = (
    "429",
    "500",
    "400",
    "401",
    "hang",
    "cut",
    "shape",
    "html",
    "no_json",
    "no_usage",
    "null",
    "no_choices",
    "error_200",
    "length",
    "reasoning",
    "tool",
    "refusal",
    "parts",
    "no_parts",
    "odd_usage",
    "no_reason",
    "other_model",
    "nothing",
    "endless",
    "drip",
    "drip_headers",
    "redirect",
)
"""reasoning, tool, refusal, no_parts: a reply without text, as one that thinks, calls or refuses
gives; nothing: none counted either.
"""
_PARTS = {
    "null": {"content": None},
    "nothing": {"content": None},
    "reasoning": {"content": None, "reasoning_content": "It must be so."},
    "tool": {
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
        ],
    },
    "refusal": {"content": None, "refusal": "I will not."},
    "no_parts": {"content": []},
}


def echo(body: dict[str, Any]) -> str:
    """The default answer: the last message in capitals."""
    return str(body["messages"][-1]["content"]).upper()


class FakeServer:
    """See the module. `hang_s` is how long a hanging request keeps its connection without a word,
    and how long a drip goes on.

    `elsewhere` is where "redirect" leads; `refuses` names options that get a 400, with the words
    for it. `get_fault` is the fault of every GET: redirect, endless, drip or drip_headers.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], str] = echo,
        fault: Callable[[int, dict[str, Any]], str] = lambda number, body: "",
        *,
        models: tuple[str, ...] = ("fake",),
        hang_s: float = 3.0,
        retry_after_s: str = "0.05",
        elsewhere: str = "",
        get_fault: str = "",
    ) -> None:
        self.elsewhere = elsewhere
        self.refuses: dict[str, str] = {}
        self.answer, self.fault, self.models, self.hang_s, self.retry_after_s = (
            answer,
            fault,
            models,
            hang_s,
            retry_after_s,
        )
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.in_flight = self.most_in_flight = self.sent_bytes = 0
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.authorizations.append(self.headers.get("Authorization", ""))
                if get_fault == "redirect":
                    return self.send(307, {}, Location=fake.elsewhere)
                if get_fault:
                    with suppress(BrokenPipeError, ConnectionResetError):
                        fake._go_on(self, get_fault)
                    return None
                return self.send(
                    200, {"object": "list", "data": [{"id": name} for name in fake.models]}
                )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fake._lock:
                    fake.bodies.append(body)
                    fake.authorizations.append(self.headers.get("Authorization", ""))
                    number = len(fake.bodies)
                    fake.in_flight += 1
                    fake.most_in_flight = max(fake.most_in_flight, fake.in_flight)
                try:
                    fake._respond(self, body, fake.fault(number, body))
                except (BrokenPipeError, ConnectionResetError):
                    pass
                finally:
                    with fake._lock:
                        fake.in_flight -= 1

            def send(
                self, status: int, value: Any, *, kind: str = "application/json", **headers: str
            ) -> None:
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                for name, text in {
                    "Content-Type": kind,
                    "Content-Length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name.replace("_", "-"), text)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeServer:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def _respond(self, handler: Any, body: dict[str, Any], fault: str) -> None:
        answer = completion(self.answer(body), body)
        for option, message in self.refuses.items():
            if option in body:
                return handler.send(400, {"error": {"message": message, "param": option}})
        if fault in ("endless", "drip", "drip_headers"):
            return self._go_on(handler, fault)
        if fault == "redirect":
            return handler.send(307, {}, Location=self.elsewhere)
        if fault == "429":
            return handler.send(
                429, {"error": {"message": "slow down"}}, Retry_After=self.retry_after_s
            )
        if fault == "500":
            return handler.send(500, {"error": {"message": "something broke"}})
        if fault == "400":
            return handler.send(400, {"error": {"message": "the prompt is too long"}})
        if fault == "401":
            return handler.send(
                401,
                {"error": {"message": f"wrong key: {handler.headers.get('Authorization', '')}"}},
            )
        if fault == "hang":
            time.sleep(self.hang_s)
            handler.close_connection = True
            return None
        if fault == "cut":
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(json.dumps(answer).encode()[:40])
            handler.wfile.flush()
            handler.close_connection = True
            return None
        if fault == "html":
            return handler.send(
                200, b"<html><body>Welcome to the hotel's network</body></html>", kind="text/html"
            )
        if fault == "no_json":
            return handler.send(200, b'{"choices": [')
        if fault == "shape":
            answer = {"choices": "none today"}
        elif fault == "error_200":
            answer = {"error": {"message": "out of memory"}}
        elif fault == "no_choices":
            answer["choices"] = []
        elif fault in _PARTS:
            answer["choices"][0]["message"] = {"role": "assistant", **_PARTS[fault]}
            answer["choices"][0]["finish_reason"] = "tool_calls" if fault == "tool" else "stop"
            if fault == "nothing":
                answer["usage"]["completion_tokens"] = answer["usage"]["total_tokens"] = 0
        elif fault == "parts":
            text = answer["choices"][0]["message"]["content"]
            answer["choices"][0]["message"]["content"] = [
                {"type": "text", "text": text[:2]},
                {"type": "text", "text": text[2:]},
            ]
        elif fault == "odd_usage":
            answer["usage"] = {
                "prompt_tokens": 2.0,
                "completion_tokens": -1,
                "total_tokens": "many",
            }
        elif fault == "no_reason":
            answer["choices"][0]["finish_reason"] = None
        elif fault == "other_model":
            answer["model"] = "somebody-else"
        elif fault == "no_usage":
            del answer["usage"]
        elif fault == "length":
            answer["choices"][0]["finish_reason"] = "length"
        elif fault:
            raise AssertionError(f"unknown fault {fault}")
        return handler.send(200, answer)

    def _go_on(self, handler: Any, fault: str) -> None:
        """A body without an end, fast or a byte at a time, or a header that never ends."""
        handler.close_connection = True
        ends = time.monotonic() + self.hang_s
        if fault == "drip_headers":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        else:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
        while time.monotonic() < ends:
            if fault == "drip_headers":
                handler.wfile.write(b"x")
            else:
                part = b" " * (2**16 if fault == "endless" else 1)
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.sent_bytes += len(part)
            handler.wfile.flush()
            if fault != "endless":
                time.sleep(0.05)


def completion(text: str, body: dict[str, Any]) -> dict[str, Any]:
    """A well-formed chat completion; a word counts as a token, and the end as one more."""
    read = sum(len(str(message["content"]).split()) for message in body["messages"])
    written = len(text.split()) + 1
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        ],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }
