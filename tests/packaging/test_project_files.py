"""Promises of the project's own files that a careless edit would break silently."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import packaging
import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parents[2]
# Imported by us, but theirs to choose: a range of our own could only disagree with the one that brings them.
BROUGHT_ALONG = {"tokenizers": "transformers", "httpx2": "huggingface_hub"}
MODULE_OF = {"pyside6-essentials": "PySide6", "markdown-it-py": "markdown_it", "pygments": "pygments"}
SETUP_FILES = sorted((CHECKOUT / "packaging").glob("*.py"))


def imported_by(path: Path) -> set[str]:
    """Top-level modules of every import in the file, also of those inside functions."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return {name.split(".")[0] for name in names}


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_our_packaging_folder_does_not_shadow_the_library() -> None:
    assert not (CHECKOUT / "packaging/__init__.py").exists()
    assert not (CHECKOUT / "tests/packaging/__init__.py").exists()
    assert packaging.__file__ is not None
    assert "site-packages" in packaging.__file__


def test_every_dependency_has_an_upper_end(project: dict) -> None:
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        operators = {specifier.operator for specifier in Requirement(text).specifier}
        assert "<" in operators, text
        assert ">=" in operators, text


def test_pyside_stays_below_the_release_that_loses_references(project: dict) -> None:
    """6.12.0 on Python 3.11 aborts the interpreter; lift this only with Python 3.11 itself."""
    (qt,) = [Requirement(text) for text in project["dependencies"] if text.startswith("PySide6")]
    assert qt.name == "PySide6-Essentials"
    assert not qt.specifier.contains("6.12.0")
    assert qt.specifier.contains("6.11.3")


def test_every_library_that_is_imported_is_declared(project: dict) -> None:
    names = {Requirement(text).name for text in project["dependencies"]}
    declared = {MODULE_OF.get(name.lower(), name.replace("-", "_")) for name in names}
    assert set(BROUGHT_ALONG.values()) <= names
    known = declared | set(BROUGHT_ALONG) | sys.stdlib_module_names | {"app", "engine", "ui"}
    for path in [path for room in ("app", "engine", "ui") for path in (CHECKOUT / room).rglob("*.py")]:
        assert imported_by(path) <= known, path


def test_every_dependency_is_justified(project: dict) -> None:
    table = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8").lower()
    names = [Requirement(text).name for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]]
    assert [name for name in names if f"| {name.lower()} |" not in table] == []


def test_the_makefile_only_names_verbs_of_the_set_up_program() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    usage = subprocess.run(
        [sys.executable, CHECKOUT / "packaging/bootstrap.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    verbs = set(re.findall(r"^  ([a-z-]+) ", usage, re.MULTILINE))
    assert set(phony[1].split()) <= verbs
    assert {"run", "test", "desktop", "check", "test-gpu", "bench"} <= set(phony[1].split())


def test_the_set_up_program_uses_the_standard_library_only() -> None:
    own = {path.stem for path in SETUP_FILES}
    for path in SETUP_FILES:
        assert imported_by(path) <= sys.stdlib_module_names | own, path


def test_the_set_up_program_can_be_read_by_an_old_python_which_is_then_told_so() -> None:
    for path in SETUP_FILES:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("arguments", "code", "words"), [(["fly"], 2, "no verb 'fly'"), (["check", "x"], 1, "takes no x")]
)
def test_wrong_usage_is_one_sentence(arguments: list[str], code: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, CHECKOUT / "packaging/bootstrap.py", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
