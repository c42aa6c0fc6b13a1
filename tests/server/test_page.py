"""The demo page: what it promises, and what it goes by when it can't connect."""

import re

import pytest

from specstream.server.page import GENERAL, SUGGESTIONS, page
from tests.server.test_http import KEY, get, stand


def test_the_page_promises_what_the_pair_can_do() -> None:
    own, other = page(bundled=True), page()
    for text in SUGGESTIONS:
        assert text.replace("'", "&#x27;") in own
        assert text not in other
    for text in GENERAL:
        assert text in other
        assert text not in own
    assert "test pair" in own
    assert "test pair" not in other
    for html in (own, other):
        assert "PAGE." not in html, "everything is laid in"
        assert "anything" not in html
        assert html.count("<script>") == html.count("</script>") == 1


async def test_the_page_is_told_which_pair_answers() -> None:
    for bundled in (True, False):
        server = stand(bundled=bundled)
        async with server.running():
            _, _, body = await get(server.port, "/")
            assert body == page(bundled=bundled)


@pytest.mark.parametrize(("query", "wanted"), [("", 401), ("?token=wrong", 401), (f"?token={KEY}", 200)])
async def test_the_page_can_tell_a_key_from_a_server_that_stopped(query: str, wanted: int) -> None:
    """It asks `/ready`, then `/metrics`, with the query of its own address."""
    assert re.findall(r'await answer\("([a-z]+)"\)', page()) == ["ready", "metrics"]
    server = stand(keys=[KEY])
    async with server.running():
        assert (await get(server.port, f"/ready{query}"))[0] == 200
        assert (await get(server.port, f"/metrics{query}"))[0] == wanted
        await server.server.drain(0)
        assert (await get(server.port, f"/ready{query}"))[0] == 503
