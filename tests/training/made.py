"""Small trainings: a tiny target in a folder, a file of prompts, and options that fit."""

import json
from pathlib import Path
from typing import Any

from specstream.training.options import TrainOptions
from tests.support.tiny import byte_tokenizer, save_pair, tiny_model

__all__ = ["options", "prompts_file", "target_folder"]

WORDS = "the cat sat on a mat and saw the dog run to the sea while rain fell on the roof".split()


def target_folder(root: Path) -> Path:
    """A tiny target; nothing ends its replies."""
    return save_pair(root, eos=False, scale=9.0)[0]


def prompts_file(path: Path, count: int = 24) -> Path:
    """JSON lines of both forms."""
    lines = []
    for i in range(count):
        text = " ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 5))
        messages = [{"role": "user", "content": text}]
        lines.append({"prompt": text} if i % 2 else {"messages": messages, "domain": "test"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def options(root: Path, name: str = "out", **given: Any) -> TrainOptions:
    """A training of a few seconds; the pair and the prompts are made once in ``root``."""
    target = root / "target"
    if not target.exists():
        target_folder(root)
        prompts_file(root / "prompts.jsonl")
    values: dict[str, Any] = {
        "kind": "draft", "out": root / name, "target": str(target), "data": root / "prompts.jsonl",
        "steps": 8, "max_reply": 12, "batch_tokens": 128, "size": "1x16", "threads": 1,
        "checkpoint_s": 0.0,
    }  # fmt: skip
    return TrainOptions(**(values | given))


def other_target(root: Path, vocabulary: int) -> Path:
    """A target with another number of output rows."""
    tiny_model(vocabulary).save_pretrained(root)
    byte_tokenizer().save_pretrained(root)
    return root
