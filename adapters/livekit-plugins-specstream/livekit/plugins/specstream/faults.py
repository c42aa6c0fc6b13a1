"""Errors of specstream as those that LiveKit Agents knows, which say whether another try may help."""

from livekit.agents import APIConnectionError, APIError, APIStatusError
from specstream.errors import (
    AdapterFailed,
    ConfigError,
    ConnectionFailed,
    EngineBusy,
    EngineClosed,
    EngineFailed,
    PromptTooLong,
    RequestError,
    SpecstreamError,
    WireError,
)

__all__ = ["api_error"]

_STATUS: tuple[tuple[type[SpecstreamError], int], ...] = (  # the first that fits
    (PromptTooLong, 413),
    (RequestError, 400),
    (ConfigError, 400),
    (EngineBusy, 429),
)
_PASSING = (ConnectionFailed, EngineBusy, EngineFailed, AdapterFailed)


def api_error(error: SpecstreamError, *, begun: bool) -> APIError:
    """Return the error to raise ``from error``.

    Args:
        error: What a part of specstream raised.
        begun: Whether output was given already. Another try would then repeat it, so none is allowed.
    """
    retryable = isinstance(error, _PASSING) and not begun
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return APIStatusError(
                str(error), status_code=status, body={"code": error.code}, retryable=retryable
            )
    if isinstance(error, WireError | EngineClosed):
        return APIConnectionError(str(error), retryable=retryable)
    return APIStatusError(str(error), status_code=500, body={"code": error.code}, retryable=retryable)
