"""What `try` refuses before it touches anything. No pipeline runs here."""

import fcntl

import pytest

from tests.agent.toy_repo import Repo

TRY = ("try", "train.learning_rate=5e-4", "--why", "smaller steps")


def refused(repo: Repo, *arguments: str) -> str:
    before, commit = repo.state(), repo.git("rev-parse", "HEAD")
    status = repo.git("status", "--porcelain")
    done = repo.agent(*(arguments or TRY))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 4
    assert (
        repo.state() == before
        and repo.git("rev-parse", "HEAD") == commit
        and repo.git("status", "--porcelain") == status
    )
    assert not (repo.root / "experiments").exists()
    return done.stderr


def test_a_dirty_tree_is_refused_and_named(fresh: Repo) -> None:
    (fresh.root / "conf/train/lora.yaml").write_text("learning_rate: 1")
    (fresh.root / "new.txt").write_text("")
    told = refused(fresh)
    assert "conf/train/lora.yaml" in told and "new.txt" in told and "git stash" in told


def test_a_detached_head_is_refused(fresh: Repo) -> None:
    fresh.git("checkout", "-q", "--detach")
    assert "detached" in refused(fresh)


def test_outside_a_repository_of_its_own_is_refused(fresh: Repo) -> None:
    # now inside somebody else's repository
    (fresh.root / ".git").rename(fresh.root.parent / ".git")
    done = fresh.agent(*TRY)
    assert done.returncode == 1 and "not in a git repository of its own" in done.stderr


def test_a_merge_under_way_is_refused(fresh: Repo) -> None:
    (fresh.root / ".git/MERGE_HEAD").write_text(fresh.git("rev-parse", "HEAD"))
    assert "merge" in refused(fresh)


def test_dvc_at_work_is_refused(fresh: Repo) -> None:
    (fresh.root / ".dvc/tmp").mkdir(exist_ok=True)
    with open(fresh.root / ".dvc/tmp/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "already at work" in refused(fresh)


def test_a_stage_at_work_is_refused_and_named(fresh: Repo) -> None:
    (fresh.root / ".pawl").mkdir()
    with open(fresh.root / ".pawl/train.lock", "w") as lock:
        lock.write("4242")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = refused(fresh)
    assert "train" in told and "4242" in told


def test_params_that_drifted_from_conf_are_refused(fresh: Repo) -> None:
    text = (fresh.root / "params.yaml").read_text()
    (fresh.root / "params.yaml").write_text(
        text.replace("learning_rate: 0.001", "learning_rate: 0.002")
    )
    fresh.git("commit", "-qam", "drift")
    assert "not what conf/ composes to" in refused(fresh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.learning_rat=5e-4", "did you mean train.learning_rate"),
        ("judge.alpha=0.4", "ruler"),
        ("train.seed=1", "nothing changes"),
    ],
)
def test_what_may_not_be_changed_is_refused_with_the_reason(
    fresh: Repo, override: str, expected: str
) -> None:
    assert expected in refused(fresh, "try", override, "--why", "x")
