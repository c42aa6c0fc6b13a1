"""What is built: one wheel of all, or ``specstream-client`` and a ``specstream-sdk`` on top of it.

A clone is installed as one distribution, ``specstream-sdk``. Where wheels are published the same files
come as two, so that a client, the host of a remote voice and a test of an agent need no torch.
"""

from __future__ import annotations

import copy
import os
import re
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CLIENT = "specstream-client"
_ENGINE = {"torch", "torchao", "transformers"}  # what the client comes without
_MODELS = "specstream/data/models"


def split(project: dict[str, Any], version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configs (as of ``pyproject.toml``) of the client, which has all code, and of the rest."""
    client, sdk = copy.deepcopy(project), copy.deepcopy(project)
    needed = project["project"]["dependencies"]
    extras = {k: v for k, v in project["project"]["optional-dependencies"].items() if k != "dev"}
    client["project"] |= {
        "name": CLIENT,
        "description": "The parts of specstream that need no torch: client, remote stages, testing kit.",
        "dependencies": [each for each in needed if _name(each) not in _ENGINE],
        "optional-dependencies": {
            extra: needs
            for extra, needs in extras.items()
            if not _ENGINE & {_name(each) for each in needs}
        },
    }
    sdk["project"] |= {
        "dependencies": [f"{CLIENT}=={version}", *(each for each in needed if _name(each) in _ENGINE)],
        "optional-dependencies": extras,
    }
    for table in ("scripts", "entry-points"):
        del sdk["project"][table]
    del client["tool"]["hatch"]["build"]["hooks"]
    client["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] = [_MODELS]
    sdk["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] = [_MODELS]
    return client, sdk


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower()


class NativeCode(BuildHookInterface[Any]):
    """Without ``$SPECSTREAM_BUILT`` the wheel is pure: passes are compiled where it is installed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Take the files of ``$SPECSTREAM_BUILT``, made for ``$SPECSTREAM_PLATFORM``."""
        folder = os.environ.get("SPECSTREAM_BUILT")
        if folder is None or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['SPECSTREAM_PLATFORM']}"
        build_data["force_include"][folder] = "specstream/model/native/built"
