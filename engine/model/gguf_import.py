"""GGUF files: checked, and converted once to a safetensors folder, because reading them takes many seconds every time.

Run as `python -m engine.model.gguf_import SOURCE.gguf TARGET_DIR`. The only module that knows GGUF.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from engine.model.gguf_numbers import keep_numbers
from engine.model.model_files import OWN_NUMBERS
from engine.model.packed_file import is_current
from engine.protocol.errors import EngineError, ModelDamagedError, NotALanguageModelError

_MAGIC = b"GGUF"
_log = logging.getLogger(__name__)


def check_gguf(path: Path) -> None:
    """Raise ModelDamagedError unless `path` is a whole GGUF file: header readable, every tensor inside the file."""
    from gguf import GGUFReader  # noqa: PLC0415 - 0.26 s to import, only where a GGUF file is read

    with path.open("rb") as file:
        magic = file.read(4)
    if magic != _MAGIC:
        raise ModelDamagedError(
            f"{path.name} is no GGUF file (it begins with {magic!r}); download the model file again.", path=str(path)
        )
    try:
        GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise ModelDamagedError(
            f"{path.name} is cut short or damaged; download the model file again.", path=str(path)
        ) from error


def converted_folder(path: Path, converted_dir: Path) -> Path:
    """Where the conversion of this very file lives: its name, and a hash of its path, size and time of change."""
    stat = path.stat()
    key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return converted_dir / f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def convert_gguf(source: Path, target: Path) -> None:
    """Convert `source` into the safetensors folder `target` in bfloat16: whole, or not at all.

    Raises ModelDamagedError or NotALanguageModelError; OSError when the disk does not take it.
    """
    check_gguf(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        folder, name = str(source.parent), source.name
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
            model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
            )
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError, AttributeError) as error:
            raise NotALanguageModelError(
                f"{source.name} holds no language model that Ember can read ({error}); choose another file.",
                path=str(source),
            ) from error
        model.bfloat16().save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        _compact_tokenizer(scratch / "tokenizer.json")
        add_numbers(source, scratch)
        if target.exists():
            shutil.rmtree(target)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def lacks_numbers(source: Path, folder: Path) -> bool:
    """Whether `folder`, the conversion of `source`, was never searched for numbers to keep, and has room for them."""
    return (
        not is_current(folder / OWN_NUMBERS)
        and os.access(folder, os.W_OK)
        and shutil.disk_usage(folder).free > 2 * source.stat().st_size
    )


def add_numbers(source: Path, folder: Path) -> None:
    """Keep the file's own packed numbers in its conversion; without them the model only decodes more slowly."""
    try:
        keep_numbers(source, folder)
    except (OSError, ValueError, KeyError, SafetensorError, EngineError) as error:
        _log.warning("The packed numbers of %s are not kept (%s).", source, error)


def _compact_tokenizer(file: Path) -> None:
    """Write the same tokenizer without indentation and with merges as "a b".

    Parsing it holds the interpreter lock, and with it the window: 75 instead of 100 ms for 49,000 merges (measured).
    """
    content = json.loads(file.read_text("utf-8"))
    merges = content["model"].get("merges")
    if merges and all(isinstance(pair, list) and not any(" " in part for part in pair) for pair in merges):
        content["model"]["merges"] = [" ".join(pair) for pair in merges]
    file.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), "utf-8")


def main(arguments: list[str]) -> int:
    """Command line entry; prints one sentence on failure."""
    if len(arguments) != 2:
        print("usage: python -m engine.model.gguf_import SOURCE.gguf TARGET_DIR", file=sys.stderr)
        return 2
    try:
        convert_gguf(Path(arguments[0]), Path(arguments[1]))
    except (EngineError, OSError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    sys.exit(main(sys.argv[1:]))
