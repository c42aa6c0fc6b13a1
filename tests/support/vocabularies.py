"""Small tokenizers that disagree, made from a text that stands here, and texts for them."""

import random
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["KINDS", "LOSSLESS", "random_text", "tokenizer_of"]

_TEXT = """the cat sat on the mat and the dog ran after the cat, while the other dogs were sleeping.
She said: "It's raining again; we can't go to the market, can we?" Then there was nothing to do.
def add(first, second): return first + second  # adds two numbers, 1 and 22, or 333 and 4444
Die Katze schläft über dem Haus, und der Fluß fließt; déjà vu à la carte. naïve café, señor.
日本語の文章です。今日はとても良い天気ですね。 Привет, как дела? 🙂 👍🏽 the end of the text, the end.
the cat and a dog; whether the weather is better there than here, neither they nor their mother knows.
""".splitlines()
_CONTROLS = ["<s>", "</s>"]


def _bytes(size: int, regex: bool) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_CONTROLS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(_TEXT, trainer)
    return inner


def _metaspace() -> Tokenizer:
    """As SentencePiece with byte fallback: a mark for each space, one put before a text."""
    hexadecimal = [f"<0x{byte:02X}>" for byte in range(256)]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=350, show_progress=False)
    learner.train_from_iterator(_TEXT[:3], trainer)
    pieces = sorted(learner.get_vocab().items(), key=lambda pair: pair[1])
    names = [*_CONTROLS, *hexadecimal, *(piece for piece, _ in pieces)]
    import json

    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    inner = Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<s>",
        )
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return inner


def _pieces() -> Tokenizer:
    """As BERT: lower case, blanks are not kept, words go on with ##."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=[*_CONTROLS, "[UNK]"], show_progress=False
    )
    inner.train_from_iterator(_TEXT, trainer)
    return inner


KINDS = ("bytes", "merged", "unsplit", "metaspace", "pieces")
LOSSLESS = KINDS[:-1]
"""Those that keep every character."""


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """The tokenizer of one of `KINDS`; ids 0 and 1 are ``<s>`` and ``</s>``."""
    made = {
        "bytes": lambda: _bytes(258, True),
        "merged": lambda: _bytes(420, True),
        "unsplit": lambda: _bytes(380, False),  # merges run across blanks
        "metaspace": _metaspace,
        "pieces": _pieces,
    }[kind]()
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    )
    return tokenizer


def random_text(rng: random.Random) -> str:
    """Words of the text and anything else: blanks, digits, other scripts, emoji, control-like text."""
    words = " ".join(_TEXT).split()
    others = [
        "  ",
        "\n",
        "\n\n\t",
        "日本",
        "🙂",
        "👩‍👩‍👧",
        "é",
        "</s>",
        "▁",
        "##x",
        "0x7f",
        "…",
        "ß\u0301",
    ]
    parts = []
    for _ in range(rng.randint(1, 12)):
        parts.append(rng.choice(words) if rng.random() < 0.7 else rng.choice(others))
        parts.append(" " if rng.random() < 0.7 else "")
    return "".join(parts)
