import random
import tracemalloc

from specstream.drafting.proposers.suffix_index import BORDER, LONGEST, ReplyStore, SuffixIndex


def test_places_never_run_over_a_border() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 3, BORDER, 1, 2, 4])
    found = [(p.match, p.end) for p in index.places([3, 1, 2])]
    assert found == [(2, 6), (2, 2)]
    assert index.places([3]) == [] and index.places([]) == []


def test_a_text_in_pieces_is_the_text_at_once() -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(5) for _ in range(400)]
    whole, pieces = SuffixIndex(), SuffixIndex()
    whole.extend(tokens)
    for token in tokens:
        pieces.extend([token])
    for end in range(1, 400):
        assert whole.places(tokens[:end]) == pieces.places(tokens[:end])


def test_matches_are_compared_up_to_a_bound() -> None:
    index = SuffixIndex()
    index.extend([1, 2] * 60)
    assert {p.match for p in index.places([1, 2] * 60)} == {LONGEST}


def test_the_store_drops_the_oldest_replies() -> None:
    store = ReplyStore(100)
    for number in range(40):
        store.add([number, 500, number + 100, 7, 8])
        assert len(store) <= 100
        assert store.places([number, 500])[0].match == 2
    assert max(place.match for place in store.places([30, 500])) == 2
    assert all(place.match == 1 for place in store.places([3, 500]))
    store.add(range(1000))  # longer than the store: its end is kept
    assert len(store) <= 100 and store.places([997])[0].text[-1] == 999


def test_a_store_of_nothing_keeps_nothing() -> None:
    store = ReplyStore(0)
    store.add([1, 2, 3])
    assert len(store) == 0 and store.places([1, 2]) == []


def test_memory_is_that_stated() -> None:
    rng = random.Random(2)
    replies = [[rng.randrange(50_000) for _ in range(500)] for _ in range(40)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    store = ReplyStore(40_000)
    for reply in replies:
        store.add(reply)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 20_000 <= len(store) <= 40_000
    assert (after - before) / len(store) < 250  # bytes a token, if no pair comes twice
