"""What comes from the hub is whole and what its listing says, in bounded time, or the error says
how to get it.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from stages.common.errors import PawlError
from stages.common.files import ROOT
from stages.common.hub import download
from stages.common.hub import fetch as fetching
from stages.common.hub.fetch import fetch
from stages.common.hub.listing import listing
from tests.fake_hub import COMMIT, FakeHub, StartHub, patience

BIG = random.Random(1).randbytes(2 * 2**20)
"""More than a client reads ahead, which is lost with a connection."""
FILES = {
    "config.json": b"{}",
    "model.safetensors": BIG,
    "empty.txt": b"",
    "onnx/model.onnx": b"x" * 2000,
}


def on_file(fault: str, *numbers: int) -> Callable[[str, int], str]:
    """A fault of the large file alone, each time or at some of the requests for it."""
    return lambda path, number: (
        fault if path.endswith("model.safetensors") and (not numbers or number in numbers) else ""
    )


def bring(*names: str, revision: str = "main", kind: str = "model") -> Path:
    return fetch(listing("org/name", revision, kind), names or ("model.safetensors",))


def ranges(hub: FakeHub) -> list[str]:
    return [asked for path, asked, _ in hub.asked if path.endswith("model.safetensors")]


def begins(asked: str) -> int:
    """The byte that a request asks for first."""
    return int(asked.removeprefix("bytes=").removesuffix("-") or 0)


def test_files_come_under_their_names_and_only_those_that_were_chosen(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub({"org/name": FILES})
    folder = bring("config.json", "model.safetensors", "empty.txt")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: FILES[name] for name in ("config.json", "model.safetensors", "empty.txt")
    }
    assert "onnx/model.onnx" not in hub.files
    assert not list(tmp_path.rglob("*.incomplete"))
    assert (bring("onnx/model.onnx") / "onnx/model.onnx").read_bytes() == FILES["onnx/model.onnx"]


def test_what_is_there_is_not_fetched_again_and_a_commit_not_even_listed(
    start_hub: StartHub,
) -> None:
    hub = start_hub({"org/name": FILES})
    bring(revision=COMMIT)
    before = len(hub.asked)
    bring(revision=COMMIT)
    assert len(hub.asked) == before
    bring(revision="main")
    assert hub.files == ["model.safetensors"]


def test_the_hubs_own_client_finds_the_files_and_we_find_its(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub._tree_cache import _IN_MEMORY_TREE_CACHE

    hub = start_hub({"org/name": FILES})
    folder = bring("config.json", "model.safetensors")
    assert snapshot_download(
        "org/name", revision="main", local_files_only=True, allow_patterns=["*.json"]
    ) == str(folder)
    shutil.rmtree(folder.parents[1] / "trees")  # as an older client leaves it
    _IN_MEMORY_TREE_CACHE.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    found = listing("org/name", "main")
    assert set(found.files) == {"config.json", "model.safetensors"}
    assert fetch(found, list(found.files)) == folder and len(hub.asked) == asked


def test_a_long_listing_is_read_to_its_end(start_hub: StartHub) -> None:
    start_hub({"org/name": FILES}, page=2)
    assert set(listing("org/name", "main").files) == set(FILES)


def test_files_sizes_place_and_free_space_are_said_before_the_first_byte(
    start_hub: StartHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start_hub({"org/name": FILES})
    bring("config.json", "model.safetensors")
    said = capsys.readouterr().out
    assert (
        f"org/name@{COMMIT[:12]}: 2.1 MB in 2 files, into {tmp_path / 'cache'}" in said
        and "free)" in said
    )
    assert "model.safetensors (2.1 MB)" in said


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = start_hub({"org/name": FILES})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage(0, 0, 3_000_000))
    left = tmp_path / "cache/models--other--one/blobs/f00.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"\0" * 5000)
    monkeypatch.setattr(fetching, "_SPARE_BYTES", 3_000_001 - len(BIG))
    with pytest.raises(
        PawlError,
        match=r"2\.1 MB are still to be fetched, and 3\.0 MB are free there; 5\.0 kB are left",
    ) as error:
        bring()
    assert "HF_HOME" in error.value.fix and str(tmp_path / "cache") in error.value.where
    assert hub.files == []
    monkeypatch.setattr(fetching, "_SPARE_BYTES", 3_000_000 - len(BIG))
    bring()


def test_a_disk_that_fills_up_is_called_that_and_the_download_goes_on_later(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub({"org/name": FILES})
    real = download.Download._append

    def full(self: download.Download, file: Any, part: bytes) -> None:
        file.write(part[:5000])
        raise self._told(OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(download.Download, "_append", full)
    with pytest.raises(PawlError, match="disk is full") as error:
        bring()
    assert "HF_HOME" in error.value.fix and "goes on" in error.value.fix
    monkeypatch.setattr(download.Download, "_append", real)
    assert (bring() / "model.safetensors").read_bytes() == BIG
    assert ranges(hub) == ["", "bytes=5000-"]


def test_a_cut_download_goes_on_where_it_ended_within_a_run(start_hub: StartHub) -> None:
    hub = start_hub({"org/name": FILES}, fault=on_file("cut", 1, 2))
    assert (bring() / "model.safetensors").read_bytes() == BIG
    first, second, third = map(begins, ranges(hub))
    assert first == 0 < second <= len(BIG) // 2 < third <= len(BIG) * 3 // 4


@pytest.mark.slow
def test_a_killed_download_goes_on_where_it_ended_in_the_folder_that_HF_HOME_names(
    start_hub: StartHub, tmp_path: Path
) -> None:
    """The addresses come from the environment alone, in processes of their own."""
    gate = threading.Event()

    def fault(path: str, number: int) -> str:
        if path.endswith("model.safetensors") and number == 2:
            gate.set()
            return "silent"
        return "cut" if path.endswith("model.safetensors") and number == 1 else ""

    hub = start_hub({"org/name": FILES}, fault=fault)
    script = (
        "from stages.common.hub import fetch, listing;"
        " print(fetch.fetch(listing.listing('org/name', 'main'), ['model.safetensors']))"
    )
    names = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": str(ROOT),
    }
    env = {name: text for name, text in os.environ.items() if not name.startswith("HF_")} | names
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdout=subprocess.DEVNULL
    ) as process:
        assert gate.wait(60)
        process.send_signal(signal.SIGKILL)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    folder = Path(done.stdout.splitlines()[-1])
    assert folder == tmp_path / f"home/hub/models--org--name/snapshots/{COMMIT}"
    assert (folder / "model.safetensors").read_bytes() == BIG
    assert 0 < begins(ranges(hub)[-1]) <= len(BIG) // 2


def test_a_server_without_ranges_starts_again_and_does_not_append(start_hub: StartHub) -> None:
    start_hub(
        {"org/name": FILES},
        fault=lambda path, number: (
            {1: "cut", 2: "no range"}.get(number, "") if "safetensors" in path else ""
        ),
    )
    assert (bring() / "model.safetensors").read_bytes() == BIG


@pytest.mark.parametrize(
    "fault", ["silent", "slow", "too long", "cut", "500", "429 for long", "other range"]
)
def test_a_file_that_does_not_come_ends_in_an_error_that_names_it(
    fault: str, start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"org/name": {"model.safetensors": BIG[:1500]}}
    start_hub(files, fault=on_file(fault))
    found = listing("org/name", "main")
    partial = found.store / "blobs" / f"{found.files['model.safetensors'].digest}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(BIG[:10])
    patience(monkeypatch, 0.2)
    with pytest.raises(PawlError, match="broke off 4 times in a row") as error:
        bring()
    assert "model.safetensors" in error.value.where
    assert not list(tmp_path.rglob("snapshots/*/model.safetensors"))


def test_a_damaged_beginning_is_fetched_again_and_other_bytes_than_listed_are_refused(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub({"org/name": FILES}, fault=on_file("wrong"))
    with pytest.raises(PawlError, match="other bytes than its listing says, twice"):
        bring()
    assert not list(tmp_path.rglob("snapshots/*/model.safetensors")) and not list(
        tmp_path.rglob("*.incomplete")
    )
    hub.fault = lambda path, number: ""
    found = listing("org/name", "main")
    partial = found.store / "blobs" / f"{found.files['model.safetensors'].digest}.incomplete"
    partial.write_bytes(b"\0" * 5000)
    assert (bring() / "model.safetensors").read_bytes() == BIG


def test_a_small_file_is_checked_too(start_hub: StartHub) -> None:
    start_hub(
        {"org/name": FILES},
        fault=lambda path, number: "wrong" if path.endswith("config.json") else "",
    )
    with pytest.raises(PawlError, match="other bytes"):
        bring("config.json")


@pytest.mark.parametrize("times", [1, 2])
def test_a_busy_hub_is_asked_again(times: int, start_hub: StartHub) -> None:
    start_hub(
        {"org/name": FILES},
        fault=lambda path, number: ("429", "500")[number % 2] if number <= times else "",
    )
    assert (bring() / "model.safetensors").read_bytes() == BIG


@pytest.mark.parametrize(
    "fault", ["silent", "500", "429 for long", "loop", "no json", "no commit", "escape"]
)
def test_a_hub_that_cannot_list_is_an_error_or_the_caches_copy(
    fault: str,
    start_hub: StartHub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = start_hub(
        {"org/name": FILES}, fault=lambda path, number: fault if path.startswith("/api/") else ""
    )
    patience(monkeypatch, 0.2 if fault == "silent" else 10)
    with pytest.raises(PawlError, match="hub cannot be reached") as error:
        bring()
    patience(monkeypatch, 10)
    assert (
        hub.url in error.value.where
        and "HF_ENDPOINT" in error.value.fix
        and "hf download org/name --revision main" in error.value.fix
    )
    if fault == "429 for long":
        assert "86400 s" in error.value.what
    hub.fault = lambda path, number: ""
    folder = bring()
    patience(monkeypatch, 0.2 if fault == "silent" else 10)
    hub.fault = lambda path, number: fault if path.startswith("/api/") else ""
    assert bring() == folder and "the cache's copy" in capsys.readouterr().out


def test_no_hub_at_all_is_told_apart_from_being_told_to_stay_offline(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_hub({"org/name": FILES}).__exit__()
    with pytest.raises(PawlError, match="hub cannot be reached"):
        bring()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PawlError, match="may not be asked") as error:
        bring()
    assert "unset HF_HUB_OFFLINE" in error.value.fix


def test_offline_a_file_that_the_cache_lacks_is_named(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_hub({"org/name": FILES})
    bring("config.json")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PawlError, match=r"its cache lacks model\.safetensors of this model"):
        bring("config.json", "model.safetensors")


def test_a_repository_a_revision_or_a_name_that_is_none_is_called_that(start_hub: StartHub) -> None:
    start_hub({"org/name": FILES})
    with pytest.raises(PawlError, match="no such revision"):
        bring(revision="v9")
    with pytest.raises(PawlError, match="no such repository, or no access"):
        listing("org/other", "main")
    for repo, revision in (
        ("../../etc", "main"),
        ("org/name", "../../x"),
        ("org/name", "/etc"),
        ("a/b/c", "main"),
    ):
        with pytest.raises(PawlError, match=r"no name of a repository|is no revision"):
            listing(repo, revision)


def test_a_gated_repository_names_the_page_and_what_is_missing(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub({"org/name": FILES}, gated=("org/name",), tokens=("mine",))
    with pytest.raises(PawlError, match="there is no token") as error:
        bring()
    assert f"{hub.url}/org/name" in error.value.fix and hub.files == [], (
        "nothing was asked for without a token"
    )
    monkeypatch.setenv("HF_TOKEN", "stranger")
    with pytest.raises(
        PawlError, match="the token has no access: Access to it is restricted"
    ) as error:
        bring()
    assert "stranger" not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "expired")
    with pytest.raises(PawlError, match="refuses the token: Invalid credentials"):
        bring()
    monkeypatch.setenv("HF_TOKEN", "mine")
    bring()
    monkeypatch.delenv("HF_TOKEN")
    assert (bring() / "model.safetensors").read_bytes() == BIG, (
        "what is in the cache needs no token"
    )


def test_the_token_goes_to_the_hub_alone(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "mine")
    with FakeHub({"org/name": FILES}) as store:
        hub = start_hub(
            {"org/name": FILES},
            tokens=("mine",),
            fault=lambda path, number: "redirect",
            elsewhere=store.url,
        )
        assert (bring() / "model.safetensors").read_bytes() == BIG
        assert {sent for _, _, sent in hub.asked} == {"Bearer mine"}
        assert len(store.asked) == 3 and {sent for _, _, sent in store.asked} == {""}


def test_two_processes_fetch_a_repository_once(start_hub: StartHub) -> None:
    second = threading.Event()

    def late(path: str, number: int) -> str:
        if "safetensors" in path:
            second.wait(10)  # until the second one has its listing too
        elif len([each for each, _, _ in hub.asked if "/tree/" in each]) == 2:
            second.set()
        return ""

    hub = start_hub({"org/name": FILES}, fault=late)
    threads = [threading.Thread(target=bring) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.files == ["model.safetensors"]


def test_a_relative_cache_is_refused_since_each_process_would_have_its_own(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_hub({"org/name": FILES})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "cache")
    with pytest.raises(PawlError, match="relative path"):
        bring()
