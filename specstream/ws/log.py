"""The log of all connections, without keys."""

from __future__ import annotations

import logging
import re

__all__ = ["LOG", "hide_keys", "shown"]

_SECRETS = (
    (re.compile(r"(?im)^(.*\b(?:authorization|cookie)\b['\"]?\s*[:=]\s*).*$"), r"\1…"),
    (re.compile(r"(?i)(\b(?:bearer|basic) )\S+"), r"\1…"),
    (re.compile(r"(invalid HTTP [a-z ]+: ).*"), r"\1…"),  # quotes the line that can't be parsed
    (re.compile(r"(?i)(api-key\.)[^\s,;'\"]+"), r"\1…"),  # a key sent as a subprotocol
    (re.compile(r"(\b(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) [^\s?]*\?)\S*"), r"\1…"),
    (re.compile(r"(?i)(\btoken=)[^\s&#'\"]+"), r"\1…"),
)


def hide_keys(text: str) -> str:
    """Return ``text`` with every key that HTTP or the protocol can carry replaced by an ellipsis."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def shown(url: str) -> str:
    """Return an address without its query, which may hold a key."""
    return url.partition("?")[0]


class _WithoutKeys(logging.Filter):
    """Hides keys: the websockets library logs request lines, headers, and errors that quote them."""

    _format = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = hide_keys(record.getMessage()), ()
        if record.exc_info and not isinstance(record.exc_info, bool):
            record.exc_text = hide_keys(self._format.formatException(record.exc_info))
            record.exc_info = None
        return True


LOG = logging.getLogger("specstream.ws")
LOG.addHandler(logging.NullHandler())  # else refused handshakes are printed to stderr
LOG.addFilter(_WithoutKeys())
