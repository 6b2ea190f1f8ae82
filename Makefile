# Thin on purpose: everything is in packaging/bootstrap.py, which also runs without make.
# Extra arguments: make test ARGS="tests/app -k store"
PYTHON ?= python3
ARGS ?=

.PHONY: run test setup desktop check test-gpu bench peers fidelity equality visits corruption

run test setup desktop check test-gpu bench peers fidelity equality visits corruption:
	@$(PYTHON) packaging/bootstrap.py $@ $(ARGS)
