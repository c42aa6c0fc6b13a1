"""Judge whether a model's prompt for a shot can be used: it shows enough and contradicts nothing.

English words are looked up (see `specstream_adapters.prompt.visible`); a prompt in another language is
judged by its form alone.
"""

from __future__ import annotations

import re

from specstream.types import ScenePrompt
from specstream_adapters.prompt.visible import (
    gender,
    is_someone,
    is_something,
    kind,
    language_of,
    stem,
)

__all__ = ["fault"]

_WORD = re.compile(r"[^\W\d_]+")
_ANYBODY = frozenset(
    "man woman person people figure child girl boy lady gentleman someone somebody viewer hero "
    "heroine character protagonist silhouette crowd couple pair group subject adult kid youth "
    "elder stranger animal creature beast cub pup fur paw tail".split()
)
_CRAFT = frozenset(
    "shot camera view frame scene close wide medium low high angle light lens film still focus "
    "style colour color cinematic photo photograph image picture video footage background "
    "foreground model master director extra".split()
)
_OPPOSITES = (
    ({"night", "midnight", "moonlit", "moonlight", "starlight"},
     {"noon", "midday", "sunny", "sunlit", "sunlight", "daylight", "sunshine"}),
    ({"summer"}, {"winter"}),
    ({"snow", "snowy", "snowing", "frozen"}, {"desert", "tropical"}),
)  # fmt: skip


def fault(prompt: str, shot: ScenePrompt, story: str = "", *, max_chars: int) -> str:
    """Return what is wrong with ``prompt`` as a new prompt for ``shot``; "" if nothing is.

    It must be one line of at least five words and at most ``max_chars`` characters, without markup
    or quoted speech. It must show somebody if the shot does, otherwise something that the shot or the
    story mentions; and an action, a thing or a place. It must not bring in people or animals that
    neither the shot nor ``story`` (the text so far) has, nor turn a man into a woman or night into day.
    It may use other words than the text.
    """
    if why := _form(prompt, max_chars):
        return why
    told = f"{shot.action} {shot.subject}"
    if language_of(prompt) != "en" or language_of(told) not in ("en", ""):
        return ""
    written = set(_WORD.findall(prompt))
    words = {stem(word.lower()) for word in written}
    known = {stem(word.lower()) for word in _WORD.findall(f"{told} {shot.setting} {story}")}
    names = {word for word in _WORD.findall(told) if word[0].isupper()}
    people = {word for word in _WORD.findall(told) if is_someone(word)}
    somebody = names & written or any(is_someone(word) or word in _ANYBODY for word in words)
    seen = {word for word in words - _CRAFT if is_something(word)}
    if people and not somebody:
        return "the answer shows nobody"
    if not people and not seen & known:
        return "the answer is about something else"
    if not seen:
        return "the answer has no action, thing or place"
    common = {stem(word) for word in re.findall(r"\b[a-z]+\b", prompt)}
    new = sorted(word for word in common - known - _ANYBODY - _CRAFT if is_someone(word))
    # One noun may say who somebody without a name is, or stand for the text's own.
    spare = not people or not (people | names) & written
    if "animal" in map(kind, new) or len(new) > spare:
        return f"the answer brings in somebody: {', '.join(new)}"
    was, now = gender(told), gender(prompt)
    if was and now and not was & now:
        return "the answer changes a man into a woman or a woman into a man"
    for here, there in (*_OPPOSITES, *(pair[::-1] for pair in _OPPOSITES)):
        if known & here and not known & there and words & there:
            return f"the answer contradicts the text: {sorted(words & there)[0]}"
    return ""


def _form(prompt: str, max_chars: int) -> str:
    if not prompt:
        return "the answer is empty"
    if "\n" in prompt or "\r" in prompt:
        return "the answer has more than one line"
    spaceless = len(re.findall(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", prompt))
    if len(prompt.split()) + spaceless < 5 or len(prompt) > max_chars:
        return f"the answer has {len(prompt)} characters"
    if re.search(r"[\[\]{}<>|]|https?:", prompt):
        return "the answer holds markup"
    if re.search(r"[\"“”„«»]", prompt):
        return "the answer quotes speech"
    return ""
