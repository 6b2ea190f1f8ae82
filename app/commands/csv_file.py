"""The rows of a measurement as a table that spreadsheets read: UTF-8 with commas, one column a field."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.errors import from_os_error


def write_csv(path: Path, result: Mapping[str, Any]) -> None:
    """Rows, else the result's own numbers as the only one. Lists stand as JSON; what is missing is left empty.

    Raises StorageError.
    """
    rows: list[Mapping[str, Any]] = result.get("rows", [result])
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    except OSError as error:
        raise from_os_error(error, path) from error


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value
