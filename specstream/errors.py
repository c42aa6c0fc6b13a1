"""Everything that specstream raises on purpose, as one tree.

::

    SpecstreamError
    ├── ConfigError              a bad option, config key or combination
    ├── RequestError             this request can't be served as asked
    │   ├── PromptError          empty prompt, or one that the model's template refuses
    │   │   └── PromptTooLong    longer than the model's context
    │   └── SamplingError        a sampling parameter out of range or not supported
    ├── ModelError
    │   ├── ModelNotFound        no such folder or hub id, or the hub can't be reached
    │   ├── ModelBroken          files are there but can't be read as a model
    │   ├── ModelUnsupported     no decoder, or one whose cache can't be rolled back
    │   └── VocabularyMismatch   draft and target don't share one tokenizer
    ├── EngineError
    │   ├── EngineClosed         the engine is not running (any more)
    │   ├── EngineBusy           the waiting line is full
    │   ├── ConsumerStalled      nobody read this reply while others waited for its place
    │   ├── ProposalError        a proposal that can't be verified; the request goes on without it
    │   └── EngineFailed         the engine thread met an unexpected exception
    ├── AdapterError
    │   ├── AdapterUnavailable   unknown adapter, or a library it needs is missing
    │   └── AdapterFailed        the adapter broke while it worked
    ├── WireError
    │   ├── ProtocolError        a malformed frame, or one out of order
    │   ├── ConnectionFailed     nobody answers, or the peer went away
    │   └── PortUnavailable      the address can't be listened on
    ├── TrainingError            a training that can't go on, or was stopped
    │   └── TrainingStopped      the user stopped it; the same command goes on
    └── OutputError              a result can't be written (disk full, no permission)
        └── JournalFailed        a session can't be written down, or not be read again
            └── JournalTaken     another process serves the session now

Each message says what is wrong and, where there is one, what to do about it. ``code`` is the stable
name that goes over the wire; ``exit_code`` is what the command line exits with (2 is bad usage).
Foreign exceptions are translated at the boundary where they appear and kept as ``__cause__``.
"""

__all__ = [
    "AdapterError",
    "AdapterFailed",
    "AdapterUnavailable",
    "ConfigError",
    "ConnectionFailed",
    "ConsumerStalled",
    "EngineBusy",
    "EngineClosed",
    "EngineError",
    "EngineFailed",
    "JournalFailed",
    "JournalTaken",
    "ModelBroken",
    "ModelError",
    "ModelNotFound",
    "ModelUnsupported",
    "OutputError",
    "PortUnavailable",
    "PromptError",
    "PromptTooLong",
    "ProposalError",
    "ProtocolError",
    "RequestError",
    "SamplingError",
    "SpecstreamError",
    "TrainingError",
    "TrainingStopped",
    "VocabularyMismatch",
    "WireError",
]


class SpecstreamError(Exception):
    """The root: catch this to catch everything that specstream raises on purpose."""

    code = "error"
    exit_code = 1


class ConfigError(SpecstreamError):
    """A bad option, an unknown config key, or options that don't go together."""

    code = "bad_config"
    exit_code = 2


class RequestError(SpecstreamError):
    """A request that can't be served as asked; others are not affected."""

    code = "bad_request"
    exit_code = 2


class PromptError(RequestError):
    """The prompt is empty, or leaves no room in the model's context."""

    code = "bad_prompt"


class PromptTooLong(PromptError):
    """The prompt leaves no room for a reply in the model's context."""

    code = "prompt_too_long"


class SamplingError(RequestError):
    """A sampling parameter is out of range or can't be honoured."""

    code = "bad_sampling"


class ModelError(SpecstreamError):
    """A model can't be found, read or used."""

    code = "model_error"


class ModelNotFound(ModelError):
    """No such folder or hub id, or the hub can't be reached."""

    code = "model_not_found"


class ModelBroken(ModelError):
    """The files are there but can't be read as a causal language model."""

    code = "model_broken"


class ModelUnsupported(ModelError):
    """No decoder, or one whose cache can't be rolled back, so that drafts can't be verified."""

    code = "model_unsupported"


class VocabularyMismatch(ModelError):
    """Draft and target don't share one tokenizer, so token ids can't be compared."""

    code = "vocabulary_mismatch"


class EngineError(SpecstreamError):
    """The engine can't serve a request now, or failed while it did."""

    code = "engine_error"


class EngineClosed(EngineError):
    """The engine was not started, or has been closed."""

    code = "engine_closed"


class EngineBusy(EngineError):
    """Too many requests wait already; try again after ``retry_s`` seconds."""

    code = "engine_busy"

    def __init__(self, message: str = "", retry_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class ConsumerStalled(EngineError):
    """Nobody read this reply for too long while others waited; its earlier chunks can still be read."""

    code = "consumer_stalled"


class ProposalError(EngineError):
    """A proposal that can't be verified. The request goes on without the proposer's help."""

    code = "bad_proposal"


class EngineFailed(EngineError):
    """The engine thread met an unexpected exception (kept as ``__cause__``)."""

    code = "engine_failed"


class AdapterError(SpecstreamError):
    """A voice, avatar or prompt adapter is missing or failed."""

    code = "adapter_error"


class AdapterUnavailable(AdapterError):
    """No adapter of that name, or a library that it needs is missing."""

    code = "adapter_unavailable"


class AdapterFailed(AdapterError):
    """An adapter broke while it worked; the text and the other branches go on."""

    code = "adapter_failed"


class WireError(SpecstreamError):
    """A connection can't be made, broke, or its peer violated the protocol."""

    code = "wire_error"


class ProtocolError(WireError):
    """A malformed frame, or one that may not follow what came before."""

    code = "protocol_error"


class ConnectionFailed(WireError):
    """Nobody answers at the address, or the peer went away mid-stream."""

    code = "connection_failed"


class PortUnavailable(WireError):
    """The address can't be listened on (taken, or not permitted)."""

    code = "port_unavailable"


class TrainingError(SpecstreamError):
    """A training can't go on."""

    code = "training_failed"


class TrainingStopped(TrainingError):
    """A training was stopped on purpose; its progress is saved, and the same options continue it."""

    code = "training_stopped"
    exit_code = 130


class OutputError(SpecstreamError):
    """A result can't be written: disk full, no permission, not a folder."""

    code = "output_error"


class JournalFailed(OutputError):
    """A session can't be written down, or what was written can't be read again."""

    code = "journal_failed"


class JournalTaken(JournalFailed):
    """Another process has taken the session over: this one may write no more of it."""

    code = "journal_taken"
