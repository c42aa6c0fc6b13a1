"""`card_facts` on cards that aren't there."""

from typing import Any

import pytest
import torch

from specstream.model import fused
from specstream.model.attention import kernels
from specstream.model.attention.kernels import Kernels, flash, padded
from specstream.model.card import card_facts


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A card, whose answers may be changed."""
    answers: dict[str, Any] = {
        "is_available": True,
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_capability": (9, 0),
        "mem_get_info": (70 * 2**30, 80 * 2**30),
        "device_count": 1,
        "is_bf16_supported": True,
    }
    for name in answers:
        monkeypatch.setattr(torch.cuda, name, lambda *args, name=name: answers[name])
    chosen = Kernels(flash, padded, flash)
    monkeypatch.setattr(kernels, "choose_kernels", lambda *sizes: chosen)
    return answers


def test_a_card_and_what_is_used_of_it(h100: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "installed", lambda: False)
    found = card_facts()
    assert found["gpu"] == ("NVIDIA H100 80GB HBM3, compute capability 9.0, 70 of 80 GiB free")
    assert found["gpu_attention"] == "flash, padded"
    assert "Triton isn't installed" in found["gpu_layers"]
    assert "--no-compile" in found["gpu_passes"]


def test_several_and_old_cards(h100: dict[str, Any]) -> None:
    h100 |= {"device_count": 2, "get_device_capability": (7, 5)}
    words = card_facts()["gpu"]
    assert "one of 2, --device cuda:1 chooses another" in words
    assert "older than 8.0" in words


def test_a_card_that_breaks_is_described(h100: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device) -> None:
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert card_facts() == {"gpu": "not usable: CUDA error: out of memory"}


def test_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in card_facts()["gpu"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "init", driver)
    assert "Found no NVIDIA driver" in card_facts()["gpu"]
