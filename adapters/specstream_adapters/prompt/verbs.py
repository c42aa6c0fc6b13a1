"""Verb forms: which one a word is, and how to make others ("stood" to "standing")."""

from __future__ import annotations

import re
from typing import Literal

from specstream_adapters.prompt.lexicon import VERBS

__all__ = ["Form", "base_of", "form_of", "gerund", "is_base", "is_done", "participle"]

Form = Literal["past", "s", "ing", "base"]

_IRREGULAR = """
arise arose arisen; awake awoke awoken; bear bore borne; beat beat beaten; become became become;
begin began begun; bend bent bent; bind bound bound; bite bit bitten; bleed bled bled;
blow blew blown; break broke broken; bring brought brought; build built built; burn burnt burnt;
burst burst burst; buy bought bought; catch caught caught; choose chose chosen; come came come;
creep crept crept; cut cut cut; dig dug dug; dive dove dived; do did done; draw drew drawn;
dream dreamt dreamt; drink drank drunk; drive drove driven; eat ate eaten; fall fell fallen;
feed fed fed; feel felt felt; fight fought fought; find found found; flee fled fled;
fling flung flung; fly flew flown; forget forgot forgotten; forgive forgave forgiven;
freeze froze frozen; get got got; give gave given; go went gone; grind ground ground;
grow grew grown; hang hung hung; have had had; hear heard heard; hide hid hidden; hit hit hit;
hold held held; hurt hurt hurt; keep kept kept; kneel knelt knelt; know knew known; lay laid laid;
lead led led; lean leant leant; leap leapt leapt; learn learnt learnt; leave left left;
lend lent lent; let let let; lie lay lain; light lit lit; lose lost lost; make made made;
mean meant meant; meet met met; pay paid paid; put put put; quit quit quit; read read read;
ride rode ridden; ring rang rung; rise rose risen; run ran run; say said said; see saw seen;
seek sought sought; sell sold sold; send sent sent; set set set; sew sewed sewn;
shake shook shaken; shed shed shed; shine shone shone; shoot shot shot; show showed shown;
shrink shrank shrunk; shut shut shut; sing sang sung; sink sank sunk; sit sat sat;
sleep slept slept; slide slid slid; speak spoke spoken; spend spent spent; spill spilt spilt;
spin spun spun; split split split; spread spread spread; spring sprang sprung; stand stood stood;
steal stole stolen; stick stuck stuck; sting stung stung; stride strode stridden;
strike struck struck; swear swore sworn; sweep swept swept; swell swelled swollen;
swim swam swum; swing swung swung; take took taken; teach taught taught; tear tore torn;
tell told told; think thought thought; throw threw thrown; understand understood understood;
wake woke woken; wear wore worn; weave wove woven; weep wept wept; win won won; wind wound wound;
write wrote written
"""
_PAST: dict[str, str] = {}
_DONE: dict[str, str] = {}
for _row in _IRREGULAR.split(";"):
    _base, _past, _done = _row.split()
    _PAST.setdefault(_past, _base)
    _DONE.setdefault(_done, _base)
_BASES = VERBS | set(_PAST.values())
_NOT_VERBS = frozenset(
    "red bed shed need seed feed speed weed hundred sacred naked wicked crooked ragged thing king"
    " ring wing string spring morning evening ceiling building nothing something anything everything"
    " during wedding feeling clothing this his its was is has does yes us as bus gas always perhaps"
    " across less dress glass grass class cross boss kiss moss loss pass mess address news series"
    " species towards besides sometimes upstairs downstairs outdoors indoors inside outside close"
    " embed unless darling pudding lightning".split()
)
_SHORT_IE = frozenset(("died", "lied", "tied"))
_DOUBLED_AT_THE_END = frozenset("begin forget regret admit refer prefer occur permit upset".split())


def _third_person_base(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if re.search(r"(ch|sh|ss|x|zz|o)es$", word):
        return word[:-2]
    return word[:-1]


def form_of(word: str) -> Form | None:
    """Which verb form ``word`` (lower case) may be, by lexicon and ending; None if none."""
    if word in _PAST:
        return "past"
    if word in _BASES:
        return "base"
    if word in _NOT_VERBS or len(word) < 4:
        return None
    if word.endswith("ed"):
        return "past"
    if word.endswith("ing"):
        return "ing"
    if word.endswith("s") and not word.endswith("ss") and _third_person_base(word) in _BASES:
        return "s"
    return None


def is_done(word: str) -> bool:
    """Whether ``word`` is an irregular past participle ("gone")."""
    return word in _DONE


def is_base(word: str) -> bool:
    """Whether ``word`` is a listed dictionary form; "lay" is that and a past form too."""
    return word in _BASES


def base_of(word: str) -> str:
    """The dictionary form, exact for listed verbs and a good guess for regular others."""
    if word in _PAST or word in _DONE:
        return _PAST.get(word) or _DONE[word]
    if word in _SHORT_IE:
        return word[:-1]
    if word in _BASES:
        return word
    stem = word
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            stem = word.removesuffix(ending)
            break
    else:
        return _third_person_base(word) if word.endswith("s") else word
    if stem.endswith("i"):
        stem = stem[:-1] + "y"
    single = stem[:-1] if stem[-1:] == stem[-2:-1] else stem
    options = [stem + "e", single] if _doubles(stem) else [stem, stem + "e", single]
    return next((option for option in options if option in _BASES), stem)


def participle(word: str) -> str:
    """The -ing form of a verb in any form: "stood", "stands" and "stand" give "standing"."""
    form = form_of(word)
    if form == "ing":
        return word
    if form == "past" and word not in _PAST and word.endswith("ed"):
        return _from_regular_past(word)
    return gerund(base_of(word))


def gerund(base: str) -> str:
    """The -ing form of a dictionary form."""
    if base == "be":
        return "being"
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and not base.endswith(("ee", "oe", "ye")):
        return base[:-1] + "ing"
    if _doubles(base):
        return base + base[-1] + "ing"
    return base + "ing"


def _from_regular_past(word: str) -> str:
    if word in _SHORT_IE:
        return word[0] + "ying"
    if word.endswith("ied"):
        return word[:-3] + "ying"
    if word.endswith("eed"):
        return word[:-1] + "ing"
    return word[:-2] + "ing"


def _doubles(base: str) -> bool:
    one_syllable = re.fullmatch(r"(qu|[^aeiou])*[aeiouy][^aeiouwxy]", base)
    return one_syllable is not None or base in _DOUBLED_AT_THE_END
