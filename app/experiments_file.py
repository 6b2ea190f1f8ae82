"""What a measurement found, as files: tables that spreadsheets read, one a file, and whatever else has bytes.

A table is UTF-8 with commas, a column a field, under the names of `--json`; a byte order mark comes first where there
is more than ASCII in it, since Excel takes the text for another encoding without one. What all rows depend on (model,
date, command, ...) stands in columns of its own in every row, so that a file is one plain table. A second table goes
into a second file beside the first.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.errors import DiskFullError, ExportFailedError, StorageError, from_os_error
from app.experiments import command_of
from engine.protocol.commands import BenchName
from engine.protocol.config import Weights

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
_HEAD = ("experiment", "model", "weights", "dtype", "device", "threads", "context")


def measured_tables(
    name: BenchName, asked: int | None, result: Mapping[str, Any], measured_at: datetime, *, is_whole: bool
) -> Tables:
    """The rows under "", else the result's own numbers as the only one; what the page of the lab shows besides under a
    name. `asked`: the length that was asked for. `is_whole`: the measurement came to its end.
    """
    about = {"experiment": str(name), **result}
    head: dict[str, Any] = {key: about[key] for key in _HEAD if about.get(key) is not None}
    of_model = str(result.get("model", "")), str(result.get("weights", Weights.BITS_16))
    head["command"] = command_of(name, asked, *of_model)
    head |= {"measured_at": measured_at.astimezone().isoformat(timespec="seconds"), "is_whole": is_whole}
    rows = result.get("rows")
    found: dict[str, Sequence[Row]] = {"": [result] if rows is None else [_plain(name, row) for row in rows]}
    found |= _besides(name, result) if is_whole else {}
    return with_head(found, head)


def with_head(tables: Tables, head: Row) -> Tables:
    """`head` beside every row, but for what the rows tell themselves."""
    return {name: _beside(rows, head) for name, rows in tables.items()}


def write_tables(path: Path, tables: Tables) -> list[Path]:
    """The table without a name into `path`, every other one beside it, where that is a file. The files.

    Raises StorageError.
    """
    if _is_a_stream(path):
        tables = {name: rows for name, rows in tables.items() if not name}
    files = [path.with_stem(f"{path.stem}-{name}") if name else path for name in tables]
    for file, rows in zip(files, tables.values(), strict=True):
        write_bytes(file, table_bytes(rows))
    return files


def table_bytes(rows: Sequence[Row]) -> bytes:
    """Lists stand as JSON; what is missing is left empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    content = text.getvalue()
    return content.encode("utf-8" if content.isascii() else "utf-8-sig")


def write_bytes(path: Path, content: bytes) -> None:
    """As a whole, or what was there before stays. Raises DiskFullError, ExportFailedError."""
    new = path.with_name(f".{uuid4().hex}.part")
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if path.is_symlink() or _is_a_stream(path):  # what a link names keeps its place, /dev/stdout above all
            path.write_bytes(content)
            return
        new.write_bytes(content)
        if path.exists():
            new.chmod(path.stat().st_mode)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise _failure(error, path) from error


def _is_a_stream(path: Path) -> bool:
    """A pipe, a device."""
    return path.exists() and not path.is_file()


def _failure(error: OSError, path: Path) -> StorageError:
    known = from_os_error(error, path)
    if isinstance(known, DiskFullError):
        return known
    reason = error.strerror or str(error)
    words = f"Ember cannot write {path} ({reason}); choose another place for it."
    return ExportFailedError(words, path=str(path), reason=reason)


def _beside(rows: Sequence[Row], head: Row) -> list[Row]:
    told = dict.fromkeys(name for row in rows for name in row)
    return [{**told, **head, **row} for row in rows]


def _plain(name: BenchName, row: Row) -> Row:
    """Without what has a table of its own."""
    return {key: value for key, value in row.items() if (name, key) != (BenchName.LOOP, "best")}


def _besides(name: BenchName, result: Mapping[str, Any]) -> dict[str, Sequence[Row]]:
    match name:
        case BenchName.USE_CACHE:
            return {"differences": [*result["table"], *_growth(result["fits"])]}
        case BenchName.LOOP:
            best = [
                {"step": row["step"], "rank": rank, **one}
                for row in result["rows"]
                for rank, one in enumerate(row["best"], 1)
            ]
            return {"best": best}
        case BenchName.SHARED_PREFIX:
            totals = result["totals"]
            return {
                "totals": [{"what": what, **{way: totals[way][what] for way in totals}} for what in totals["apart"]]
            }
        case BenchName.KVZIP:
            kept = {f"kept_{row['keep_percent']}": row["facts_recalled"] for row in result["rows"]}
            facts = [
                {"fact": fact, **{share: found[number] for share, found in kept.items()}}
                for number, fact in enumerate(result["facts"])
            ]
            return {"facts": facts}
    return {}


_GROWTH = {"slope": "ms/token", "intercept": "ms", "r2": "", "spread": "ms", "growth": "times"}


def _growth(fits: Mapping[str, Row | None]) -> list[Row]:
    """The straight lines through the times, below the differences of both ways."""
    return [
        {"what": f"fit_{key}", "unit": unit, **{way: line[key] for way, line in fits.items() if line}}
        for key, unit in _GROWTH.items()
    ]


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value
