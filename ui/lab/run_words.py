"""How a measurement goes, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from PySide6.QtCore import QCoreApplication, QDateTime, QLocale

from engine.protocol.events import Failed
from ui import numbers
from ui.lab.figures import threads
from ui.lab.lab_runs import LabRuns, Measurement, RunState
from ui.lab.view import count


def _tr(source: str) -> str:
    return QCoreApplication.translate("Lab", source)


def state_words(run: Measurement | None, runs: LabRuns) -> str:
    """What to know now; "" where there is nothing to say."""
    if run is not None:
        match run.state:
            case RunState.WAITING if runs.is_reply_running:
                return _tr("A reply is being written; the measurement begins when it is done.")
            case RunState.WAITING:
                return _tr("Waiting for the engine…")
            case RunState.RUNNING:
                return _tr("Step {done} of {total}").format(done=count(run.done), total=count(run.total))
            case RunState.STOPPING:
                return _tr("Stopping…")
    if runs.is_loading:
        return _tr("A model is being loaded; it can be measured when it is there.")
    if runs.model is None:
        return _tr("No model is loaded; choose one at the top of the main window.")
    if runs.running is not None and runs.running is not run:
        return _tr("Another measurement is running; stop it, or wait until it is done.")
    if run is not None and run.state is RunState.STOPPED:
        return _tr("The measurement was stopped.")
    if run is not None and run.failure is not None:
        return failure_words(run.failure)
    return ""


def facts_words(run: Measurement) -> str:
    """Beside the buttons: what the numbers belong to."""
    parts = []
    context = run.found.context
    if context is not None:
        parts.append(_tr("{count} tokens").format(count=count(context)))
    if run.seconds is not None:
        parts.append(numbers.seconds(run.seconds))
    parts.append(run.model.name)
    return " · ".join(parts)


def about_words(run: Measurement) -> str:
    """Below a picture: all that its numbers depend on."""
    told = run.told
    parts = [
        f"Ember · {facts_words(run)}",
        *(str(told[key]) for key in ("weights", "dtype", "device") if told.get(key)),
    ]
    if told.get("threads") is not None:
        parts.append(threads(told["threads"]))
    return " · ".join([*parts, time_words(run.asked_at)])


def time_words(when: datetime) -> str:
    """Day and minute, as they are written where the user lives."""
    told = QDateTime.fromSecsSinceEpoch(int(when.timestamp()))
    return QLocale().toString(told, QLocale.FormatType.ShortFormat)


def failure_words(failed: Failed) -> str:
    """One sentence that says what to do."""
    params = {
        name: count(int(text)) if name != "model" and text.isascii() and text.isdigit() else text
        for name, text in failed.params.items()
    }
    match failed.code:
        case "context_overflow" if {"least", "most"} <= params.keys():
            words = _tr("This length does not fit: it can be {least} to {most} tokens here; choose another length.")
            return words.format_map(params)
        case "context_overflow":
            return _tr("This length does not fit; choose another length.")
        case "out_of_memory":
            return _tr("Memory ran out while measuring; choose a shorter length, or close other programs.")
        case "no_model_loaded":
            return _tr("No model is loaded; choose one at the top of the main window.")
        case "model_changed":
            return _tr("The model was changed while measuring; measure again with the new one.")
        case "no_scratch" if {"path", "reason"} <= params.keys():
            words = _tr(
                "Ember cannot write to {path} ({reason}), which this measurement needs; free some space, or make the "
                "folder writable."
            )
            return words.format_map(params)
        case "cannot_measure":
            return _why_not(params)
    return _tr("Something went wrong in Ember that should not; it is in the log. Measure again.")


def _why_not(params: Mapping[str, str]) -> str:
    """Why the loaded model cannot be measured (`engine.lab.lab.Why`)."""
    template = _why_template(params.get("why", ""))
    if template is not None:
        with suppress(KeyError):
            return template.format_map(dict(params))
    return _tr("This cannot be measured with the model that is loaded; choose another model.")


def _why_template(why: str) -> str | None:
    match why:
        case "no_cache":
            return _tr("{model} keeps no cache that Ember knows; choose another model.")
        case "no_keys":
            return _tr(
                "No layer of {model} keeps keys and values of all tokens, which this is about; choose another model."
            )
        case "not_copied":
            return _tr("The cache of {model} cannot be copied, which this needs; choose another model.")
        case "windowed":
            return _tr(
                "Not all layers of {model} see the whole chat, so that its cache cannot be compressed; choose another "
                "model."
            )
        case "uneven_heads":
            return _tr(
                "Keys and values of {model} differ in size, so that kernels cannot be compared; choose another model."
            )
        case "short_context":
            return _tr("{model} reads {context_length} tokens, too few for this; choose another model.")
        case "scoring_room":
            return _tr(
                "{tokens} tokens are too few, or too many, to find out what matters in them; choose another length."
            )
    return None
