"""The chain's parts are asked for when it is opened, whether an engine runs or not."""

from __future__ import annotations

import pytest

from specstream.commands.chain import open_pipeline
from specstream.errors import ConfigError
from specstream.session import Engine
from specstream.ws.stage.server import adapter_server
from tests.standins import ToneVoice


async def test_an_adapter_of_another_kind_is_refused_at_once() -> None:
    async with adapter_server("voice", ToneVoice) as port:
        with pytest.raises(ConfigError, match="serves: voice, not: prompt"):
            async with open_pipeline(
                Engine.load(), "reference", "viseme", f"ws://127.0.0.1:{port}"
            ):
                pass
