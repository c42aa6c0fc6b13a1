"""Files of prompts and of text: what is read, and what is refused with the line's number."""

import json
from pathlib import Path

import pytest

from specstream.errors import ConfigError
from specstream.training.replies import hold_out, read_data
from tests.support.tiny import byte_tokenizer
from tests.training.made import prompts_file

TOKENIZER = byte_tokenizer()


def text_of(ids: list[int] | None) -> str:
    assert ids is not None
    return str(TOKENIZER.decode(ids))


def test_prompts_in_both_forms(tmp_path: Path) -> None:
    found = read_data(prompts_file(tmp_path / "p.jsonl"), TOKENIZER, 100)
    assert len(found) == 24 and text_of(found[1]) == "cat sat on a"
    assert text_of(found[2]) == "sat a and the"  # messages, without a chat template


def test_a_chat_template_is_used(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    found = read_data(prompts_file(tmp_path / "p.jsonl"), tokenizer, 100)
    assert text_of(found[1]) == "[cat sat on a]"


def test_text_is_cut_into_pieces(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a line of plain text\n" * 40)
    found = read_data(path, TOKENIZER, 100)
    assert len(found) == 40 * 21 // 48 and all(len(ids or []) == 48 for ids in found)


def test_long_prompts_are_left_out(tmp_path: Path) -> None:
    path = prompts_file(tmp_path / "p.jsonl")
    found = read_data(path, TOKENIZER, 12)
    assert found[1] == TOKENIZER.encode("cat sat on a") and found[2] is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 9: not JSON"),
        ("[1]", "line 9: a line is an object"),
        ('{"text": "x"}', 'line 9: a line needs "messages"'),
        ('{"messages": [{"role": "user"}]}', "line 9: message 0 needs a role"),
        ('{"prompt": "  "}', "line 9: the prompt is empty"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = prompts_file(tmp_path / "p.jsonl", 8)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_data(path, TOKENIZER, 100)


def test_files_that_cannot_serve(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with pytest.raises(ConfigError, match="can't read .*No such file"):
        read_data(path, TOKENIZER, 100)
    path.write_text(" \n\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_data(path, TOKENIZER, 100)
    path.write_text(json.dumps({"prompt": "hello"}))
    with pytest.raises(ConfigError, match=r"too few prompts \(1; at least 8 are needed"):
        read_data(path, TOKENIZER, 100)
    path.write_bytes(b"fine\n\xff\xfe")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        read_data(path, TOKENIZER, 100)


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_prompts_is_not_taken_for_text(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([{"prompt": f"prompt number {i}"} for i in range(90)], indent=indent))
    with pytest.raises(ConfigError, match="one JSON array"):
        read_data(path, TOKENIZER, 100)
    path.write_text("[a note] in a text of many words\n" * 40)
    assert len(read_data(path, TOKENIZER, 100)) > 8


def test_held_out_prompts_are_not_trained_on(tmp_path: Path) -> None:
    found = read_data(prompts_file(tmp_path / "p.jsonl", 18), TOKENIZER, 100)
    rest, held = hold_out(found, 64)
    assert (len(rest), len(held)) == (17, 1)
    assert list(held) == [found[0]] and list(rest) == [found[i] for i in range(1, 18)]
