"""`ember bench` and `ember verify` from the outside: progress, tables, CSV, help. The engine is a fake."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.errors import ExportFailedError
from app.experiments import WORDS
from app.experiments_file import measured_tables, write_tables
from engine.protocol.commands import BenchName, Command, RunBench
from engine.protocol.events import BenchFinished, BenchProgress, Phase, PhaseChanged
from tests.fakes import ScriptedEngine

ROWS = [
    {"scheme": "paged-32", "allocated_bytes": 3 * 2**20, "used_bytes": 2 * 2**20, "waste_ratio": 1 / 3},
    {"scheme": "ember, parked", "allocated_bytes": 2**20, "used_bytes": 2**20, "waste_ratio": 0.0, "lengths": [1, 2]},
]
RESULT: dict[str, Any] = {
    "rows": [row | {"chats_per_gib": None, "computed_chats": 0} for row in ROWS],
    "chats": 2,
    "lengths": [10, 20],
    "longest_tokens": 20,
    "median_tokens": 15,
    "bytes_per_token": 64,
    "context": 512,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class MeasuringEngine(ScriptedEngine):
    """Tells three steps, then the result."""

    def submit(self, command: Command) -> None:
        if not isinstance(command, RunBench):
            super().submit(command)
            return
        self.commands.append(command)
        for done in range(3):
            self.on_event(BenchProgress(command.request_id, done, 3, dict(ROWS[0]) if done else None))
        self.on_event(BenchFinished(command.request_id, RESULT))


Ember = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ember(tmp_path: Path, data_dir: Path) -> Ember:
    model = tmp_path / "resources" / "models" / "SmolLM2-135M-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    engines: list[MeasuringEngine] = []

    def make_engine(config: Any, on_event: Any) -> MeasuringEngine:
        engines.append(MeasuringEngine(config=config, on_event=on_event))
        return engines[-1]

    def call(*arguments: str, err: io.StringIO | None = None) -> tuple[int, str, str]:
        out, err = io.StringIO(), err or io.StringIO()
        parsed = cli.parse(["--data-dir", str(data_dir), *arguments])
        code = cli.run(parsed, make_engine=make_engine, resources_dir=tmp_path / "resources", out=out, err=err)
        assert not any(engine.is_running for engine in engines)
        return code, out.getvalue(), err.getvalue()

    return call


def test_a_table_is_printed_and_the_usual_context_is_the_engines(ember: Ember) -> None:
    code, out, err = ember("bench", "memory")
    assert (code, err) == (0, "")
    heads, *lines = out.splitlines()
    assert heads.split()[:3] == ["kept", "as", "allocated"]
    assert lines[0].split() == ["paged-32", "3.0", "MiB", "2.0", "MiB", "33.33%", "-", "0"]
    assert len(lines[0]) == len(lines[1])
    assert "2 chats of 10 to 20 tokens" in out


def test_json_is_one_object_on_one_line(ember: Ember) -> None:
    out = ember("bench", "memory", "--json")[1]
    assert out.count("\n") == 1
    assert json.loads(out) == RESULT


def test_progress_is_told_on_a_terminal_only(ember: Ember) -> None:
    err = Terminal()
    ember("bench", "memory", err=err)
    assert "Measuring, step 1 of 3" in err.getvalue()
    assert "Measuring, step 3 of 3" in err.getvalue()
    assert err.getvalue().endswith("\r"), "and nothing of it is left"
    assert ember("bench", "memory")[2] == ""


def test_verify_tells_how_much_it_has_read(ember: Ember, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ember("ask", "--json", "Hello")
    conversation_id = json.loads(told[1])["conversation_id"]
    submit = MeasuringEngine.submit

    def reading(engine: MeasuringEngine, command: Any) -> None:
        if type(command).__name__ == "Verify":
            engine.on_event(PhaseChanged(command.conversation_id, command.request_id, Phase.PREFILL, 20, 90))
        submit(engine, command)

    monkeypatch.setattr(MeasuringEngine, "submit", reading)
    err = Terminal()
    assert ember("verify", conversation_id, err=err)[0] == 0
    assert "Reading 20 of 90 tokens" in err.getvalue()


def test_the_table_goes_into_a_file_as_well(ember: Ember, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    assert ember("bench", "memory", "--csv", str(file), "--json")[0] == 0
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["scheme"] for row in rows] == ["paged-32", "ember, parked"]
    assert [row["allocated_bytes"] for row in rows] == [str(3 * 2**20), str(2**20)]
    assert [row["chats_per_gib"] for row in rows] == ["", ""]
    assert [row["lengths"] for row in rows] == ["", "[1, 2]"]
    assert {row["command"] for row in rows} == {"ember bench memory"}
    assert {(row["experiment"], row["context"], row["is_whole"]) for row in rows} == {("memory", "512", "True")}


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(ember: Ember, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "table.csv"):
        code, out, err = ember("bench", "memory", "--csv", str(path))
        assert (code, out) == (2, "")
        assert err == f"ember: {path} cannot be written; give --csv a file in a folder that exists.\n"


def test_numbers_without_rows_are_one_line_of_a_table(tmp_path: Path) -> None:
    result = {"context": 512, "decode_tps": 12.5}
    tables = measured_tables(BenchName.DECODE, 512, result, datetime.now().astimezone(), is_whole=True)
    write_tables(tmp_path / "a.csv", tables)
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as opened:
        (row,) = csv.DictReader(opened)
    assert (row["context"], row["decode_tps"], row["command"]) == ("512", "12.5", "ember bench decode --context 512")
    with pytest.raises(ExportFailedError, match="choose another place"):
        write_tables(tmp_path, tables)


def test_help_has_a_line_for_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*WORDS} == {*BenchName}
    with pytest.raises(SystemExit) as ended:
        cli.parse(["bench", "--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, words in WORDS.items():
        assert any(line.split(maxsplit=1) == [str(name), words] for line in lines), name
    assert max(map(len, lines)) <= 110


def test_what_a_link_names_and_who_may_read_a_file_stay(tmp_path: Path) -> None:
    tables = {"": [{"a": 1}], "more": [{"b": 2}]}
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_tables(link, tables)
    assert link.is_symlink()
    assert target.read_text().split() == ["a", "1"]
    write_tables(target, tables)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_stream_gets_one_table_and_stays_a_stream(tmp_path: Path) -> None:
    stream = tmp_path / "stdout"  # as /dev/stdout is one
    stream.symlink_to("/dev/null")
    assert write_tables(stream, {"": [{"a": 1}], "more": [{"b": 2}]}) == [stream]
    assert stream.is_symlink()
    assert [one.name for one in tmp_path.iterdir()] == ["stdout"]


def test_what_was_measured_is_told_though_its_file_cannot_be_written(ember: Ember, tmp_path: Path) -> None:
    full = tmp_path / "full.csv"
    full.symlink_to("/dev/full")
    code, out, err = ember("bench", "memory", "--csv", str(full))
    assert code == 4
    assert "paged-32" in out
    assert str(full) in err
