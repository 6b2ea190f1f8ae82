"""What every cache scheme costs: `ember bench fidelity` in a process of its own, and the README's table of it.

make fidelity                                                       (a few minutes on two cores)
make fidelity ARGS="--json fidelity.json"
make fidelity ARGS="--from fidelity.json --readme"                  (the README's table, nothing measured)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.commands.fidelity_table import HEADS, cells, fidelity_lines, legend
from engine.protocol.config import Weights
from tests.benchmarks import machine
from tests.benchmarks.readme_block import BlockMissingError, write_block

_CHECKOUT = Path(__file__).parents[2]
_README = _CHECKOUT / "README.md"


def measure(options: argparse.Namespace) -> dict[str, Any] | None:
    """The object that the command prints, and the machine; None where it fails, which it has told then."""
    busy = machine.busy_percent()
    if busy > machine.BUSY_PERCENT:
        print(f"Other programs use {busy:.0f}% of the processor.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ember-fidelity-") as folder:
        call = [sys.executable, "-m", "app", "bench", "fidelity", "--json", "--data-dir", folder]
        for name in ("context", "model", "weights"):
            if value := getattr(options, name):
                call += [f"--{name}", str(value)]
        done = subprocess.run(call, cwd=_CHECKOUT, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"machine": machine.describe(found["threads"]), "others_busy_percent": busy}


def readme_lines(result: Mapping[str, Any]) -> list[str]:
    """A Markdown table of all schemes that could be measured, and what the columns mean."""
    on, titles = result["machine"], ["", *HEADS[1:]]
    rows = [cells(row) for row in result["rows"] if not row.get("error")]
    first, *others = legend(result)
    return [
        f"Measured with `make fidelity` on {on['cores']} cores ({on['cpu']}), {on['threads']} threads.",
        first,
        "",
        "|" + "".join(f" {title} |" for title in titles),
        "|---|" + "--:|" * (len(titles) - 1),
        *("|" + "".join(f" {cell} |" for cell in row) for row in rows),
        "",
        *others,
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    result = json.loads(options.from_file.read_text(encoding="utf-8")) if options.from_file else measure(options)
    if result is None:
        return 1
    print("\n".join(fidelity_lines(result)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.readme:
        try:
            write_block(options.readme, "FIDELITY", readme_lines(result), "fidelity")
        except BlockMissingError as error:
            print(f"{options.readme.name} was left as it is: {error}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fidelity", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--context", type=int, metavar="N", help="tokens cached before those that are scored")
    parser.add_argument("--model", metavar="NAME_OR_PATH")
    parser.add_argument("--weights", choices=[weights.value for weights in Weights])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every number, and the machine, there")
    parser.add_argument("--from", type=Path, metavar="PATH", dest="from_file", help="measure nothing; show that file")
    parser.add_argument("--readme", type=Path, metavar="PATH", nargs="?", const=_README, help="rewrite the table there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
