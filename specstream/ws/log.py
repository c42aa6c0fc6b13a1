"""The log of all connections, without keys."""

from __future__ import annotations

import logging
import re

__all__ = ["LOG", "hide_keys", "shown"]

_SECRETS = (
    (re.compile(r"(?im)^(.*\b(?:authorization|cookie)\b['\"]?\s*[:=]\s*).*$"), r"\1…"),
    (re.compile(r"(?i)(\b(?:bearer|basic) )\S+"), r"\1…"),
    (re.compile(r"(invalid HTTP [a-z ]+: ).*"), r"\1…"),  # an error that quotes what it can't read
    (re.compile(r"(?i)(api-key\.)[^\s,;'\"]+"), r"\1…"),  # as a subprotocol
    (re.compile(r"(\b(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) [^\s?]*\?)\S*"), r"\1…"),
    (re.compile(r"(?i)(\btoken=)[^\s&#'\"]+"), r"\1…"),
)


def hide_keys(text: str) -> str:
    """``text`` with the keys that HTTP and this protocol carry replaced."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def shown(url: str) -> str:
    """An address without its query, which may hold a key."""
    return url.partition("?")[0]


class _WithoutKeys(logging.Filter):
    """The websocket library logs request lines, all headers, and errors that quote them."""

    _format = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = hide_keys(record.getMessage()), ()
        if record.exc_info and not isinstance(record.exc_info, bool):
            record.exc_text = hide_keys(self._format.formatException(record.exc_info))
            record.exc_info = None
        return True


LOG = logging.getLogger("specstream.ws")
LOG.addHandler(logging.NullHandler())  # a refused handshake is for the log, not for the terminal
LOG.addFilter(_WithoutKeys())
