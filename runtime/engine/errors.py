"""What can go wrong in the engine.

EngineError
├── ModelError
│   ├── ModelSourceInvalid   what was given is no form of model source
│   ├── ModelNotFound        no such alias, folder, repository or file
│   ├── ModelUnreadable      found, but damaged or of a kind that is not supported
│   ├── ModelFetchFailed     a download failed; may work later
│   └── ChecksumMismatch     what arrived or lies on disk is not what was promised
├── StateError               a KV state that cannot be kept, lent or restored
│   ├── UnknownCache         a cache class without a signature
│   └── StateMismatch        a stored state that this model's caches cannot hold
├── SchemeRefused            the KV scheme that was configured is not possible with this model or device
├── LaneStepFailed           a step of a lane raised; says in which phase and for which rows
├── TemplateError            the chat template refused the messages
├── ConstraintError          a constraint on the reply that cannot be compiled
├── ConstraintFailed         a constraint that a reply cannot go on under
└── PromptError              a prompt the model cannot take
    └── PromptTooLong        it cannot fit the model's context, however it is encoded
"""


class EngineError(Exception):
    """Base of the engine's errors. ``code`` is stable, ``retryable`` says whether trying again may help."""

    code = "engine_error"
    retryable = False


class ModelError(EngineError):
    """A model could not be made ready."""

    code = "model_error"


class ModelSourceInvalid(ModelError):
    """The text is no form of model source."""

    code = "model_source_invalid"


class ModelNotFound(ModelError):
    """No such alias, folder, repository or file."""

    code = "model_not_found"


class ModelUnreadable(ModelError):
    """The model is there but damaged, or of a kind that is not supported."""

    code = "model_unreadable"


class ModelFetchFailed(ModelError):
    """A download failed; a later try may succeed."""

    code = "model_fetch_failed"
    retryable = True


class ChecksumMismatch(ModelError):
    """A file's SHA-256 is not the one that was pinned or recorded."""

    code = "checksum_mismatch"


class StateError(EngineError):
    """A KV state cannot be kept, lent or restored."""

    code = "state_error"


class UnknownCache(StateError):
    """A cache class that declares no signature: an error at once, never a silent route."""

    code = "unknown_cache"


class StateMismatch(StateError):
    """A stored state does not fit the caches of the model at hand."""

    code = "state_mismatch"


class SchemeRefused(EngineError):
    """The configured KV scheme cannot be had: a matter of configuration, found at the start, never later."""

    code = "kv_scheme_refused"
    usage = True


class LaneStepFailed(EngineError):
    """A step of a lane raised; the cause is chained. ``rows`` are those it was working on: the suspects."""

    code = "lane_step_failed"

    def __init__(self, phase: str, rows: frozenset[str], cause: BaseException) -> None:
        super().__init__(f"{phase} failed: {type(cause).__name__}: {cause}")
        self.phase = phase
        self.rows = rows


class TemplateError(EngineError):
    """The model's chat template refused the messages."""

    code = "template_error"


class ConstraintError(EngineError):
    """A schema, regular expression or grammar that cannot be used. ``param`` is the request's field."""

    code = "invalid_constraint"

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class ConstraintFailed(EngineError):
    """A reply cannot go on under its constraint: a limit was hit, or it left the grammar. For the client."""

    code = "constraint_failed"


class PromptError(EngineError):
    """The model cannot take this prompt."""

    code = "prompt_error"


class PromptTooLong(PromptError):
    """A prompt has too many bytes for the model's context. It was not encoded."""

    code = "context_length_exceeded"
