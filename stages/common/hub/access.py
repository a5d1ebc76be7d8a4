"""The hub's address, cache and token, and what its refusals mean: each with the way out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.common import web
from stages.common.errors import PawlError

HOPS = 5
"""Redirects in a row that are followed."""
ANSWER_S = 60.0
"""For a whole answer of the API."""
_TRIES = 3
_WAIT_S = 2.0
"""Before a busy hub is asked again."""


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or its own."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def cache() -> Path:
    """The hub's cache: HF_HUB_CACHE, or the folder hub in HF_HOME.

    Raises:
        PawlError: it is a relative path, which is another folder for each process.
    """
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    if not folder.is_absolute():
        fix = (
            "write HF_HOME (or HF_HUB_CACHE) as a full path: stages and their processes run in"
            " several folders"
        )
        raise PawlError("the hub's cache is given as a relative path", where=str(folder), fix=fix)
    return folder


def offline() -> bool:
    from huggingface_hub import constants

    return constants.is_offline_mode()


def token() -> str | None:
    """HF_TOKEN, or the one that `hf auth login` keeps."""
    from huggingface_hub import get_token

    return get_token()


def headers() -> dict[str, str]:
    from huggingface_hub.utils._headers import build_hf_headers

    return {**build_hf_headers(library_name="pawl"), "Accept-Encoding": "identity"}


def check_name(repo: str, revision: str) -> None:
    """Refuse what can be no repository or revision, before it is part of an address or of a
    path.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise PawlError(
            f"no name of a repository: {str(error)[:200]}",
            where=repo[:100],
            fix="write it as owner/name",
        ) from None
    if (
        not revision
        or ".." in revision
        or revision.startswith(("/", "-"))
        or not revision.isprintable()
    ):
        raise PawlError(
            f"{revision!r:.80} is no revision", where=repo, fix="name a branch, a tag or a commit"
        )


def ask(url: str, limit: int) -> tuple[web.Answer, str]:
    """The hub's answer, and the address it came from. Redirects are followed; our token goes to the
    hub alone.

    Raises:
        web.Unusable: no whole answer in time, or the hub is busy.
    """
    for number in range(1, _TRIES + 1):
        answer, at = _followed(url, limit)
        if answer.status != 429 and answer.status < 500:
            return answer, at
        wait = web.retry_after(answer.headers)
        if wait > web.LONGEST_WAIT_S:
            break
        if number < _TRIES:
            time.sleep(max(wait, _WAIT_S * number))
    raise web.Unusable(busy(answer.status, wait))


def busy(status: int, wait: float) -> str:
    return f"it answers {status}" + (f" and asks to come back in {wait:.0f} s" if wait else "")


def _followed(url: str, limit: int) -> tuple[web.Answer, str]:
    at = url
    for _ in range(HOPS):
        answer = web.fetch(
            "GET", at, headers=headers_for(at, url, headers()), timeout_s=ANSWER_S, limit=limit
        )
        to = web.redirected(answer, at)
        if not to:
            return answer, at
        at = to
    raise web.Unusable(f"it redirects more than {HOPS} times")


def headers_for(at: str, ours: str, given: Mapping[str, str]) -> dict[str, str]:
    """Our headers for an address: with the token if it has the scheme, host and port of `ours`."""
    try:
        same = web.origin(at) == web.origin(ours)
    except ValueError:
        raise web.Unusable("it redirects to no address of the web") from None
    return {name: text for name, text in given.items() if same or name.lower() != "authorization"}


def refuse(status: int, answered: Mapping[str, str], repo: str, revision: str, kind: str) -> None:
    """Raise the error that a refusal means; nothing where the hub gave what was asked for.

    Raises:
        PawlError: no such repository, revision or file; no access.
        web.Unusable: any other status.
    """
    if status in (200, 206):
        return
    code, said = answered.get("X-Error-Code", ""), answered.get("X-Error-Message", "")[:300]
    where = f"{repo}@{revision}"
    if code == "GatedRepo":
        raise gated(repo, revision, kind, said)
    if code == "RevisionNotFound":
        fix = "correct the revision: a branch, a tag or a commit of this repository"
        raise PawlError("the repository has no such revision", where=where, fix=fix)
    if code == "EntryNotFound":
        raise web.Unusable("it lacks a file that it lists")
    if status == 401 and token() and code != "RepoNotFound":
        fix = (
            "make a new one (hf auth login, or HF_TOKEN in .env); without a token public"
            " repositories can be read"
        )
        raise PawlError(
            f"the hub refuses the token: {said or 'it may have expired'}", where=where, fix=fix
        )
    if status in (401, 403, 404):
        private = (
            "a token that may read it"
            if token()
            else "'hf auth login' or HF_TOKEN in .env if it is private"
        )
        what = f"no such repository, or no access to it{': ' if said else ''}{said}"
        raise PawlError(what, where=f"{where} ({endpoint()})", fix=f"correct its name; {private}")
    raise web.Unusable(f"it answers {status}")


def gated(repo: str, revision: str, kind: str, said: str = "") -> PawlError:
    """The error for a repository whose licence has to be accepted: what is missing is a token, or
    this account's access.
    """
    page = f"{endpoint()}/{'datasets/' if kind == 'dataset' else ''}{repo}"
    if not token():
        fix = f"accept it on {page}, then 'hf auth login', or HF_TOKEN in .env"
        return PawlError(
            "this repository asks for its licence to be accepted, and there is no token",
            where=f"{repo}@{revision}",
            fix=fix,
        )
    fix = (
        f"ask for it on {page} with the token's account (an owner may have to agree); a"
        " fine-grained token needs gated repositories on"
    )
    what = (
        "this repository asks for its licence to be accepted, and the token has no"
        f" access{': ' if said else ''}{said}"
    )
    return PawlError(what, where=f"{repo}@{revision}", fix=fix)


def unreachable(repo: str, revision: str, kind: str, why: Exception) -> PawlError:
    fix = (
        "check network, proxy and HF_ENDPOINT; or bring it on another machine:"
        f" {_by_hand(repo, revision, kind)}"
    )
    what = f"the hub cannot be reached and its cache has no such {kind}: {why}"
    return PawlError(what, where=f"{repo}@{revision} ({endpoint()})", fix=fix)


def offline_without(repo: str, revision: str, kind: str, missing: Sequence[str] = ()) -> PawlError:
    lacks = f"lacks {', '.join(missing[:3])} of this {kind}" if missing else f"has no such {kind}"
    fix = (
        "unset HF_HUB_OFFLINE (and TRANSFORMERS_OFFLINE), or bring it on another machine:"
        f" {_by_hand(repo, revision, kind)}"
    )
    return PawlError(
        f"the hub may not be asked (HF_HUB_OFFLINE) and its cache {lacks}",
        where=f"{repo}@{revision} in {cache()}",
        fix=fix,
    )


def _by_hand(repo: str, revision: str, kind: str) -> str:
    return (
        f"hf download{' --repo-type dataset' if kind == 'dataset' else ''} {repo} --revision"
        f" {revision}"
    )
