"""What is found in a model's folder before anything of it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from specstream.config import EngineConfig
from specstream.errors import ModelBroken
from specstream.model.places import check_models


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt", "medusa_lm_head.bin"]
)
def test_each_published_file_of_weights_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2}')
    config = EngineConfig(draft=str(tmp_path))
    with pytest.raises(ModelBroken, match="without weights"):
        check_models(config)
    (tmp_path / name).write_bytes(b"")
    check_models(config)
