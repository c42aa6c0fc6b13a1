"""Log lines of a server as JSON, with the ids of their session and request."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

__all__ = ["JsonLines", "labelled", "log_json"]

_labels: ContextVar[dict[str, object]] = ContextVar("specstream_log_labels")


@contextmanager
def labelled(**labels: object) -> Generator[None, None, None]:
    """Give labels to the lines that the block and the tasks that it starts write."""
    token = _labels.set({**_labels.get({}), **labels})
    try:
        yield
    finally:
        _labels.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, labels, and the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_labels.get({}),
        }
        if traceback := record.exc_text or (record.exc_info and self.formatException(record.exc_info)):
            told["traceback"] = traceback
        return json.dumps(told, ensure_ascii=False, default=str)


def log_json(stream: TextIO) -> None:
    """Write what the server logs, from ``info`` on, to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(_own)
    log = logging.getLogger("specstream")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _own(record: logging.LogRecord) -> bool:
    """Whether a line isn't one of the libraries', which tell of each connection, too."""
    return not {"uvicorn", "websockets"} & set(Path(record.pathname).parts)
