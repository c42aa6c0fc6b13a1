import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specstream.bench.prompts import choose, read_prompts
from specstream.errors import ConfigError, OutputError

GOOD = {"id": "a", "domain": "chat", "messages": [{"role": "user", "content": "Hello."}]}


def written(folder: Path, *values: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in values))
    return path


def test_the_bundled_prompts_are_balanced_over_the_five_domains() -> None:
    prompts = read_prompts()
    assert prompts.domains == ["chat", "tools", "math", "code", "scene"]
    assert set(Counter(prompt.domain for prompt in prompts.prompts).values()) == {12}
    assert len(prompts.sha256) == 64
    assert all(message["content"] for prompt in prompts.prompts for message in prompt.messages)


def test_missing_bundled_prompts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specstream.bench.prompts._BUNDLED", "no-such-file.jsonl")
    with pytest.raises(OutputError, match="missing"):
        read_prompts()


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    other = GOOD | {"id": "b", "domain": "poems", "reference": "Hi."}
    prompts = read_prompts(written(tmp_path, other, "", GOOD))
    assert prompts.domains == ["chat", "poems"]  # known domains first
    assert [p.reference for p in prompts.of("poems")] == ["Hi."]
    assert prompts.name == "prompts.jsonl"


def test_a_line_needs_no_more_than_a_prompt(tmp_path: Path) -> None:
    first, second = read_prompts(written(tmp_path, {"prompt": "Hello."}, "", GOOD)).prompts[::-1]
    assert (second.id, second.domain, second.messages) == ("line-1", "prompts", first.messages)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: a prompt is an object"),
        (GOOD | {"id": ""}, "id must be"),
        (GOOD | {"domain": 3}, "domain must be"),
        (GOOD | {"expected": "x"}, "unknown key 'expected'"),
        (GOOD | {"messages": "Hello"}, "either .messages. .a list. or"),
        (GOOD | {"prompt": "Hello"}, "either .messages. .a list. or"),
        ({"id": "a", "prompt": ""}, "the prompt is empty"),
        (GOOD | {"messages": []}, "the prompt is empty"),
        (GOOD | {"messages": [{"role": "robot", "content": "x"}]}, "role"),
        (GOOD | {"reference": 1}, "reference must be"),
        ("", "holds no prompts"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(line: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read_prompts(written(tmp_path, line))


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: the id 'a' is there twice"):
        read_prompts(written(tmp_path, GOOD, GOOD))


def test_a_missing_file_and_binary_data_are_typed_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        read_prompts(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prompts(tmp_path / "b.jsonl")


def test_a_limit_takes_prompts_from_all_over_the_file(tmp_path: Path) -> None:
    prompts = read_prompts(written(tmp_path, *(GOOD | {"id": str(i)} for i in range(10))))
    assert [p.id for p in choose(prompts, limit=4).prompts] == ["0", "2", "5", "7"]
    assert len(choose(prompts, limit=99).prompts) == 10


def test_domains_are_chosen_by_name() -> None:
    chosen = choose(read_prompts(), domains=["scenes", "math"], limit=1)
    assert chosen.domains == ["math", "scene"]
    with pytest.raises(ConfigError, match="no prompts of 'poems'; it has chat"):
        choose(read_prompts(), domains=["poems"])


def test_a_system_text_takes_the_place_of_the_prompts_own() -> None:
    chosen = choose(read_prompts(), limit=2, system="Be brief.")
    for prompt in chosen.prompts:
        roles = [m["role"] for m in prompt.messages]
        assert roles.count("system") == 1
        assert prompt.messages[0] == {"role": "system", "content": "Be brief."}


def test_texts_may_hold_any_separator_and_the_file_a_byte_order_mark(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    line = json.dumps(GOOD | {"messages": [{"role": "user", "content": text}]}, ensure_ascii=False)
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n")
    (prompt,) = read_prompts(path).prompts
    assert prompt.messages[0]["content"] == text


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="larger than 64 MiB"):
        read_prompts("/dev/zero")
