"""The prompts of the experiment, and the options that choose them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from specstream.engine.core.prompt import check_messages
from specstream.errors import ConfigError, OutputError, PromptError
from specstream.types import Message

__all__ = [
    "GRAMMAR_DOMAIN",
    "Padding",
    "Prompt",
    "PromptSet",
    "check_gguf",
    "choose",
    "json_lines",
    "known_first",
    "parse_padding",
    "read_prompts",
    "text_of",
]

_UNITS = {"M": 10**6, "B": 10**9}
_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Padding:
    """The wanted size: about ``parameters``, in ``layers`` (None: by the number of parameters)."""

    parameters: int
    layers: int | None = None


def parse_padding(text: str) -> Padding:
    """Parse ``"100M"`` or ``"8B:32"``: a number of parameters, and optionally of layers.

    Raises:
        ConfigError: not of that form, or out of range.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])(?::(\d{1,6}))?", text.strip(), re.IGNORECASE)
    if not found:
        raise ConfigError(f"--padded takes a size such as 100M, or 8B:32 with layers, not {text!r}")
    size = float(found[1]) * _UNITS[found[2].upper()]
    layers = int(found[3]) if found[3] else None
    if not 1e6 <= size <= 100e9 or (layers is not None and not 1 <= layers <= 200):
        raise ConfigError(f"--padded {text}: from 1M to 100B parameters, at most 200 layers")
    return Padding(int(size), layers)


def check_gguf(file: str) -> None:
    """Check that llama-cpp-python can be imported and that ``file`` is a GGUF file.

    Raises:
        ConfigError: there is no such file, it isn't GGUF, or llama-cpp-python can't be imported.
    """
    try:
        with Path(file).open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"--llama-cpp: can't read {file}: {error.strerror or error}") from None
    if magic != _MAGIC:
        raise ConfigError(
            f"--llama-cpp: {file} is not a GGUF file (it doesn't begin with GGUF); convert the target "
            "with llama.cpp's convert_hf_to_gguf.py"
        )
    if importlib.util.find_spec("llama_cpp") is None:
        raise ConfigError("--llama-cpp needs the package llama-cpp-python: pip install llama-cpp-python")
    try:
        importlib.import_module("llama_cpp")
    except Exception as error:  # a missing native library raises errors of various types
        raise ConfigError(
            f"--llama-cpp: the package llama-cpp-python is installed but broken: {error}"
        ) from error


T = TypeVar("T")

_KNOWN = ("chat", "tools", "math", "code")
GRAMMAR_DOMAIN = "scene"
"""Left out of means: a grammar wrote these scenes, so they are predictable by construction."""
_OTHER_NAMES = {"scenes": GRAMMAR_DOMAIN}
_BUNDLED = "prompts.jsonl"
_MOST_BYTES = 64 << 20
_KEYS = {"id", "domain", "messages", "prompt", "reference"}
_NO_DOMAIN = "prompts"


def known_first(domains: Iterable[str]) -> list[str]:
    """Each domain once: the known ones first, in their usual order."""
    known = (*_KNOWN, GRAMMAR_DOMAIN)
    found = dict.fromkeys(domains)
    return [d for d in known if d in found] + [d for d in found if d not in known]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; ``reference`` is a human answer, if known (never used in the measurement)."""

    id: str
    domain: str
    messages: tuple[Message, ...]
    reference: str = ""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts, with the name and SHA-256 of their file."""

    prompts: tuple[Prompt, ...]
    name: str
    sha256: str

    @property
    def domains(self) -> list[str]:
        """The domains that occur: the known ones first."""
        return known_first(prompt.domain for prompt in self.prompts)

    def of(self, domain: str) -> list[Prompt]:
        """The prompts of one domain, in the file's order."""
        return [prompt for prompt in self.prompts if prompt.domain == domain]


def read_prompts(path: str | Path | None = None) -> PromptSet:
    """Read a file of JSON lines; None: the bundled one.

    Each line is an object with ``messages`` (a conversation that ends with the user's turn) or
    ``prompt`` (the user's turn as a text), and optionally ``id`` (default: the line's number),
    ``domain`` (default: "prompts") and ``reference``.

    Raises:
        ConfigError: the file can't be read, or a line isn't such a prompt (says which and why).
        OutputError: the bundled file is not in this installation.
    """
    name, raw = _bytes_of(path)
    prompts: dict[str, Prompt] = {}
    for number, prompt in json_lines(name, text_of(name, raw), _prompt):
        if prompts.setdefault(prompt.id, prompt) is not prompt:
            raise ConfigError(f"{name}, line {number}: the id {prompt.id!r} is there twice")
    if not prompts:
        raise ConfigError(f"{name} holds no prompts: it must have a line of JSON for each")
    return PromptSet(tuple(prompts.values()), name, hashlib.sha256(raw).hexdigest())


def text_of(name: object, raw: bytes) -> str:
    """Decode the content of the file ``name``, which may begin with a byte order mark.

    Raises:
        ConfigError: names the line that isn't UTF-8.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}, line {at}: not UTF-8 text: {error.reason}") from None


def json_lines(name: object, text: str, read: Callable[[Any, int], T]) -> Iterator[tuple[int, T]]:
    """Yield the number of each line that isn't empty, and what ``read(value, number)`` makes of it.

    Raises:
        ConfigError: names the line that isn't JSON, or that ``read`` refuses.
    """
    for number, line in enumerate(text.split("\n"), 1):  # texts may hold other separators
        if not line.strip():
            continue
        try:
            found = read(json.loads(line), number)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name}, line {number}: not JSON: {error}") from None
        except (ConfigError, PromptError) as error:
            raise ConfigError(f"{name}, line {number}: {error}") from None
        yield number, found


def _bytes_of(path: str | Path | None) -> tuple[str, bytes]:
    """The name and the content of a file."""
    if path is None:
        try:
            return "bundled", resources.files("specstream.bench").joinpath(_BUNDLED).read_bytes()
        except FileNotFoundError as error:
            raise OutputError("the benchmark's prompts are missing; install specstream again") from error
    try:
        with Path(path).open("rb") as opened:
            raw = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't read the prompts {str(path)!r}: {said}") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: give fewer prompts")
    return Path(path).name, raw


def _prompt(value: Any, number: int) -> Prompt:
    if not isinstance(value, dict):
        raise ConfigError('a prompt is an object with "messages" or "prompt"')
    unknown = value.keys() - _KEYS
    if unknown:
        raise ConfigError(f"unknown key {min(unknown)!r}; known: {', '.join(sorted(_KEYS))}")
    value = {"id": f"line-{number}", "domain": _NO_DOMAIN, "reference": "", **value}
    for key in ("id", "domain"):
        if not isinstance(value[key], str) or not value[key].strip():
            raise ConfigError(f"{key} must be a text that is not empty")
    if not isinstance(value["reference"], str):
        raise ConfigError("reference must be a text")
    if isinstance(value.get("messages"), list) == isinstance(value.get("prompt"), str):
        raise ConfigError('a prompt needs either "messages" (a list) or "prompt" (a text)')
    domain = value["domain"].strip()
    return Prompt(
        value["id"],
        _OTHER_NAMES.get(domain, domain),
        tuple(check_messages(value.get("messages", value.get("prompt")))),
        value["reference"],
    )


def choose(
    prompts: PromptSet, *, domains: Sequence[str] = (), limit: int | None = None, system: str = ""
) -> PromptSet:
    """Select prompts of the wanted domains, at most ``limit`` of each, spread over the file.

    A ``system`` text replaces the prompts' own system messages.

    Raises:
        ConfigError: a wanted domain isn't there.
    """
    wanted = [_OTHER_NAMES.get(domain, domain) for domain in domains] or prompts.domains
    missing = [domain for domain in wanted if domain not in prompts.domains]
    if missing:
        have = ", ".join(prompts.domains)
        raise ConfigError(f"{prompts.name} has no prompts of {missing[0]!r}; it has {have}")
    kept: list[Prompt] = []
    for domain in dict.fromkeys(wanted):
        of_domain = prompts.of(domain)
        count = min(limit or len(of_domain), len(of_domain))
        kept += [of_domain[i * len(of_domain) // count] for i in range(count)]
    if system:
        first: Message = {"role": "system", "content": system}
        kept = [
            replace(p, messages=(first, *(m for m in p.messages if m["role"] != "system"))) for p in kept
        ]
    return PromptSet(tuple(kept), prompts.name, prompts.sha256)
