"""Where to cut when no boundary came in time: the best break in a window that has none."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from specstream.pipeline.abbreviations import Stop, stop_after
from specstream.pipeline.text_marks import CLOSERS, WIDE_CLAUSE_MARKS, Verdict
from specstream.pipeline.text_stops import STOPS, word_before

__all__ = ["Whole", "has_words", "length_break", "quiet_break"]
