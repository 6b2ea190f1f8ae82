"""Known failures of the engine. Each message is one sentence that says what to do; everything else is a bug."""

from __future__ import annotations


class EngineError(Exception):
    """A failure the user can act on.

    `code` names the kind for the window, which words it in the user's language with `params`;
    `str(error)` is the English sentence for the command line and the log.
    """

    code = "engine"

    def __init__(self, message: str, **params: str) -> None:
        super().__init__(message)
        self.params = params


class ModelError(EngineError):
    """The model cannot be loaded (exit code 3). params: path."""

    code = "model"


class ModelNotFoundError(ModelError):
    """Nothing is at the path. params: path."""

    code = "model_not_found"


class ModelDamagedError(ModelError):
    """A file is truncated, of another format or inconsistent. params: path."""

    code = "model_damaged"


class NotALanguageModelError(ModelError):
    """The folder or file holds something, but no causal language model. params: path."""

    code = "not_a_language_model"


class ModelNeedsMemoryError(ModelError):
    """The weights do not fit into memory. params: path."""

    code = "model_needs_memory"


class NoModelLoadedError(ModelError):
    """A reply was asked for before a model was loaded."""

    code = "no_model_loaded"


class ContextOverflowError(EngineError):
    """The prompt leaves no room for a reply. params: prompt_tokens, context_length."""

    code = "context_overflow"


class TemplateError(EngineError):
    """The model's chat template cannot render these messages. params: reason."""

    code = "template"


class OutOfMemoryError(EngineError):
    """Memory ran out while generating; the caches of other chats were freed and it did not help."""

    code = "out_of_memory"


class MemoryBudgetError(EngineError):
    """The chat does not fit into the memory that caches may take, not even encoded. params: needed_mb, budget_mb."""

    code = "memory_budget"


class GenerationError(EngineError):
    """The model produced something unusable (NaN logits, a device error). params: reason."""

    code = "generation"
