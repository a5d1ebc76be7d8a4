"""No text that is kept or shown carries a secret, and what is none is left as it was."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.common import process
from stages.common.files import ROOT
from stages.common.redaction import redact, redact_file, redacted
from stages.common.text import markdown, plain, visible

BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 4)
KEY = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info:"
    f" AES-128-CBC,AB12\n\n{BODY}\n-----END RSA PRIVATE KEY-----"
)


@pytest.mark.parametrize(
    "secret",
    [
        "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
        "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
        "ghs_abcdefghijklmnopqrstuvwxyz0123456789",
        "sk-proj-abcdefghijklmnop",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",  # a JSON web token
        "https://hooks.slack.com/services/T0000/B0000/abcdefghijkl",
        "SG.aaaaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        "pypi-AgEIcHlwaS5vcmc" + "a" * 80,
        "AKIAIOSFODNN7EXAMPLE",
        "xai-abcdefghijklmnopqrstuvwx1234567890",
        "pplx-abcdefghijklmnopqrstuvwxyz123456",
        "rk_live_abcdefghijklmnop",
        "whsec_abcdefghijklmnopqrst",
        *BODY.split("\n")[:1],
    ],
)
def test_what_is_written_like_a_secret_is_removed(secret: str) -> None:
    text = (
        f"-----BEGIN PRIVATE KEY-----\n{secret}\n"
        if secret in BODY
        else f"the server said: {secret}, and refused"
    )
    assert secret not in redact(text) and "[removed]" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        KEY.replace("\n", "\\n"),
        KEY.replace("\n", "\n> "),
        KEY.replace("MIIE", "MIIE\n"),
        KEY.partition("Proc")[0] + BODY,
        BODY[70:] + "\n-----END PRIVATE KEY-----",
    ],
)
def test_a_private_key_goes_whole_also_where_one_end_is_cut_off(text: str) -> None:
    told = redact(f"read it\n{text}\nand failed")
    assert (
        "MIIE" not in told
        and "C7VJTU" not in told
        and told.startswith("read it")
        and told.endswith("and failed")
    )


@pytest.mark.parametrize(
    "name",
    [
        "PGPASS",
        "PGPASSWORD",
        "AWS_CREDENTIALS",
        "GITLAB_PAT",
        "PAT",
        "REGISTRY_AUTH",
        "SESSION_COOKIE",
        "DB_DSN",
        "X_JWT",
        "SLACK_WEBHOOK",
        "MYAPP_CRED",
        "HASH_SALT",
        "my_key",
    ],
)
@pytest.mark.parametrize("value", ["correct horse battery", "hunter2", "a+b/c d%e==longer"])
def test_the_value_of_a_variable_named_like_a_secret_is_removed_in_every_form(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    from urllib.parse import quote

    monkeypatch.setenv(name, value)
    for told in (value, f"<{value}>", quote(value, safe="")):
        assert told not in redact(f"cannot log in with {told}: denied")


@pytest.mark.parametrize("name", ["DATABASE_URL", "MONGO_URI", "ANY_NAME"])
def test_the_password_in_a_variable_that_holds_an_address_is_removed_alone_too(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "postgres://pawl:h%40nter-22@db.example/runs")
    assert (
        redact("password authentication failed: h@nter-22 or h%40nter-22")
        == "password authentication failed: [removed] or [removed]"
    )


def test_a_value_of_several_lines_is_removed_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_CREDENTIALS", "first-line-of-it\nsecond-line-of-it\n")
    assert "line-of-it" not in redact(
        "it said first-line-of-it, then:\n  second-line-of-it"
    ) + redact(r"first-line-of-it\nsecond-line-of-it")


@pytest.mark.parametrize(
    "name", ["PATH", "GIT_AUTHOR_NAME", "COMPAT_LEVEL", "PWD", "SSH_AUTH_SOCK", "RAY_AUTH_MODE"]
)
def test_a_variable_that_only_sounds_like_one_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "validation")
    assert redact("the validation loss") == "the validation loss"


def test_a_variable_that_names_a_file_does_not_hide_which_file_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/account.json")
    assert "/home/me/account.json" in redact("no such file: /home/me/account.json")


@pytest.mark.parametrize(
    "told",
    [
        "Cookie: session=abc123; theme=dark",
        'set-cookie: "id=abc123"',
        "registry_pat=abc1234",
        "proxy-auth: abc1234",
        "DB_PASS=abc1234",
        "('Authorization', 'Basic abc1234')",
        "[(b'authorization', b'Bearer abc123x')]",
        "GET /v1?key=abc1234&n=2",
        "https://h/blob?sv=1&sig=abc1234",
    ],
)
def test_what_stands_behind_a_name_like_a_secret_is_removed(told: str) -> None:
    assert "abc123" not in redact(told) and redact(told).startswith(told[:6])


@pytest.mark.parametrize(
    "kept",
    [
        "skip_special_tokens=True, hf_hub_download_kwargs",
        "pad_token: <|im_end|> eos_token=second_token",
        "opencompass: version",
        "sha256: " + "ab" * 32,
        "data.teacher.api_key_env: OPENAI_API_KEY -> TEACHER_API_KEY",
        "12345678:90 steps",
        "path=/a/b/c.json",
        "http://127.0.0.1:8000/v1",
        "the key is train.learning_rate",
        "BEGIN PRIVATE KEY is how one begins",
        "0.0.0.0 and 8.8.8.8",
        "compass: abcdefgh",
        "AdamW, rank 16, alpha 32, lora_target=all",
    ],
)
def test_what_is_no_secret_stays_as_it_is(kept: str) -> None:
    assert redact(kept) == kept


@pytest.mark.parametrize("show", [visible, plain, markdown])
def test_every_way_to_show_text_removes_secrets_also_where_it_cuts(show) -> None:  # type: ignore[no-untyped-def]
    for filler in range(80, 101, 4):
        assert "ABCDEFG" not in show(
            "x" * filler + " github_pat_11ABCDEFG0abcdefghijkl", 100
        ).replace("\\", "")


def test_a_value_of_json_is_cleaned_and_its_figures_stay() -> None:
    assert redacted({"a": ["Bearer abc12345", 1.5, None, {"b": True}]}) == {
        "a": ["Bearer [removed]", 1.5, None, {"b": True}]
    }


def test_a_childs_log_is_cleaned_when_it_has_ended_and_keeps_its_bytes_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PAT", "x1y2z3w4v5u6")
    log, clean = tmp_path / "log", tmp_path / "clean"
    process.run([sys.executable, "-c", "import os; print('pat', os.environ['MY_PAT'])"], log=log)
    assert log.read_text() == "pat [removed]\n"
    clean.write_bytes(b"50%\r100%\r\n\xff\xfe no secret")
    redact_file(clean)
    redact_file(tmp_path / "absent")
    assert clean.read_bytes() == b"50%\r100%\r\n\xff\xfe no secret"


def test_the_error_on_the_terminal_carries_none_with_and_without_its_traceback() -> None:
    program = (
        "from stages.common.errors import PawlError, run_main\ndef main():\n    raise"
        " PawlError('the server said github_pat_11ABCDEFG0abcdefghijkl')\nrun_main('x', main)\n"
    )
    for debug in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "PAWL_DEBUG": debug},
        )
        assert "error: the server said [removed]" in done.stderr and "ABCDEFG" not in done.stderr


def test_a_long_text_takes_little_time() -> None:
    redact("warm up: abcdefghijkl")
    texts = [
        "ab/cd+ef=" * 30_000,
        "MIIEvQIBADAN\n" * 20_000 + "PRIVATE KEY",
        "key=" * 60_000,
        "a@b://" * 40_000,
        "-----BEGIN PRIVATE KEY-----" * 9_000,
    ]
    begun = time.process_time()
    for text in texts:
        redact(text)
    assert time.process_time() - begun < 20
