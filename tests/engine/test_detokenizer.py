import random
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from specstream.config import DEFAULT_TARGET
from specstream.engine.core.detokenizer import Detokenizer, decoder_of
from specstream.model.load import load_tokenizer
from tests.support.tiny import byte_tokenizer

PIECES = [
    " fox",
    "a",
    " a",
    "fox ",
    "naïve",
    "日本語",
    "한국어",
    "👩‍👩‍👧",
    "🇩🇪",
    "e\u0301",
    "$5.00",
    "\n\n",
    "ß",
    " ",
    "'s",
    "नमस्ते",
    "\ufffd",
]


SPACES = [
    (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)),
    (decoders.ByteFallback(), decoders.Metaspace("▁", "always")),
]
"""The two ways in which spaces come back: by the text's first character, or by its first token."""


def fuzz_text(rng: random.Random, pieces: Sequence[str] = PIECES) -> str:
    return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))


def falling_back(spaces: tuple[decoders.Decoder, ...]) -> Tokenizer:
    """Words with their space before them, and bytes for whatever is no word, as SentencePiece has it."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁fox", "a", "▁a", "<mark>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(list(spaces))
    tokenizer.add_special_tokens(["<mark>"])
    return tokenizer


def test_pieces_laid_end_to_end_are_the_decoding() -> None:
    """2,000 texts with characters of one to four bytes, one token per byte."""
    tokenizer = byte_tokenizer()
    rng = random.Random(1)
    for _ in range(2000):
        text = fuzz_text(rng)
        ids = tokenizer.encode(text, add_special_tokens=False)
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.add(i) for i in ids]
        assert "".join([*pieces, detokenizer.finish()]) == text
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("spaces", SPACES, ids=["strip", "metaspace"])
def test_pieces_of_a_vocabulary_that_falls_back_to_bytes(spaces: tuple[decoders.Decoder, ...]) -> None:
    """1,000 texts. There one half character, seen without its other half, spoils all beside it."""
    tokenizer = falling_back(spaces)
    rng = random.Random(3)
    sound = [piece for piece in PIECES if piece != "\ufffd"]  # which looks like half of one
    for _ in range(1000):
        marks = "<mark>" * rng.choice([0, 1, 9])  # special tokens, which aren't shown
        ids = tokenizer.encode(marks.join(fuzz_text(rng, sound) for _ in range(3))).ids
        detokenizer = Detokenizer(tokenizer)
        text = "".join([detokenizer.add(i) for i in ids] + [detokenizer.finish()])
        assert text == tokenizer.decode(ids)


@pytest.mark.parametrize("spaces", SPACES, ids=["strip", "metaspace"])
def test_a_byte_that_fits_no_character_is_one_replacement_character(
    spaces: tuple[decoders.Decoder, ...],
) -> None:
    """2,000 replies. As in the whole decoding, but what was given out before stays as it was."""
    tokenizer = falling_back(spaces)
    vocabulary, rng = tokenizer.get_vocab(), random.Random(4)
    words = {"▁fox": " fox", "a": "a", "▁a": " a"}
    pieces = [*(text.encode() for text in ("é", "日", "👩", "x")), b"\xff", b"\xe6\x97", b"\x80"]
    for _ in range(2000):
        tokens, said = ["a"], "a"
        for _ in range(rng.randint(1, 6)):
            data = b"".join(rng.choices(pieces, k=rng.randint(0, 3)))
            some = [f"<0x{byte:02X}>" for byte in data]
            some.insert(rng.randint(0, len(some)), "<mark>")  # not shown; ends no run of bytes
            word = rng.choice([*words])
            tokens, said = [*tokens, *some, word], said + shown(data) + words[word]
        ids = [vocabulary[token] for token in tokens]
        detokenizer = Detokenizer(tokenizer)
        text = "".join([detokenizer.add(i) for i in ids] + [detokenizer.finish()])
        assert text == said, tokens


def shown(data: bytes) -> str:
    """The characters at the beginning of a run of bytes, and one U+FFFD for each byte behind them."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode() + "\ufffd" * (len(data) - error.start)


UNSHOWN = [
    (decoders.BPEDecoder("</w>"), ["lo", "w</w>", "</w>", "b", "</w>", "a</w>", "b"]),
    (decoders.CTC("<pad>", "|", cleanup=False), ["b", "<pad>", "<pad>", "b", "b", "<pad>", "|", "b"]),
    (decoders.Metaspace("▁", "always"), ["▁", *["<mark>"] * 5, "▁a", "<mark>", "▁", "▁a"]),
    (decoders.ByteLevel(), ["â", "<mark>", "Ĥ", "<mark>", "<mark>", "¬", "a"]),
]


@pytest.mark.parametrize(("decoder", "tokens"), UNSHOWN, ids=["suffix", "ctc", "metaspace", "bytes"])
def test_tokens_that_are_not_shown_may_tell_others_apart(
    decoder: decoders.Decoder, tokens: list[str]
) -> None:
    """Each of these tokens has no text of its own, and changes what the others come to."""
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(["<mark>", *tokens]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<mark>"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<mark>"])
    ids = [vocabulary[token] for token in tokens]
    for shift in range(len(ids)):  # wherever the reply begins and the window is cut
        part = ids[shift:] + 3 * ids
        detokenizer = Detokenizer(tokenizer)
        text = "".join([detokenizer.add(i) for i in part] + [detokenizer.finish()])
        if "\ufffd" not in tokenizer.decode(part):
            assert text == tokenizer.decode(part)


def test_the_window_stays_short_whatever_comes() -> None:
    """Calls of the decoder with more than a dozen tokens would grow with the reply."""
    tokenizer = falling_back(SPACES[0])
    longest = 0

    class Watched:
        def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return str(tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    detokenizer, rng, mark = (Detokenizer(Watched()), random.Random(8), tokenizer.get_vocab_size() - 1)
    for _ in range(300):
        for _ in range(rng.choice([1, 3, 40])):
            detokenizer.add(rng.choice([mark, rng.randrange(1, mark)]))
    assert longest <= 12


def test_random_ids_of_a_real_vocabulary_decode_as_a_whole() -> None:
    tokenizer = load_tokenizer(DEFAULT_TARGET)
    rng = random.Random(2)
    for _ in range(500):
        ids = [rng.randrange(8, 4096) for _ in range(rng.randint(1, 30))]
        detokenizer = Detokenizer(tokenizer)
        text = "".join([detokenizer.add(i) for i in ids] + [detokenizer.finish()])
        whole = str(tokenizer.decode(ids, skip_special_tokens=True))
        # Broken bytes may be told apart differently, but no real character is lost or doubled.
        assert text.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_bytes_that_never_become_a_character_do_not_hold_up_the_rest() -> None:
    tokenizer = byte_tokenizer()
    lead = tokenizer.encode("日", add_special_tokens=False)[0]
    letters = tokenizer.encode("abc", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    out = [detokenizer.add(i) for i in [lead, *letters]]
    assert "".join(out) == "\ufffdabc"
    stuck = Detokenizer(tokenizer)
    given = ""
    for count in range(1, 51):
        given += stuck.add(lead)
        assert count - len(given) < 4


def test_finish_gives_out_half_a_character_once() -> None:
    tokenizer = byte_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.add(tokenizer.encode("é", add_special_tokens=False)[0]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_the_core_of_a_tokenizer_decodes_as_the_tokenizer_does() -> None:
    rng = random.Random(5)
    for tokenizer in (load_tokenizer(DEFAULT_TARGET), byte_tokenizer()):
        core = decoder_of(tokenizer)
        assert core is not tokenizer
        for _ in range(500):
            ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(1, 30))]
            assert core.decode(ids, skip_special_tokens=True) == tokenizer.decode(
                ids, skip_special_tokens=True
            )


def test_what_a_tokenizer_adds_to_its_core_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that mends what the core says, one call that was replaced, or tidied spaces."""
    usual = load_tokenizer(DEFAULT_TARGET)

    class Mending(type(usual)):  # type: ignore[misc]
        def _decode(self, *args: object, **options: object) -> str:
            return "mended"

    mending = Mending(tokenizer_object=usual.backend_tokenizer)
    assert decoder_of(mending).decode([9, 10]) == "mended"
    tidying = load_tokenizer(DEFAULT_TARGET)
    tidying.clean_up_tokenization_spaces = True
    assert decoder_of(tidying) is tidying
    for name in ("decode", "_decode"):
        replaced = load_tokenizer(DEFAULT_TARGET)
        monkeypatch.setattr(replaced, name, lambda *args, **options: "replaced")
        assert decoder_of(replaced) is replaced
