"""What is learnt of a story's people and places, and what is left alone."""

import pytest

from specstream_adapters.prompt.bible import Bible, Subject, pronouns


def read(*sentences: str) -> Bible:
    bible = Bible()
    for sentence in sentences:
        bible.read(sentence)
    return bible


@pytest.mark.parametrize(
    ("sentence", "look"),
    [
        ("A brave little fox named Rusty lived in a cave.", "a brave little fox named Rusty"),
        ("This is Mara, a lighthouse keeper, waiting on a pier.", "Mara, a lighthouse keeper"),
        ("Once there was a shy baker called Anselm.", "a shy baker called Anselm"),
        ("In the forest a fox named Rusty slept.", "a fox named Rusty"),
        ("He met the daughter of the miller named Anna.", "the daughter of the miller named Anna"),
        ("Captain Ilya Voss floats in the dark.", "Captain Ilya Voss"),
        ("One evening he walked with Mr. Enfield.", "Mr. Enfield"),
        ("Nadia leaned on the railing.", "Nadia"),
        ("Far below, a shaggy old bear grazes.", "a shaggy old bear"),
        ("A black bear sits in a cave.", "a black bear"),
        ("A small white dog sleeps.", "a small white dog"),
        ("In July, a storm came, and the boats stayed.", ""),
        ("Yesterday, a letter arrived.", ""),
        ("They flew to New York.", ""),
        ("My way led me through Baker Street.", ""),
        ("Red lights blink.", ""),
        ("Flour hangs in the air.", ""),
        ("It had a pheasant feather in it.", ""),
        ("April is cold.", ""),
        ("She saw the queen.", ""),
    ],
)
def test_a_subject_is_learnt_where_it_is_introduced(sentence: str, look: str) -> None:
    latest = next(reversed(read(sentence).subjects.values()), None)
    assert (latest.look if latest else "") == look


@pytest.mark.parametrize(
    ("sentences", "pronoun", "names"),
    [
        (("A girl named Ana sang.",), "she", "Ana"),
        (("A fox named Rusty ran.", "A girl came."), "her", "girl"),
        (("An old man slept.", "A girl came."), "him", "man"),
        (("A brown bear walks along a river.", "An old man slept."), "its", "bear"),
        (("Two men ran off.", "A girl came."), "they", "men"),
        (("The bees flew off.", "An old man slept."), "they", "bees"),
        (("Uncle Dario slept.", "A rider came."), "she", "rider"),
        (("Alice sat by her sister.", "A rabbit ran by."), "she", "rabbit Alice"),
    ],
)
def test_a_pronoun_stands_for_the_subject_named_last_or_for_two_in_doubt(
    sentences: tuple[str, ...], pronoun: str, names: str
) -> None:
    bible = read(*sentences)
    assert [meant.name for meant in bible.meant_by(pronoun)] == names.split()


def test_in_doubt_whoever_is_shown_is_meant() -> None:
    bible = read("Alice sat by a wall.", "A rabbit ran by.")
    assert [meant.name for meant in bible.meant_by("she", shown="Alice")] == ["Alice"]


def test_what_a_pronoun_stood_for_once_is_remembered() -> None:
    bible = read("A baker named Leo sang.")
    assert bible.meant_by("she") == [Subject("Leo", "a baker named Leo", "she")]
    assert bible.meant_by("he") == []


@pytest.mark.parametrize(
    ("sentence", "outside"),
    [
        ("He sat down by his fire.", ["He", "his"]),
        ("The old man sat down by his fire.", []),
        ("Behind him, the oven glows.", ["him"]),
        ("Nadia pulled her scarf tighter.", []),
        ("It had been waiting for the light.", ["It"]),
        ("It was a thick piece of wood.", ["It"]),
        ("The tree shook its leaves.", []),
        ("Halfway up the hill he stops.", ["he"]),
        ("He ran after it.", ["He", "that"]),
        ("A violinist offered him a pencil.", ["him"]),
        ("A steward brought her coffee.", ["her"]),
        ("A woman took her hat.", []),
        ("The third man stood behind her window.", ["her"]),
        ("A black cat watches them.", ["them"]),
    ],
)
def test_pronouns_of_somebody_outside_the_sentence_are_found(sentence: str, outside: list[str]) -> None:
    leading, later = pronouns(sentence)
    assert [found.word for found in leading + later] == outside


def test_a_first_name_stands_for_the_whole_one() -> None:
    bible = read("Captain Ilya Voss sleeps.", "Ilya wakes up.")
    assert list(bible.subjects) == ["Captain Ilya Voss"]


@pytest.mark.parametrize(
    ("sentence", "place"),
    [
        ("He slept in a cave.", "in a cave"),
        ("A horse waits behind an old stone barn, unseen.", "behind an old stone barn"),
        ("They met in the old library.", "in the old library"),
        ("He stood on a hill.", "on a hill"),
        ("He put it on the counter.", ""),
        ("She came in a hurry.", ""),
        ("It turned in the dark.", ""),
        ("There was a stranger in a green coat.", ""),
    ],
)
def test_a_place_is_a_short_phrase_that_ends_a_clause(sentence: str, place: str) -> None:
    assert read(sentence).place == place


@pytest.mark.parametrize(
    ("sentence", "place"),
    [
        ("On the landing he found an earring.", "On the landing"),
        ("In the observation dome the old robot turned.", "In the observation dome"),
        ("At the end of the tunnel a panel had come loose.", "At the end of the tunnel"),
        ("Behind the door somebody was crying.", "in a cave"),
        ("In the cage sat a parrot.", "in a cave"),
        ("In a small house by the sea lived a fisherman.", "In a small house"),
        ("On the shore of the lake stood a heron.", "On the shore"),
        ("On the third morning they left.", "in a cave"),
        ("She crossed to the saloon and pushed open the doors.", "at the saloon"),
        ("They reached a ledge covered in bones.", "at a ledge"),
        ("They set out across the mountains to sell bread.", "across the mountains"),
        ("He swept it up with the broom.", "in a cave"),
        ("A swarm settled on the mayor's car.", "in a cave"),
        ("A light swept through the hall.", "in the hall"),
    ],
)
def test_the_story_stays_until_a_sentence_leads_to_another_place(sentence: str, place: str) -> None:
    assert read("A bear slept in a cave.", sentence).place == place


@pytest.mark.parametrize(
    "sentence",
    [
        "She thought of a house in the forest.",
        "He dreamed of a beach on an island.",
        "She imagined herself in a garden.",
        "He remembered the days in the old village.",
        "He wanted to sleep in the barn.",
        "She missed the kettle in the kitchen.",
        "She told him about a castle on a hill.",
        "They talked about a walk in the park.",
        "He had read about a temple in the jungle.",
        "He wrote a letter about the war in the desert.",
        "She looked at a painting of a ship in the harbour.",
        "He showed her a photo of a hut on the beach.",
        "He had never been in a castle.",
        "Tomorrow they would meet in the library.",
        "They planned a picnic in the meadow.",
        "If only she were in a garden.",
    ],
)
def test_a_place_that_is_only_mentioned_is_not_where_the_story_goes(sentence: str) -> None:
    assert read("A bear slept in a cave.", sentence).place == "in a cave"


@pytest.mark.parametrize(
    ("sentence", "place"),
    [
        ("She thought of Paris and walked into the kitchen.", "in the kitchen"),
        ("Thinking of her son, she sat in the garden.", "in the garden"),
        ("He wrote a letter in the library.", "in the library"),
        ("She told a story in the tavern.", "in the tavern"),
        ("In the garden she thought of him.", "In the garden"),
        ("She stood on the hill and dreamed of the sea.", "on the hill"),
        ("He read a book in the park.", "in the park"),
        ("He would not speak, but he walked into the church.", "in the church"),
    ],
)
def test_a_place_where_somebody_thinks_or_tells_is_one(sentence: str, place: str) -> None:
    assert read("A bear slept in a cave.", sentence).place == place


def test_nobody_is_called_everyone() -> None:
    assert not read("Everyone laughed at his hat.").subjects


def test_a_place_holds_until_another_is_named() -> None:
    bible = read("He slept in a cave.")
    assert not bible.read("He woke up.")
    assert bible.place == "in a cave"
    assert bible.read("He stood on a hill.")
    assert bible.place == "on a hill"


def test_what_is_remembered_is_bounded() -> None:
    bible = read(*(f"A girl named Ana{number}x sang." for number in range(100)))
    assert len(bible.subjects) == 32
    assert "Ana99x" in bible.subjects
