"""Fine-tune the base model with LLaMA-Factory: data/train and models/base to models/adapter.

python -m stages.train
    what `dvc repro train` runs; declared in params.yaml under `train` and `launcher`
python -m stages.train --check [OVERRIDES ...]
    compose conf/ with Hydra overrides and check it: JSON on stdout (LLaMA-Factory's
    configuration, memory, warnings), or exit code 3 and {"refused": why}

Writes models/adapter (an adapter, or with full and freeze a whole model; whole or not at all),
reports/train.json and reports/loss.csv. A training that was killed or ran into launcher.timeout_h
goes on from its last checkpoint the next time it is started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from stages.common import detect, lease
from stages.common.config import compose, load_params, read_params
from stages.common.errors import PawlError, run_main
from stages.common.files import ROOT, to_json, write_text
from stages.common.gpus import untried
from stages.common.keys import tracked
from stages.common.models import base_model, fixed_arguments, with_template
from stages.common.process import stage_lock
from stages.common.schema import Evaluate, Launcher, Train
from stages.common.serving import KEYS, check_serving
from stages.train import checkpoints, result
from stages.train.arguments import arguments, separate
from stages.train.known import REFUSED, check_extra
from stages.train.launch import devices, environment, launch, placed, resumed, wanted
from stages.train.losses import losses_csv, trainer_state
from stages.train.rows import count_rows, has_eval, rebuilt

DATA = Path("data/train")
ADAPTER = Path("models/adapter")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="train nothing: say whether it can work, and what it needs",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        help="with --check: Hydra overrides, such as train=full train.learning_rate=1e-5",
    )
    args = parser.parse_args()
    if args.overrides and not args.check:
        parser.error(
            "overrides go with --check; to train with them: python -m stages.common.config"
            " OVERRIDES && dvc repro train"
        )
    if args.check:
        try:
            print(to_json(check(args.overrides)), end="")
        except PawlError as error:
            # also what conf/ itself refuses, and a base or rows that are not there
            error.code = REFUSED
            print(to_json({"refused": error.fields()}), end="")
            raise
        return
    untracked = [*(f"launcher.{name}" for name in vars(Launcher())), *KEYS, "evaluate.think_close"]
    with stage_lock("train"), load_params(*tracked("train"), untracked=untracked) as params:
        check_serving(params.engine, base_model()[1])
        run(params.train, Launcher(**vars(params.launcher)), params.engine.kind, params.evaluate)


def run(train: Train, launcher: Launcher, engine: str, evaluate: Evaluate) -> None:
    check_extra(train.extra)
    base, model = base_model()
    launcher = placed(train, launcher)
    config = configuration(train, launcher, model, evaluate)
    # with fewer GPUs it is another training
    shape = vars(launcher) | {"workers": launcher.workers or devices(train, launcher)}
    made_of = partial(checkpoints.made_of, config, DATA, base, shape, evaluate.template)
    name = checkpoints.key(begun := made_of())
    with checkpoints.work_folder(name, "" if launcher.node_rank else launcher.storage) as folder:
        print(
            f"train: {base['name']}, {train.stage}, {train.finetuning_type} on"
            f" {'CPU' if config['use_cpu'] else 'GPU'}"
        )
        config |= {"output_dir": str(checkpoints.place(name, launcher.storage))}
        config = resumed(config, train, launcher, begun)
        done = launch(
            config,
            train,
            launcher,
            folder,
            engine=engine,
            served=served(model, evaluate),
            timeout_s=launcher.timeout_h * 3600,
        )
        for warning in done.preflight["warnings"]:
            print(f"train: warning: {warning}", file=sys.stderr)
        if launcher.node_rank:
            print("train: this node has done its part; the result is on the node of rank 0")
            return
        # load_params sees only the modules of this process, not the trainer's
        if checkpoints.key(made_of()) != name:
            fix = (
                "its result does not count, since DVC would record it under what it finds now: run"
                " 'dvc repro' again"
            )
            raise PawlError("edited while this stage ran", where=f"{DATA} or stages/train", fix=fix)
        state = trainer_state(folder)
        sha256 = result.keep(
            folder,
            model,
            ADAPTER,
            train,
            origin=base["name"] if base.get("source") == "hub" else "models/base",
        )
        write_text("reports/loss.csv", losses_csv(state))
        report = result.report(done, state, sha256)
        report.write("reports/train.json")
        print(
            f"train: loss {report.initial_loss:.3f} to {report.final_loss:.3f} in {report.steps}"
            f" steps, {done.seconds:.0f} s"
        )


def configuration(
    train: Train, launcher: Launcher, model: Path, evaluate: Evaluate
) -> dict[str, Any]:
    # the trainer takes no arguments of a chat template
    trained = with_template(model, fixed_arguments(evaluate.template))
    return arguments(
        train,
        model=str(trained),
        data=str(DATA.absolute()),
        output=".pawl/train",
        use_cpu=not devices(train, launcher),
        has_eval=has_eval(DATA),
        distributed=launcher.kind != "local",
        checkpoint_steps=0 if separate(launcher) else launcher.checkpoint_steps,
        rows=count_rows(DATA),
        processes=(launcher.workers or devices(train, launcher) or 1) * launcher.nodes,
        template=evaluate.template,
    )


def served(model: Path, evaluate: Evaluate) -> dict[str, Any]:
    """How the result will be asked, for the preflight."""
    return {
        "model": str(model),
        "template": dict(evaluate.template),
        "think_close": evaluate.think_close,
    }


def check(overrides: list[str]) -> dict[str, Any]:
    """What preflight says of conf/ composed with overrides, against the base and the rows that lie
    here.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        path = Path(folder) / "params.yaml"
        path.write_text(compose(overrides), encoding="utf-8")
        params = read_params(
            "train", "launcher", *KEYS, "evaluate", "data", "model", "judge", path=path
        )
        check_extra(params.train.extra)
        base, model = base_model()
        check_serving(params.engine, model)
        launcher = placed(params.train, params.launcher)
        config = configuration(params.train, launcher, model, params.evaluate)
        os.environ |= environment(Path(folder), bool(config["use_cpu"]), params.train.parallel) | {
            "LLAMAFACTORY_VERBOSITY": "ERROR"
        }
        gpus, waits = lease.likely(wanted(launcher, bool(config["use_cpu"])))
        os.environ |= lease.environment(gpus)  # before torch looks for them
        if gpus and (note := untried()):
            print(f"train: {note}")
        from stages.train import preflight

        found = preflight.check(
            params.train,
            launcher,
            config=config,
            engine=params.engine.kind,
            data=str(DATA),
            served=served(model, params.evaluate),
            rebuilt=rebuilt(params.data, params.train),
            free_gib=min(card.total_gib for card in gpus) if waits else None,
        )
        found["warnings"] += detect.few(ROOT / "data/benchmark/val", params.judge)
        if params.model.name != base["name"]:
            note = (
                f"checked with the base that is here, {base['name']}, not {params.model.name}: dvc"
                " repro fetch_model"
            )
            found["warnings"].insert(0, note)
        return found


if __name__ == "__main__":
    run_main("train", main)
