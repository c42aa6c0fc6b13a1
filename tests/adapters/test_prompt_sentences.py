"""Single sentences: what the rules read in them, and how captions put it."""

import pytest

from specstream_adapters.prompt.captions import present
from specstream_adapters.prompt.sentence import read_scene
from specstream_adapters.prompt.verbs import base_of, form_of, participle


@pytest.mark.parametrize(
    ("sentence", "subject", "action"),
    [
        (
            "A brave little fox named Rusty lived in a cave.",
            "a brave little fox named Rusty",
            "lived in a cave",
        ),
        (
            "This is Mara, a lighthouse keeper, waiting on a pier.",
            "Mara, a lighthouse keeper",
            "waiting on a pier",
        ),
        (
            "The captain, a tall woman with grey hair, smiled.",
            "the captain, a tall woman with grey hair",
            "smiled",
        ),
        ("The old wizard Merrin closed his book.", "the old wizard Merrin", "closed his book"),
        ("Out of the mist came a silver horse.", "a silver horse", "came out of the mist"),
        (
            "Behind the counter stood a woman with red hair.",
            "a woman with red hair",
            "stood behind the counter",
        ),
        (
            "There was a snail named Theo who dreamed of flying.",
            "a snail named Theo",
            "dreamed of flying",
        ),
        (
            "An old abandoned house stood at the end of the lane.",
            "an old abandoned house",
            "stood at the end of the lane",
        ),
        ("The girl who sold flowers looked at him.", "the girl", "looked at him"),
        ("A small boy on the bridge waved.", "a small boy", "waved"),
        ("Red lights blink across the panel.", "red lights", "blink across the panel"),
        ("A gate of iron stood in the way.", "a gate of iron", "stood in the way"),
        ("Suddenly, she slowly opened the box.", "she", "slowly opened the box"),
        ("When the storm came, Ada lit the lamp.", "Ada", "lit the lamp"),
        ("And that is how Hugo managed to get home.", "Hugo", "managed to get home"),
        ("In the corner of the room a clock ticked.", "a clock", "ticked"),
        ('"Trust me," said the owl.', "the owl", "said"),
        ('"Who are you?" the guard asked.', "the guard", "asked"),
    ],
)
def test_who_does_what(sentence: str, subject: str, action: str) -> None:
    clause = read_scene(sentence).clauses[0]
    assert clause.subject is not None
    assert (clause.subject.text, clause.action) == (subject, action)


@pytest.mark.parametrize(
    ("sentence", "place", "time"),
    [
        ("Late one evening, on a long pier, lived a baker.", "on a long pier", "late one evening"),
        ("At dawn, a wolf moves along a cliff in Norway.", "along a cliff in Norway", "at dawn"),
        ("In a village by the sea, there lived a cook.", "in a village by the sea", ""),
        ("I walked into the bar at midnight.", "into the bar", "at midnight"),
        ("EXT. HARBOUR - NIGHT", "harbour", "night"),
        ("She worked in silence.", "", ""),
        ("For a moment he almost gave up.", "", ""),
        ("Night fell.", "", ""),
        ("He held the cup in his hands.", "", ""),
    ],
)
def test_where_and_when(sentence: str, place: str, time: str) -> None:
    scene = read_scene(sentence)
    assert [p.phrase.text for p in scene.places] == ([place] if place else [])
    assert scene.time == time


def test_clauses_that_are_joined_have_their_own_subjects() -> None:
    scene = read_scene("Mara looked up, and the owl blinked while soft snow fell.")
    subjects = [clause.subject.text for clause in scene.clauses if clause.subject]
    assert subjects == ["Mara", "the owl", "soft snow"]
    assert [c.verb for c in scene.clauses] == ["look", "blink", "fall"]
    assert len(read_scene("She took the map and the lamp.").clauses) == 1


def test_words_in_quotation_marks_are_not_parsed() -> None:
    scene = read_scene('"A red fox ran into the barn," said Tom, "and you know it."')
    assert scene.quote == "A red fox ran into the barn, and you know it."
    assert [c.subject.text for c in scene.clauses if c.subject] == ["Tom"]
    assert not scene.places
    assert not scene.addressed


@pytest.mark.parametrize(
    ("sentence", "addressed"),
    [
        ("What date would you like to travel?", True),
        ("Slice the tomatoes thinly.", True),
        ("I found a table for you.", True),
        ("Welcome to the museum!", True),
        ("Rain drummed on the roof.", False),
        ("The guard opened the gate.", False),
    ],
)
def test_talk_to_the_listener_is_noticed(sentence: str, addressed: bool) -> None:
    assert read_scene(sentence).addressed is addressed


@pytest.mark.parametrize(
    ("action", "caption"),
    [
        ("stood on the pier", "standing on the pier"),
        ("took a deep breath and counted to ten", "taking a deep breath and counting to ten"),
        ("had been watching all along", "watching all along"),
        ("had hoped to win", "hoping to win"),
        ("had to hurry", "having to hurry"),
        ("did not know what to do", "not knowing what to do"),
        ("could not see the shore", "unable to see the shore"),
        ("didn't dare", "not daring"),
        ("would not open", "not opening"),
        ("was wet and hard to read", "wet and hard to read"),
        ("was falling on everything", "falling on everything"),
        ("almost gave up", "almost giving up"),
        ("carries a lamp and hums", "carrying a lamp and humming"),
        ("slice the bread and lay it down", "slicing the bread and laying it down"),
        ("held the rope and did not let go", "holding the rope and not letting go"),
        ("saw the old and tired man", "seeing the old and tired man"),
        ("of the sea", "of the sea"),
        ("", ""),
    ],
)
def test_captions_use_participles(action: str, caption: str) -> None:
    assert present(action) == caption


@pytest.mark.parametrize(
    ("word", "base", "form", "ing"),
    [
        ("stood", "stand", "past", "standing"),
        ("hoped", "hope", "past", "hoping"),
        ("stopped", "stop", "past", "stopping"),
        ("carried", "carry", "past", "carrying"),
        ("agreed", "agree", "past", "agreeing"),
        ("lied", "lie", "past", "lying"),
        ("reaches", "reach", "s", "reaching"),
        ("runs", "run", "s", "running"),
        ("begin", "begin", "base", "beginning"),
        ("open", "open", "base", "opening"),
    ],
)
def test_verb_forms(word: str, base: str, form: str, ing: str) -> None:
    assert (base_of(word), form_of(word), participle(word)) == (base, form, ing)


@pytest.mark.parametrize("word", ["morning", "bed", "nothing", "glass", "towards", "seed"])
def test_words_that_only_look_like_verbs(word: str) -> None:
    assert form_of(word) is None
