"""Known failures in the window's language: one sentence each that says what to do. Unknown codes keep their message."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QCoreApplication

from app.errors import AppError
from engine.protocol.errors import EngineError
from engine.protocol.events import Failed


def _tr(source: str) -> str:
    return QCoreApplication.translate("Errors", source)


def failure_words(event: Failed) -> str:
    return sentence(event.code, event.params, event.message)


def error_words(error: AppError | EngineError) -> str:
    return sentence(error.code, error.params, str(error))


def sentence(code: str, params: Mapping[str, str], fallback: str) -> str:
    """The sentence for `code`; `fallback` where the code is unknown or a parameter is missing."""
    template = _engine_template(code) or _app_template(code)
    if template is None:
        return fallback
    try:
        return template.format_map(dict(params))
    except KeyError:
        return fallback


def _engine_template(code: str) -> str | None:
    match code:
        case "model":
            return _tr("The model at {path} cannot be loaded; choose another one at the top.")
        case "model_not_found":
            return _tr("There is no model at {path}; choose another one at the top, or run the set-up again.")
        case "model_damaged":
            return _tr(
                "The model at {path} is damaged or incomplete; fetch it again, or choose another one at the top."
            )
        case "not_a_language_model":
            return _tr("{path} holds no language model; choose another one at the top.")
        case "model_needs_memory":
            return _tr(
                "The model at {path} does not fit into memory; choose 8-bit or 4-bit weights, or a smaller model."
            )
        case "no_model_loaded":
            return _tr("No model is loaded; choose one at the top and send the message again.")
        case "context_overflow":
            return _tr(
                "This message makes the chat {prompt_tokens} tokens long, and the model holds {context_length}; "
                "your text is back in the field below: shorten it, or start a new chat."
            )
        case "template":
            return _tr("The model's chat template cannot take these messages ({reason}); choose another model.")
        case "out_of_memory":
            return _tr(
                "Memory ran out, even after other chats were freed; close other programs or use a smaller model."
            )
        case "memory_budget":
            return _tr(
                "This chat needs about {needed_mb} MB of memory, and caches may take {budget_mb} MB; raise the memory "
                "budget, compress the chat, or start a new one."
            )
        case "cannot_compress":
            return _tr("This chat's memory cannot be compressed with this model.")
        case "too_short_to_compress":
            return _tr("This chat has {tokens} tokens, too few to compress; it is worth it from {least} on.")
        case "compression_share":
            return _tr("Keep between {least} and {most} of the chat's memory.")
        case "nothing_to_undo":
            return _tr("This chat's memory is not compressed, so there is nothing to undo.")
        case "generation":
            return _tr("The model gave nothing usable ({reason}); send again, or load the model again.")
        case "bug":
            return _tr(
                "Something went wrong in Ember that should not; it is in the log. Your message is kept: send again."
            )
    return None


def _app_template(code: str) -> str | None:
    match code:
        case "empty_message":
            return _tr("The message is empty; write something first.")
        case "busy":
            return _tr("This chat is still answering; wait, or stop the reply first.")
        case "compressing":
            return _tr("This chat's memory is being compressed; wait, or stop that first.")
        case "nothing_to_compress":
            return _tr("Nothing has been said in this chat yet, so there is nothing to compress.")
        case "nothing_to_continue":
            return _tr("The last reply is whole; send a message to go on.")
        case "unknown_conversation":
            return _tr("This chat is no longer there.")
        case "preset_name":
            return _tr("A preset needs a name of 1 to 80 characters.")
        case "preset_name_taken":
            return _tr("Another preset is called “{name}”; choose another name.")
        case "preset_built_in":
            return _tr("“{name}” comes with Ember and stays as it is; choose another name.")
        case "unknown_preset":
            return _tr("There is no preset “{name}” any more.")
        case "settings_import":
            return _tr("{path} holds no settings of Ember; choose a file that was exported here.")
        case "newer_settings":
            return _tr("{path} was made by a newer Ember; update Ember to import it.")
        case "storage":
            return _tr("Ember cannot use {path}; check the disk. Your text is still in the field below.")
        case "read_only":
            return _tr("Ember cannot write to {path}; make the folder writable. Your text is still in the field below.")
        case "disk_full":
            return _tr("No space is left for {path}; free some and send again. Your text is still in the field below.")
        case "database_busy":
            return _tr("Another program is using {path}; close it, or try again in a moment.")
        case "newer_database":
            return _tr("{path} was made by a newer Ember and is left untouched; update Ember to open it.")
        case "damaged_database":
            return _tr("{path} is damaged and is left untouched; put a backup in its place.")
    return _attachment_template(code) or _exchange_template(code)


def _exchange_template(code: str) -> str | None:
    match code:
        case "unknown_message":
            return _tr("This message is no longer there.")
        case "unknown_folder":
            return _tr("This folder is no longer there.")
        case "import_unreadable":
            return _tr("{name} cannot be read ({reason}); choose another file.")
        case "import_too_large":
            return _tr("{name} is larger than {most} MB; export fewer chats at a time.")
        case "import_not_text":
            return _tr("{name} is no text file; choose a JSON file that a chat program exported.")
        case "import_not_json":
            return _tr("{name} is no JSON (line {line}); choose a file as a chat program exported it.")
        case "import_unknown_format":
            return _tr("There are no chats in {name} that Ember can read; choose an export of Ember or of ChatGPT.")
        case "import_newer":
            return _tr("{name} was exported by a newer Ember; update Ember to import it.")
        case "import_damaged":
            return _tr("{name} is damaged ({place}); export it again.")
        case "import_empty":
            return _tr("There is no chat in {name}; choose another file.")
        case "export_failed":
            return _tr("Ember cannot write {path} ({reason}); choose another place for it.")
    return None


def _attachment_template(code: str) -> str | None:
    match code:
        case "attachment_missing":
            return _tr("{name} is no longer there; choose it again.")
        case "attachment_folder":
            return _tr("{name} is a folder; choose the files in it.")
        case "attachment_special":
            return _tr("{name} is no ordinary file; choose a text or a PDF.")
        case "attachment_denied":
            return _tr("{name} may not be read; change its rights, or choose a copy.")
        case "attachment_unreadable":
            return _tr("{name} cannot be read ({reason}); try again, or choose a copy.")
        case "attachment_empty":
            return _tr("{name} is empty; choose a file with text in it.")
        case "attachment_too_large":
            return _tr("{name} is larger than {most}; choose a smaller file, or a part of it.")
        case "attachment_too_long":
            return _tr("{name} has more than {most} characters of text; choose a part of it.")
        case "attachment_not_text":
            return _tr("{name} is no text; choose a text, code or a PDF.")
        case "attachment_pdf_locked":
            return _tr("{name} is locked with a password; save a copy without one.")
        case "attachment_pdf_damaged":
            return _tr("{name} is a damaged PDF; save it again, or choose a copy.")
        case "attachment_pdf_without_text":
            return _tr("{name} has pictures of pages and no text; run text recognition (OCR) on it first.")
        case "attachment_too_slow":
            return _tr("Reading {name} takes longer than {seconds} s; choose a part of it.")
        case "attachment_too_many":
            return _tr("At most {most} files go with one message; remove one first.")
    return None
