"""The name under which a model takes its cache, which transformers changed in 5.24."""

from __future__ import annotations

from typing import Any, cast

import pytest

from specstream.model.own_forward import cache_argument
from tests.model.families import build


class Older:
    def forward(self, input_ids: Any, past_key_values: Any = None, use_cache: bool = True) -> None:
        """As of transformers before 5.24."""


class Newer:
    def forward(self, input_ids: Any, cache: Any = None, use_cache: bool = True) -> None:
        """As of transformers from 5.24 on."""


class Both:
    def forward(self, input_ids: Any, cache: Any = None, past_key_values: Any = None) -> None:
        """Something else may be called a cache, too."""


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Older, "past_key_values"), (Newer, "cache"), (Both, "past_key_values")],
)
def test_the_name_is_the_one_that_forward_declares(kind: type, name: str) -> None:
    assert cache_argument(cast(Any, kind())) == name


def test_transformers_own_models_declare_one() -> None:
    assert cache_argument(build("llama")) in ("cache", "past_key_values")
