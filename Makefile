# Everything below needs make, git and some Python from 3.8 up. What is missing besides, uv and a Python 3.12 or 3.13,
# scripts/setup finds or fetches. ARGS are handed on: make test ARGS=tests/contract

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gym lint

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## fill .venv from uv.lock; quick when it was done before
	@scripts/setup

demo: setup ## see it work: an agent killed, resumed, restored and compared with the evidence
	@.venv/bin/turnkeep demo $(ARGS)

test: setup ## run the tests
	.venv/bin/pytest -n 2 --dist loadfile $(ARGS)

test-gym: setup ## run tests/gym with NeMo Gym 0.7.0 and Python 3.13, in .gym07 (make test runs it with 0.4.0)
	@scripts/test-gym $(ARGS)

lint: setup ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
