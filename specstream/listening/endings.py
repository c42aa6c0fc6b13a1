"""Is the speaker done, and does a word claim the turn? Small rules over a transcript's last words.

Silence alone is a poor sign: people pause to think after "I would like to, um", and don't pause longer
after a question. The rule sorts what was said so far into five kinds:

==============  =====================================================  ==============
kind            what was said so far                                   silence, × base
==============  =====================================================  ==============
``question``    ends with a question mark                              0.6
``sentence``    ends with a full stop or an exclamation mark           1.0
``open``        ends without a mark, or nothing was understood         1.6
``doubtful``    may be unfinished, by the recogniser's alternatives    3.2
``unfinished``  ends with "and", "the", "um", a comma, a dash or "…"    5.0
==============  =====================================================  ==============

A recogniser ends every text with a mark, so words weigh more than marks: "I'd like a." and "Could you
tell me?" are unfinished, "When I get home." and "My code is 4 7." are open. A preposition or auxiliary
before a question mark is not ("What are you looking for?"), nor is one after a pronoun ("Yes, I do").
There are words for English and German, which count in texts of their language only: "um" ends many a
German sentence, and "an" many a French one. Text of other languages is judged by its marks; text whose
language isn't known is taken for English.

A recogniser hears the sentence that it expects: "I am looking for it." for "I am looking for a". Where
it tells alternatives, their kinds count instead, and a transcript of little confidence is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from specstream.listening.interfaces import Transcript

__all__ = ["Ending", "claims_turn", "ending", "ending_of", "is_backchannel", "silence_factor"]

# A word of a text, or a character of a script that has no spaces.
_ANY_WORD = re.compile(r"[぀-ヿ㐀-鿿]|[^\W_]+(?:['’-][^\W_]+)*")
_BACKCHANNELS = frozenset(
    """mm mmm mhm mm-hm mm-hmm mmhm mmhmm hm hmm hmmm uh-huh uhuh huh uh um ah aha a-ha oh ooh right
    yeah yep yup okay ok sure ja genau ach so aja hm-hm""".split()
)
_MOST = 3  # words


def is_backchannel(text: str) -> bool:
    """Whether the words are such as a listener says: "Mm hmm.", "Right, right.", "Ja, genau."."""
    words = [word.lower() for word in _ANY_WORD.findall(text)]
    return 0 < len(words) <= _MOST and all(word in _BACKCHANNELS for word in words)


def claims_turn(text: str, *, again: bool) -> bool:
    """Whether words so far should interrupt a reply. ``again``: the transcript before was the same."""
    words = len(_ANY_WORD.findall(text))
    return words >= (1 if again else 2) and not is_backchannel(text)


_ANSWERS = frozenset(  # that are one whether or not a mark follows
    "yes yeah yep no nope ok okay sure exactly thanks stop ja nein doch danke genau stopp".split()
)

Ending = Literal["question", "sentence", "open", "doubtful", "unfinished"]
_FACTORS: dict[Ending, float] = {
    "question": 0.6,
    "sentence": 1.0,
    "open": 1.6,
    "doubtful": 3.2,
    "unfinished": 5.0,
}

_NEVER_LAST = frozenset(  # no turn ends with these, whatever mark follows
    """a an the and or but nor because if whether unless although though while whereas my your our
    their its every um uh uhm umm erm er hmm mm another several certain various""".split()
)
_SELDOM_LAST = frozenset(  # a turn ends with these only before a question mark
    """to of for with from into onto at as than about upon via per between during without toward towards
    like very which whose i'm you're we're they're i'd you'd we'd i'll you'll we'll i've we've""".split()
)
_AUXILIARIES = frozenset(
    """is are was were am be been has have had do does did will would shall should can could may might
    must""".split()
)
_SUBJECTS = frozenset("i you he she it we they that this there".split())
_ADVERBS = frozenset("already always just never really still".split())  # "I already did"
_REPLIES = frozenset("yes yeah yep no nope well sure oh okay ok so".split())
_BEGINNERS = frozenset("i he she we they".split())  # no turn ends with these but "so do I"
_STEM = re.compile(  # a whole text, or its last clause, that something must follow
    r"""(?:^|[.,!?;]\s|\b(?:and|but|so|well|um|uh|hello|hi|hey|okay|yes|no)\s)(?:please\s)?(?:
        (?:can|could|would|will)\syou\s(?:please\s|maybe\s|just\s)*
            (?:tell|give|show|remind|send|ask|let|bring|get|play|call|find|explain|read|make|set|put|turn)
            (?:\s(?:me|us|him|her|them))?
      | (?:can|could|may|should|shall)\s(?:i|we)(?:\s(?:have|get|ask|see|take))?
      | i(?:\s(?:was|am)|'m)\s(?:just\s)?(?:wondering|thinking|trying|calling|looking|hoping|going)
      | (?:could|would)\syou\splease
      | i(?:\s(?:really|just|also|actually))*\s
            (?:want|need|mean|think|guess|believe|wonder|have|said|heard)
      | (?:do|did)\syou\s(?:know|think|remember|have|want)
      | (?:what|how|where|when)\s(?:can|could|do|did|should|would)\s(?:i|we|you|they)
      | i\swanted\sto\s(?:ask(?:\syou)?|know|say)
      | (?:i\swould|i'd)\srather
      | (?:what|how)\sabout | what\s(?:if|kind(?:\sof)?) | there(?:\sis|'s)
      | let(?:'s|\sme(?:\s(?:see|think|check|look))?)
      | (?:when|if|because|although|while|unless|until|since|before|after)
      )$""",
    re.VERBOSE,
)
_TIED = re.compile(  # last words that something must follow, whatever comes before them
    r"""\b(?:
        (?:possible|able|way)\sto
      | (?:depends?|depending|based)\son
      | (?:calling|fact|idea|issue|point|problem|question|reason|thing|trouble)\s(?:is|was)\sthat
      | (?:hoping|thinking|wondering)(?:\s(?:if|that))?\s(?:i|we|you)\s(?:can|could|might|would)
      )$""",
    re.VERBOSE,
)
_EITHER = re.compile(  # an answer, or a beginning: "I'd love to", "That's what I'm looking for"
    r"""\b(?:glad|happy|love|used)\sto$
      | \b(?:what|where|which|who|whom)\s.*\b(?:about|at|for|from|like|with)$
      | \b(?:know|tell\s(?:me|us))\s(?:how|what|when|where|who|why)$
      | \b(?:got|have|need|want)\s(?:any|some)$""",
    re.VERBOSE,
)
_DICTATED = re.compile(  # what is told in groups, of which one may be the last
    r"\b(?:address|code|number|pin)(?: is| was)?(?: [\d-]+)+$"
)
_LONG = 7  # digits of a number that is told as a whole
_CLAUSE = re.compile(
    r"^(?:and |but |so |well,? |um,? )*(?:when|if|because|although|while|unless|until)\b"
)

# German: verbs come last, and many prepositions are parts of verbs ("Ruf mich an.", "Ich komme mit."),
# so neither auxiliaries nor most prepositions tell anything.
_NIE_ZULETZT = frozenset(
    """und oder aber sondern weil dass ob wenn falls obwohl sowie beziehungsweise zum zur im am vom beim
    ins ans eine einem mein meine meinem meiner dein deine deinem seine seinem unsere unserem euer eure
    jede jeden jedem äh ähm öh öhm hm""".split()
)
_SELTEN_ZULETZT = frozenset("für von wegen zwischen gegen ohne laut pro der dem den des einen".split())
_ANFANG = re.compile(  # a whole text, or its last clause, that something must follow
    r"""(?:^|[.,!?;]\s|\b(?:und|aber|also|ja|nein|hallo|bitte)\s)(?:
        (?:kannst\sdu|können\ssie|könntest\sdu|könnten\ssie)(?:\s(?:mir|uns|bitte|mal|vielleicht))*
      | (?:kann|darf|soll|sollen|können|dürfen)\s(?:ich|wir)(?:\sbitte)?
      | ich\s(?:möchte|wollte|würde|hätte|brauche|suche|glaube|denke)
            (?:\s(?:gern|gerne|nur|mal|auch|gerade))*
      | (?:weißt\sdu|wissen\ssie) | was\sist\smit | wie\swäre\ses\smit | was\sfür
      )$""",
    re.VERBOSE,
)
_NEBENSATZ = re.compile(
    r"^(?:und |aber |also,? |ähm,? )*(?:wenn|weil|obwohl|während|falls|sobald|bis|bevor|nachdem)\b"
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_BREAKS = ("...", "…", ",", "-", "–", "—", ":", ";")


def ending(text: str, language: str | None = None) -> Ending:
    """Return the kind of ending of what was said so far; see the module's table.

    ``language`` is that of the text, a code such as ``"de"`` or ``"en-us"``; None: unknown.
    """
    said = text.rstrip().rstrip("\"'”’)»")
    words = [word.lower().replace("’", "'") for word in _WORD.findall(said)]
    if not words:
        return "open"
    answer = len(words) == 1 and words[0] in _ANSWERS
    if said.endswith(_BREAKS):
        return "open" if answer else "unfinished"
    judge = _BY_WORDS.get((language or "en").lower().replace("_", "-").partition("-")[0])
    asks = said.endswith(("?", "？"))
    # A short number alone is an answer, for which recognisers write no mark; a long one may be a part.
    number = len(words) == 1 and words[0].isdecimal() and len(words[0]) <= 2
    closed = number or answer or said.endswith((".", "!", "。", "！"))
    plain = " ".join(said.lower().replace("’", "'").rstrip(".!?").split())
    by_marks: Ending = "question" if asks else "sentence" if closed else "open"
    return judge(words, plain, by_marks) if judge is not None else by_marks


def _english(words: list[str], plain: str, by_marks: Ending) -> Ending:
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _NEVER_LAST or _STEM.search(plain) or _TIED.search(plain):
        return "unfinished"
    asked = _EITHER.search(plain)
    if by_marks == "question":
        return "open" if asked and words[-1] not in _SELDOM_LAST else by_marks
    if asked:
        return "open"
    if last in _SELDOM_LAST:
        return "unfinished"
    closed = by_marks == "sentence"
    if before in _ADVERBS:
        before = words[-3] if len(words) > 2 else ""
    answers = before == "please" or (before in _SUBJECTS and (closed or _REPLIES.issuperset(words[:-2])))
    if last in _AUXILIARIES and not answers:
        return "unfinished"  # but "Yes, I do" is an answer
    if last in _BEGINNERS and before not in _AUXILIARIES:
        return "unfinished"
    subordinate = _CLAUSE.match(plain) is not None and "," not in plain
    dictated = _DICTATED.search(plain) and sum(map(str.isdigit, plain)) < _LONG
    return "open" if subordinate or dictated else by_marks


def _german(words: list[str], plain: str, by_marks: Ending) -> Ending:
    if words[-1] in _NIE_ZULETZT or _ANFANG.search(plain):
        return "unfinished"
    if by_marks == "question":
        return by_marks
    if words[-1] in _SELTEN_ZULETZT:
        return "unfinished"
    subordinate = _NEBENSATZ.match(plain) is not None and "," not in plain
    return "open" if subordinate else by_marks


_BY_WORDS: dict[str, Callable[[list[str], str, Ending], Ending]] = {"en": _english, "de": _german}
"""What words tell about a text, its words and its text without marks, in lower case; by language."""


_COMPLETE = 0.5  # probability of an end above which a voice sounds as if it were done
_BY_BOTH, _BY_ONE, _BY_NONE = 0.8, 1.75, 1.9


# Probabilities that an unfinished alternative is right, and that an unfinished or open one is.
_DOUBTFUL, _UNFINISHED, _UNCLEAR = 0.15, 0.5, 0.6
_SURE, _HEARD = 0.55, 0.45  # confidence from which a clause is unfinished, and a sentence one


def ending_of(said: Transcript, language: str | None = None) -> Ending:
    """Return the kind of ending of a transcript by its alternatives and confidence; see `ending`."""
    if not said.alternatives:
        return ending(said.text, language)
    shares = dict.fromkeys(_FACTORS, 0.0)
    for alternative in said.alternatives:
        shares[ending(alternative.text, language)] += alternative.probability
    confidence = 1.0 if said.confidence is None else said.confidence
    if shares["unfinished"] > _DOUBTFUL:
        sure = shares["unfinished"] > _UNFINISHED and confidence > _SURE
        return "unfinished" if sure else "doubtful"
    if shares["unfinished"] + shares["open"] > _UNCLEAR or confidence < _HEARD:
        return "open"
    return "question" if shares["question"] > shares["sentence"] else "sentence"


def silence_factor(said: Transcript, sound: float | None = None, language: str | None = None) -> float:
    """Return the factor on the silence that ends a turn after ``said``, which is in ``language``.

    ``sound`` is the probability that the turn is over, by its sound; None: unknown. With it, words that
    something must or may well follow wait as long as without; else it counts which of words and sound
    say that the speaker is done: both (0.8), one (1.75), or neither (1.9).
    """
    kind = ending_of(said, language)
    if sound is None or kind in ("doubtful", "unfinished"):
        return _FACTORS[kind]
    agree = (kind in ("question", "sentence")) + (sound > _COMPLETE)
    return (_BY_NONE, _BY_ONE, _BY_BOTH)[agree]
