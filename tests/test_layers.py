"""The arrows between the rooms, proved by walking every import, also those inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("app", "engine", "ui")


@dataclass(frozen=True)
class Import:
    """One imported module. `is_for_types` stands under `if TYPE_CHECKING:`."""

    file: str
    line: int
    module: str
    names: tuple[str, ...]
    is_for_types: bool

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_in(source: str, file: str) -> Iterator[Import]:
    tree = ast.parse(source)
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, (), id(node) in for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            names = tuple(alias.name for alias in node.names)
            yield Import(file, node.lineno, node.module or "", names, id(node) in for_types)
        elif isinstance(node, ast.Call) and _names_a_module(node):
            argument = node.args[0]
            assert isinstance(argument, ast.Constant | ast.JoinedStr)
            text = argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)[2:-1]
            yield Import(file, node.lineno, str(text), (), False)


def _names_a_module(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("importlib.import_module", "import_module", "__import__") and bool(call.args)


def _all_imports() -> list[Import]:
    found: list[Import] = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            found.extend(imports_in(path.read_text(encoding="utf-8"), file))
    return found


IMPORTS = _all_imports()


def offending(condition: object) -> list[str]:
    assert callable(condition)
    return [str(found) for found in IMPORTS if condition(found)]


def below(found: Import, *packages: str) -> bool:
    return any(found.module == package or found.module.startswith(package + ".") for package in packages)


def test_the_walk_sees_imports_everywhere_they_can_stand() -> None:
    source = """
import a.b
from c import d
def f():
    import e
    class G:
        from h import i
try:
    importlib.import_module("j.k")
except ImportError:
    pass
if TYPE_CHECKING:
    import l
"""
    found = list(imports_in(source, "x.py"))
    assert {entry.module for entry in found} == {"a.b", "c", "e", "h", "j.k", "l"}
    assert [entry.module for entry in found if entry.is_for_types] == ["l"]


def test_every_room_was_walked() -> None:
    assert {found.file.split("/")[0] for found in IMPORTS} == set(ROOMS)


def test_the_engine_imports_neither_the_app_nor_the_window() -> None:
    assert offending(lambda found: found.file.startswith("engine/") and found.top in ("app", "ui")) == []


def test_only_the_composition_root_imports_the_window() -> None:
    assert (
        offending(lambda found: found.file.startswith("app/") and found.top == "ui" and found.file != "app/__main__.py")
        == []
    )


def test_the_window_knows_of_the_engine_only_its_protocol() -> None:
    assert (
        offending(
            lambda found: found.file.startswith("ui/") and found.top == "engine" and not below(found, "engine.protocol")
        )
        == []
    )


def test_the_app_reaches_past_the_protocol_only_for_the_worker_and_the_files_on_disk() -> None:
    allowed = {"app/__main__.py": ("engine.worker",), "app/commands/cache.py": ("engine.kv.store.report",)}
    allowed["app/commands/chats.py"] = ("engine.kv.store.deletion",)
    assert (
        offending(
            lambda found: (
                found.file.startswith("app/")
                and found.top == "engine"
                and not below(found, "engine.protocol", *allowed.get(found.file, ()))
            )
        )
        == []
    )


def test_the_protocol_needs_the_standard_library_only() -> None:
    assert (
        offending(
            lambda found: (
                found.file.startswith("engine/protocol/")
                and not below(found, "engine.protocol")
                and found.top not in sys.stdlib_module_names
            )
        )
        == []
    )


def test_the_engine_knows_neither_qt_nor_a_database() -> None:
    assert (
        offending(
            lambda found: (
                found.file.startswith("engine/") and found.top in ("PySide6", "shiboken6", "sqlite3", "sqlite_utils")
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "library", ["torch", "transformers", "bitsandbytes", "accelerate", "safetensors", "numpy", "gguf"]
)
def test_inference_libraries_stay_in_the_engine(library: str) -> None:
    assert offending(lambda found: not found.file.startswith("engine/") and found.top == library) == []


@pytest.mark.parametrize("library", ["bitsandbytes", "gguf"])
def test_weight_formats_stay_in_the_model_room(library: str) -> None:
    """But for the one codec of caches that bitsandbytes is."""
    codec = "engine/kv/codecs/blockwise.py" if library == "bitsandbytes" else ""
    assert (
        offending(
            lambda found: not found.file.startswith("engine/model/") and found.file != codec and found.top == library
        )
        == []
    )


def test_the_app_imports_qt_in_three_files_only() -> None:
    allowed = ("app/__main__.py", "app/engine_bridge.py", "app/single_instance.py")
    assert (
        offending(lambda found: found.file.startswith("app/") and found.top == "PySide6" and found.file not in allowed)
        == []
    )


def test_widgets_are_imported_by_the_window_and_the_composition_root_only() -> None:
    assert (
        offending(
            lambda found: (
                not found.file.startswith("ui/")
                and found.file != "app/__main__.py"
                and below(found, "PySide6.QtWidgets", "PySide6.QtGui")
            )
        )
        == []
    )


def test_storage_is_reached_by_the_app_only() -> None:
    assert offending(lambda found: found.top == "sqlite3" and not found.file.startswith("app/")) == []
    assert offending(lambda found: found.top == "sqlite_utils" and found.file != "app/database.py") == []


def test_no_star_is_imported() -> None:
    assert offending(lambda found: "*" in found.names) == []


def test_nothing_is_imported_by_a_computed_name_but_the_verbs() -> None:
    assert offending(lambda found: "{" in found.module and found.file != "app/cli.py") == []


def test_the_packaging_folder_is_no_package() -> None:
    """It would shadow the library `packaging`, which transformers imports."""
    assert (ROOT / "packaging").is_dir()
    assert not (ROOT / "packaging" / "__init__.py").exists()


def test_no_room_hands_on_names_of_another_module() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("__init__.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert not [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], path


MODULES = [
    "app.__main__",
    "app.cli",
    "app.commands.ask",
    "app.conversation_store",
    "engine.worker",
    "engine.kv.store.report",
    "engine.kv.store.deletion",
]


@pytest.mark.parametrize("module", MODULES)
def test_what_is_slow_to_import_is_not_loaded_by_importing(module: str) -> None:
    heavy = ("torch", "transformers", "PySide6.QtWidgets", "huggingface_hub", "numpy")
    script = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_numpy_can_be_imported_after_the_database() -> None:
    script = "import app.database, numpy; print(numpy.arange(3).sum())"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "3"
