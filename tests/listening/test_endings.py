"""The rule that says whether a speaker is done, on what recognisers write."""

import pytest

from specstream.listening.endings import Ending, ending, ending_of, silence_factor
from specstream.listening.interfaces import Alternative, Transcript

SAID: dict[Ending, list[str]] = {
    "question": [
        "What is the capital of France?",
        "What are you looking for?",
        "When is it?",
        "What do you think?",
        "What can I do?",
        "Where are you?",
        "Do you want me to?",
        "Can you help me?",
        "Who is he?",
        '"Is it?"',
        "东京在哪里？",
    ],
    "sentence": [
        "Turn off the lights.",
        "Stop!",
        "Yes, I do.",
        "Yes, please do.",
        "I already did.",
        "Come in.",
        "Let me think about it.",
        "I would rather stay.",
        "Turn it on.",
        "My number is 555 12 34.",
        "The address is 24 Park Street.",
        "Yes, please.",
        "I think so.",
        "Ich komme morgen.",
        "Tell me more.",
        "So do I.",
        "I need two tickets.",
        "2",
        "15",
        "Okay",
    ],
    "open": [
        "",
        "turn off the lights",
        "No,",
        "Do you have any?",
        "which gate does it leave from",
        "  ",
        "?!",
        "I do",
        "Yes, I am",
        "I'd love to.",
        "I was happy to",
        "Do you know when?",
        "That's what I am looking for.",
        "My phone number is 5 5 5.",
        "The code is 47.",
        "555",
        "2 4",
        "When I get home.",
        "Because I like it.",
    ],
    "unfinished": [
        "I would like to, um...",
        "I would like to um",
        "Turn off the lights in the kitchen and",
        "Turn off the lights in the kitchen and.",
        "I'd like a.",
        "What is the?",
        "Well,",
        "I was thinking –",
        "I want to.",
        "I would like to.",
        "Can you tell me the.",
        "Do you know whether?",
        "Tell me about.",
        "How can I?",
        "Hello, where do I?",
        "Is it possible to?",
        "It depends on.",
        "The thing is that.",
        "I was hoping that you could.",
        "I wanted to ask.",
        "Let me think.",
        "I'd rather.",
        "What I have",
        "Because",
        "I don’t know what you’re.",
        "Could you please tell me which train is.",
        "Could you tell me?",
        "Hello, can I have?",
        "I was wondering.",
        "Well, I think.",
        "Do you know?",
        "Last summer we.",
        "What kind of?",
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(k, t) for k, texts in SAID.items() for t in texts])
def test_each_kind(kind: Ending, text: str) -> None:
    assert ending(text) == kind


def test_a_question_is_answered_sooner_and_a_clause_waited_for() -> None:
    factors = [silence_factor(Transcript(t)) for t in ("Is it?", "It is.", "it does it", "it does and")]
    assert factors == sorted(set(factors))
    assert factors[1] == 1.0


@pytest.mark.parametrize(
    ("text", "sound", "factor"),
    [
        ("What time is it?", 0.9, 0.8),
        ("What time is it?", 0.1, 1.75),
        ("the red one", 0.9, 1.75),
        ("the red one", 0.1, 1.9),
        ("", 0.9, 1.75),
        ("I would like to, um", 0.9, 5.0),
        ("What time is it?", None, 0.6),
    ],
)
def test_words_and_sound_together(text: str, sound: float | None, factor: float) -> None:
    assert silence_factor(Transcript(text), sound) == factor


@pytest.mark.parametrize(
    ("kind", "confidence", "alternatives"),
    [
        ("sentence", 0.8, {"I am looking for it.": 0.9, "I am looking for a": 0.1}),
        ("doubtful", 0.8, {"I am looking for it.": 0.8, "I am looking for a": 0.2}),
        ("unfinished", 0.8, {"I am looking for it.": 0.4, "I am looking for a": 0.6}),
        ("doubtful", 0.5, {"I am looking for it.": 0.4, "I am looking for a": 0.6}),
        ("unfinished", None, {"I am looking for it.": 0.4, "I am looking for a": 0.6}),
        ("open", 0.8, {"The red one.": 0.35, "the red one": 0.65}),
        ("sentence", 0.8, {"The red one.": 0.45, "the red one": 0.55}),
        ("open", 0.4, {"The red one.": 1.0}),
        ("question", 0.8, {"The red one.": 0.4, "The red one?": 0.6}),
    ],
)
def test_alternatives_count_instead_of_the_text(
    kind: Ending, confidence: float | None, alternatives: dict[str, float]
) -> None:
    found = tuple(Alternative(text, share) for text, share in alternatives.items())
    said = Transcript(found[0].text, (), "en", confidence, found)
    assert ending_of(said) == kind
    assert ending_of(Transcript(found[0].text, (), "en", confidence)) == "sentence"
    if kind == "doubtful":
        assert silence_factor(said) == silence_factor(said, 0.99) == 3.2


GERMAN: dict[Ending, list[str]] = {
    "question": ["Was ist die Hauptstadt von Frankreich?", "Kommst du mit?", "Wo ist er denn?"],
    "sentence": [
        "Ruf mich morgen an.",
        "Ja, ich will.",
        "Dreh dich um.",
        "Steig ein bitte.",
        "Ich nehme die da.",
        "Weißt du noch, wie es war.",
    ],
    "open": ["Wenn ich nach Hause komme.", "Weil es regnet.", "Ruf mich an"],
    "unfinished": [
        "Ich hätte gern einen Tisch und.",
        "Ich hätte gern, ähm",
        "Können Sie mir?",
        "Ich möchte gern.",
        "Das ist für.",
        "Was ist mit?",
        "Ich gehe zum",
        "Nun ja,",
    ],
}


@pytest.mark.parametrize(
    ("text", "kind"), [(text, kind) for kind, texts in GERMAN.items() for text in texts]
)
def test_german(text: str, kind: Ending) -> None:
    assert ending(text, "de") == ending(text, "de-AT") == kind


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Il a vingt et un an.", "fr"),
        ("J'ai atteint mon but.", "fr"),
        ("Vamos a verla.", "es"),
        ("\u00bfCu\u00e1ndo lo has visto? S\u00ed, lo has.", "es"),
        ("Det har jag sett i.", "sv"),
        ("Non lo so, ma do.", "it"),
        ("Ik weet niet wie hij is.", "nl"),
    ],
)
def test_english_words_tell_nothing_about_another_language(text: str, language: str) -> None:
    """It ends as its mark says; without one it is open, and "and" or "the" changes nothing."""
    assert ending(text, language) == "sentence"
    assert ending(text.rstrip("."), language) == "open"
    assert silence_factor(Transcript(text), None, language) == 1.0


def test_marks_count_in_every_language() -> None:
    assert ending("\u00bfQu\u00e9 hora es?", "es") == "question"
    assert ending("Je voudrais\u2026", "fr") == ending("Bueno,", "es") == "unfinished"
    assert ending("Ruf mich an.") == "unfinished"  # an unknown language is taken for English
