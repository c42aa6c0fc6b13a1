"""Adds native code to a wheel, if ``scripts/wheels`` has built some for its platform."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


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
