"""A clause's action as a caption says it: "took a breath and counted" as "taking ... counting"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specstream_adapters.prompt.lexicon import AUXILIARIES, BE, SPEECH
from specstream_adapters.prompt.scene import Clause
from specstream_adapters.prompt.verbs import (
    Form,
    base_of,
    form_of,
    gerund,
    is_base,
    is_done,
    participle,
)
from specstream_adapters.prompt.words import is_adverb

__all__ = ["caption", "first_person", "present", "speaking", "trimmed"]

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_DANGLING = re.compile(
    r"(?:[\s,;:—–-]+(?:and|but|or|so|then|as|while|when|the|a|an|his|her|its|their|to|of|in|on"
    r"|at|with|by|for|from|into|that|who|which)?)+$"
)
_SHORT = {"'m": "am", "'re": "are", "'s": "is", "'ve": "have", "'ll": "will", "'d": "would"}
_CAN = frozenset("can could cannot can't couldn't".split())
_MODALS = _CAN | frozenset("will would may might must shall should won't wouldn't".split())
_JOINED = re.compile(
    r"(?P<join>(?:,|\band|\bthen|\bor)\s+(?:then\s+|\w+ly\s+)?)(?P<verb>[a-z]+)\b"
    r"(?=\s*$|\s*[,.;!?]|\s+(?P<after>[\w']+))"
)
_FOLLOWS = frozenset(
    "a an the his her its their my your to in on at into onto up down out off over under away back"
    " with for from by of not it him them until through around toward towards across along after"
    " behind beside against like as no red".split()
)


def trimmed(action: str, complete: bool = True) -> str:
    """Without loose punctuation; if the sentence goes on, also without a last "and" or "with the"."""
    return (action if complete else _DANGLING.sub("", action)).strip(" ,;:—–-.")


def first_person(clause: Clause) -> bool:
    """Whether the speaker acts ("I found ...") or is to act ("Slice ...")."""
    return clause.subject is None or clause.subject.head in ("i", "we")


def speaking(verb: str) -> str:
    """What somebody is seen doing who says something: "said" looks like "speaking"."""
    if verb in ("cry", "call", "shout", "yell"):
        return f"{participle(verb)} out"
    return participle(verb) if verb in SPEECH - {"say", "tell", "add", "continue"} else "speaking"


def caption(clause: Clause, action: str) -> str:
    """``action`` in the present participle; what is the speaker's own is "their"."""
    first, _, rest = action.partition(" ")
    first = _SHORT.get(first.replace("’", "'"), first)
    shown = present(f"{first} {rest}".strip())
    return re.sub(r"\b(?:my|our|your)\b", "their", shown) if first_person(clause) else shown


@dataclass(slots=True)
class _Group:
    """A verb group in front of a verb phrase: "had not really been" before "watching"."""

    adverbs: list[str]
    negative: bool = False
    can: bool = False
    be: str = ""
    helped: bool = False
    end: int = 0  # index of the word after the group


def present(action: str) -> str:
    """A verb phrase with its verbs as participles.

    The verb group becomes one participle ("had been watching" to "watching", "did not know" to "not
    knowing", "could not see" to "unable to see"); a form of "be" before anything else is dropped
    ("was wet" to "wet"). Other words stay as they are; text that doesn't begin with a verb comes
    back unchanged.
    """
    words = list(_WORD.finditer(action))
    group = _read_group(words)
    if group.end == len(words):
        return action
    verb, rest = words[group.end][0].lower(), action[words[group.end].end() :]
    lead = " ".join([*group.adverbs, *(["not"] if group.negative and not group.can else [])])
    lead = f"{lead} " if lead else ""
    if group.be:  # "was painting" and "was painted" both stay, and so does "was wet"
        tense: Form = "s" if group.be in ("is", "are", "am") else "past"
        return lead + action[words[group.end].start() : words[group.end].end()] + _join(rest, tense)
    form = form_of(verb)
    if form is None and not (group.helped or is_done(verb) or verb.endswith("s")):
        return action if verb not in AUXILIARIES else lead + participle(verb) + _join(rest, "past")
    if group.negative and group.can:
        return f"{lead}unable to {base_of(verb)}{_join(rest, form)}"
    return lead + participle(verb) + _join(rest, form or ("s" if verb.endswith("s") else None))


def _read_group(words: list[re.Match[str]]) -> _Group:
    group = _Group([])
    lows = [m[0].lower().replace("’", "'") for m in words]
    for at, low in enumerate(lows):
        helps = low in AUXILIARIES and _helps(lows, at)
        if not helps and not (is_adverb(low) and form_of(low) is None):
            break
        group.end = at + 1
        if helps:
            group.helped = True
            group.negative |= low.endswith("n't") or low == "cannot"
            group.can |= low in _CAN
            group.be = (
                low if low in BE and low != "been" else group.be or ("been" * (low == "been"))
            )
        elif low == "not":
            group.negative = True
        else:
            group.adverbs.append(words[at][0])
    if group.be and group.end == len(words) and group.adverbs:  # "was there": nothing but adverbs
        group.end -= 1
        group.adverbs.pop()
    return group


def _helps(lows: list[str], at: int) -> bool:
    """Whether an auxiliary helps another verb ("had gone", "had to go"), not "had a dog"."""
    low = lows[at]
    if at + 1 == len(lows):
        return False
    if low in BE or low in _MODALS or low.endswith("n't"):
        return True
    after = next((w for w in lows[at + 1 :] if not is_adverb(w)), "")
    return after in AUXILIARIES or is_done(after) or form_of(after) is not None


def _join(rest: str, form: Form | None) -> str:
    """Carry the change on to verbs of the same form behind "and", "then" or a comma."""
    rest = re.sub(r"\b(?:did|does) not (\w+)", lambda m: f"not {participle(m[1])}", rest)
    if form not in ("past", "s", "base"):
        return rest

    def change(found: re.Match[str]) -> str:
        verb, after = found["verb"], found["after"]
        if verb in AUXILIARIES or (after and not (after in _FOLLOWS or is_adverb(after))):
            return found[0]
        if form == "base":
            return found["join"] + gerund(verb) if is_base(verb) else found[0]
        return found["join"] + participle(verb) if form_of(verb) == form else found[0]

    return _JOINED.sub(change, rest)
