"""How a measurement goes, in a sentence."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.protocol.events import Failed
from ui import numbers
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
    parts.append(run.model)
    return " · ".join(parts)


def failure_words(failed: Failed) -> str:
    match failed.code:
        case "context_overflow":
            most = failed.params.get("context_length", "")
            shown = count(int(most)) if most.isdigit() else most
            return _tr(
                "This length does not fit: the model reads {most} tokens, and the measurement needs some of them; "
                "choose another length."
            ).format(most=shown or numbers.DASH)
        case "out_of_memory":
            return _tr("Memory ran out while measuring; choose a shorter length, or close other programs.")
        case "no_model_loaded":
            return _tr("No model is loaded; choose one at the top of the main window.")
        case "bench":
            return _tr("This cannot be measured with the model that is loaded; choose another model.")
    return _tr("Something went wrong in Ember that should not; it is in the log. Measure again.")
