"""How `ember bench fidelity` shows what it found, and that it tells what it does meanwhile."""

from __future__ import annotations

import io
import logging
from typing import Any, cast

from app.commands import measure
from app.commands.call import Call
from app.commands.engine_run import EngineRun
from app.commands.fidelity_table import fidelity_lines
from app.commands.progress import Progress

FULL: dict[str, Any] = {
    "scheme": "full",
    "ratio": 1.0,
    "ratio_whole": 1.0,
    "kl": 0.0,
    "top1": 1.0,
    "ppl_delta": 0.0,
    "recall": 1.0,
    "recalled": 9,
    "asked": 9,
    "decode_tps": 50.0,
    "decode_ratio": 1.0,
    "steady_bytes": 2**20,
    "active_bytes": 2**20,
    "peak_bytes": 2**20,
    "recall_by_context": [{"recalled": 5, "asked": 5, "left_out": 0}, {"recalled": 4, "asked": 4, "left_out": 1}],
}
RESULT = {
    "rows": [FULL, FULL | {"scheme": "compact", "kl": 0.0043, "recalled": 8}, {"scheme": "kvzip-30", "error": "no."}],
    "model": "tiny",
    "context": 1000,
    "scored_tokens": 250,
    "decode_context": 3980,
    "recall_contexts": [1080, 3980],
    "texts": ["prose-en", "code-ko"],
    "noise_floor_kl": None,
}


def test_columns_are_aligned_and_what_is_missing_is_told() -> None:
    heads, full, compact, failed, empty, *legend = fidelity_lines(RESULT)
    assert len(heads) == len(full) == len(compact)
    assert " ".join(full.split()) == "full 1.000 1.000 0 100.0% +0.000 9/9 50.0 1.00 1.0 MiB 1.0 MiB 1.0 MiB"
    assert compact.split()[3:7] == ["4.3e-03", "100.0%", "+0.000", "8/9"]
    assert (failed, empty) == ("kvzip-30: no.", "")
    assert "1,080 and 3,980 tokens" in legend[2]
    assert "1 that the full cache does not recall" in legend[2]
    assert len(legend) == 3  # no noise was measured


def test_without_facts_there_is_no_recall() -> None:
    row = FULL | {"recall": None, "recalled": 0, "asked": 0, "recall_by_context": []}
    lines = fidelity_lines(RESULT | {"rows": [row], "recall_contexts": []})
    assert lines[1].split()[6] == "-"
    assert not any("Recall" in line for line in lines)


def test_what_is_being_done_is_told_on_standard_error() -> None:
    class SomeRun:
        progress = Progress(io.StringIO())

    class SomeCall:
        told: list[str]

        def note(self, text: str) -> None:
            self.told.append(text)

    call = SomeCall()
    call.told = []
    log = logging.getLogger("engine.fidelity.measure")
    with measure._progress_told(cast(Call, call), cast(EngineRun, SomeRun())):
        log.info("%s: int8", "text 1 of 6")
    log.info("nobody listens any more")
    assert call.told == ["text 1 of 6: int8"]
