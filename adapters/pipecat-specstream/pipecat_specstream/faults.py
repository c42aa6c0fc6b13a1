"""What Pipecat calls the kinds of specstream's errors."""

from __future__ import annotations

from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.utils.errors import ErrorCategory
from specstream.errors import (
    AdapterUnavailable,
    ConfigError,
    ConnectionFailed,
    ConsumerStalled,
    EngineBusy,
    ModelError,
    RequestError,
    SpecstreamError,
)

__all__ = ["category_of"]

_CATEGORIES: tuple[tuple[type[Exception], ErrorCategory], ...] = (
    # Only what the application has put into the context is wrong: the service stays usable.
    (RequestError, ErrorCategory.APPLICATION),
    (LLMContextConversionError, ErrorCategory.APPLICATION),
    # It fails in the same way each time: Pipecat stops giving the service work.
    (ConfigError, ErrorCategory.INVALID_REQUEST),
    (ModelError, ErrorCategory.INVALID_REQUEST),
    (AdapterUnavailable, ErrorCategory.INVALID_REQUEST),
    (EngineBusy, ErrorCategory.RATE_LIMIT),
    (ConsumerStalled, ErrorCategory.RATE_LIMIT),
    (ConnectionFailed, ErrorCategory.CONNECTIVITY),
    (SpecstreamError, ErrorCategory.SERVER),
)


def category_of(error: Exception) -> ErrorCategory:
    """The category of an error for an `ErrorFrame`; ``UNKNOWN`` for one that nobody expected."""
    for kind, category in _CATEGORIES:
        if isinstance(error, kind):
            return category
    return ErrorCategory.UNKNOWN
