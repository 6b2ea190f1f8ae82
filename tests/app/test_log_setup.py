from __future__ import annotations

import logging

from app.log_setup import logging_to

log = logging.getLogger("app.test")


def test_the_log_is_written_to_the_file_and_to_nothing_else(tmp_path, capfd):
    with logging_to(tmp_path / "logs" / "ember.log") as path:
        log.warning("값 %d", 7)
        log.debug("too fine")
    assert path == tmp_path / "logs" / "ember.log"
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert line.endswith("WARNING MainThread app.test: 값 7")
    assert capfd.readouterr() == ("", "")


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, capfd):
    (tmp_path / "file").touch()
    with logging_to(tmp_path / "file" / "ember.log") as path:
        log.error("lost")
    assert path is None
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_fills_up_stops_nothing(tmp_path, capfd, monkeypatch):
    with logging_to(tmp_path / "ember.log"):
        handler = logging.getLogger().handlers[-1]
        monkeypatch.setattr(handler, "flush", lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        log.error("lost")
        monkeypatch.undo()
    assert capfd.readouterr() == ("", "")


def test_the_log_renews_itself(tmp_path):
    with logging_to(tmp_path / "ember.log"):
        for _ in range(30):
            log.info("x" * 100_000)
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert len(sizes) == 4
    assert sizes[-1] <= 1_000_000


def test_logging_is_as_it_was_afterwards(tmp_path):
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with logging_to(tmp_path / "ember.log"):
        assert (list(root.handlers), root.level) != before
    assert (list(root.handlers), root.level) == before
