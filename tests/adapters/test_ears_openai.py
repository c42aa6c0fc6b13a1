"""The recogniser behind OpenAI's ``/v1/audio/transcriptions``, against our server and others."""

import asyncio
import io
import logging
import re
import socket
import sys
import wave
from typing import Any

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings, TurnHeard
from specstream.listening.interfaces import HeardWord, Transcript
from specstream.listening.listener import Listener
from specstream.stages.adapters import load_adapter
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedTurnDetector
from specstream_adapters.ears.openai import OpenAIRecognizer, OpenAITranscription, language_code
from tests.server.doubles import Stand, wait_for
from tests.support.speech_servers import AudioServer, Reply

pytest.importorskip("openai")

SECOND = b"\x28\x23" * 16_000  # loud, for the scripted detector


def fields_of(body: bytes) -> dict[str, bytes]:
    """The parts of a multipart form."""
    boundary = body.split(b"\r\n", 1)[0]
    found: dict[str, bytes] = {}
    for part in body.split(boundary)[1:-1]:
        head, _, value = part.strip(b"\r\n").partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]+)"', head)
        assert name is not None
        found[name[1].decode()] = value
    return found


def answering(*replies: Reply) -> AudioServer:
    """A server that answers so; the last answer is repeated."""
    left = list(replies)
    return AudioServer(lambda path, body: left.pop(0) if len(left) > 1 else left[0])


def opened(server: AudioServer, language: str | None = None, **options: Any) -> OpenAITranscription:
    stream = OpenAIRecognizer(url=server.url, **options).open(16_000, language=language)
    stream.add(SECOND)
    return stream


async def closed(stream: OpenAITranscription) -> None:
    await stream.aclose()
    await stream.recognizer.aclose()


async def test_our_own_server_is_such_a_server() -> None:
    hears = ScriptedRecognizer(["hello there my friend"])
    far = Ears(hears, ScriptedTurnDetector())
    stand = Stand(ScriptedEngine([""]), ears=lambda: far)
    async with stand.running():
        recognizer = load_adapter("recognizer", f"openai=http://127.0.0.1:{stand.port}/v1")
        stream = recognizer.open(16_000, language="en")
        stream.add(SECOND)
        partial = await stream.partial()
        stream.add(SECOND[:16_000])
        whole = await stream.finish()
        await closed(stream)
    assert whole.text == "hello there my friend" and whole.language == "en"
    assert [word.text for word in whole.words] == whole.text.split()
    assert partial.words[0].end_ms == 250 and partial.text == whole.text
    assert bytes(hears.audio[1]) == SECOND + SECOND[:16_000]
    assert set(hears.languages) == {"en"}


async def test_a_listener_hears_through_it_and_fixes_the_language() -> None:
    answer = {"text": " Guten Tag. ", "language": "german", "words": []}
    async with answering(Reply(body=answer)).running() as server:
        ears = Ears(OpenAIRecognizer(url=server.url), ScriptedTurnDetector())
        settings = ListenerSettings(partial_ms=None, by_words=False, language="de")
        async with Listener(ears, sample_rate=16_000, settings=settings) as listener:
            await listener.add(SECOND + bytes(64_000))
            listener.finish()
            events = [event async for event in listener]
        await ears.aclose()
    (heard,) = [event for event in events if isinstance(event, TurnHeard)]
    assert heard.transcript == Transcript("Guten Tag.", (), "de")
    assert fields_of(server.bodies[-1])["language"] == b"de"


async def test_what_is_asked() -> None:
    answer = Reply(body={"text": "Hi."})
    async with answering(answer).running() as server:
        stream = opened(
            server, model="whisper-large", language="fr", api_key="secret", fields={"prompt": "Zoë"}
        )
        assert await stream.finish() == Transcript("Hi.", (), "fr")
        await closed(stream)
        asked = OpenAIRecognizer(url=f"{server.url}?model=m&language=nl", words=False)
        second = asked.open(16_000)
        second.add(SECOND)
        assert (await second.finish()).language == "nl"
        await closed(second)
    first = fields_of(server.bodies[0])
    with wave.open(io.BytesIO(first.pop("file"))) as sent:
        assert (sent.getframerate(), sent.getnchannels(), sent.getsampwidth()) == (16_000, 1, 2)
        assert sent.readframes(10**6) == SECOND
    assert first == {
        "model": b"whisper-large",
        "response_format": b"verbose_json",
        "timestamp_granularities[]": b"word",
        "language": b"fr",
        "prompt": "Zoë".encode(),
    }
    assert server.keys[0] == "Bearer secret"
    plain = fields_of(server.bodies[1])
    assert plain["model"] == b"m" and "timestamp_granularities[]" not in plain


async def test_words_as_servers_tell_them() -> None:
    words = [
        {"word": " What", "start": 0.25, "end": 0.5},
        {"word": "is", "start": 0.5, "end": 0.4},
        {"word": "no times"},
        "no word",
    ]
    answer = {"text": "What \ud83d is", "words": words, "language": "English", "segments": []}
    async with answering(Reply(body=answer)).running() as server:
        stream = opened(server)
        heard = await stream.finish()
        await closed(stream)
    told = (HeardWord("What", 250, 500), HeardWord("is", 500, 500))
    assert heard == Transcript("What \ufffd is", told, "en")


async def test_a_transcript_costs_one_request_and_only_with_new_audio() -> None:
    async with answering(Reply(body={"text": "one"}), Reply(body={"text": "two"})).running() as far:
        stream = OpenAIRecognizer(url=far.url).open(16_000)
        assert (await stream.partial()).text == (await stream.finish()).text == ""
        stream.add(SECOND[:3000])  # too short to be anything
        assert (await stream.partial()).text == ""
        assert far.bodies == []
        stream.add(SECOND)
        first = await stream.partial()
        assert await stream.partial() is first and await stream.finish() is first
        assert len(far.bodies) == 1
        stream.add(SECOND)
        assert (await stream.finish()).text == "two"
        assert len(far.bodies) == 2
        await closed(stream)
    assert far.connections == 1


async def test_a_server_without_verbose_json_is_asked_for_plain_json_from_then_on() -> None:
    words = "response_format 'verbose_json' is not compatible with model 'gpt-4o-transcribe'"
    refusal = Reply(status=400, body={"error": {"message": words, "param": "response_format"}})
    async with answering(refusal, Reply(body={"text": "Hello."})).running() as server:
        stream = opened(server)
        assert (await stream.finish()).text == "Hello."
        stream.add(SECOND)
        await stream.finish()
        await closed(stream)
    forms = [fields_of(body)["response_format"] for body in server.bodies]
    assert forms == [b"verbose_json", b"json", b"json"]


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (Reply(status=400, body={"error": {"message": "too short"}}), AdapterFailed, "too short"),
        (Reply(status=422, body={"detail": [{"msg": "no file"}]}), AdapterFailed, "no file"),
        (Reply(status=401, body={"error": "who?"}), AdapterUnavailable, "who.*check the key"),
        (Reply(status=404, body={"detail": "no such model"}), AdapterUnavailable, "no such model"),
        (Reply(body="plain words"), AdapterFailed, "no transcript: 'plain words'"),
        (Reply(body={"queued": True}), AdapterFailed, "no transcript"),
        (Reply(body={"text": None}), AdapterFailed, "no transcript"),
        (Reply(hang=True), AdapterFailed, "silent for 0.2 s"),
    ],
)
async def test_what_is_no_transcript_is_a_typed_error(
    reply: Reply, kind: type[Exception], says: str
) -> None:
    async with answering(reply).running() as server:
        stream = opened(server, answer_s=0.2 if reply.hang else 8.0)
        with pytest.raises(kind, match=says) as failed:
            await stream.finish()
        await closed(stream)
    assert server.url in str(failed.value)


async def test_a_failed_partial_transcript_leaves_the_last_one_and_the_end_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Reply(status=400, body={"error": {"message": "busy with itself"}})
    replies = [Reply(body={"text": "one"}), broken, Reply(body={"text": "one two"})]
    async with answering(*replies).running() as server:
        stream = opened(server)
        first = await stream.partial()
        stream.add(SECOND)
        assert await stream.partial() is first
        assert "busy with itself" in caplog.text
        assert (await stream.finish()).text == "one two"
        await closed(stream)
        with pytest.raises(AdapterFailed, match="closed"):
            await stream.partial()


async def test_cancelling_ends_the_request_and_leaves_the_stream_usable() -> None:
    async with answering(Reply(hang=True), Reply(body={"text": "well"})).running() as server:
        stream = opened(server)
        task = asyncio.create_task(stream.partial())
        await wait_for(lambda: bool(server.bodies))
        task.cancel()
        await server.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await stream.finish()).text == "well"
        await closed(stream)


async def test_a_missing_server_is_an_error_at_the_first_transcript_only() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        stream = OpenAIRecognizer(url=url).open(16_000)
        stream.add(SECOND)
        with pytest.raises(AdapterUnavailable, match="nobody answers"):
            await stream.finish()
        await closed(stream)


async def test_a_key_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with answering(Reply(status=401, body={"error": "no"})).running() as server:
        stream = opened(server, api_key="k-1234567")
        with pytest.raises(AdapterUnavailable) as failed:
            await stream.finish()
        await closed(stream)
    assert server.keys == ["Bearer k-1234567"]
    assert "1234567" not in caplog.text + str(failed.value)


def test_what_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AdapterUnavailable, match=r"set \$OPENAI_API_KEY"):
        load_adapter("recognizer", "openai")
    wrong: list[dict[str, Any]] = [
        {"url": "host:8000"},
        {"url": "http://host/v1?voice=x"},
        {"workers": 0},
        {"answer_s": 0},
        {"model": 3},
        {"language": 3},
    ]
    for options in wrong:
        given = {"url": "http://127.0.0.1:1/v1", **options}
        with pytest.raises(ConfigError, match=next(iter(options))):
            OpenAIRecognizer(**given)
    with pytest.raises(AdapterFailed, match="8000"):
        OpenAIRecognizer(url="http://127.0.0.1:1/v1").open(8_000)
    missing: Any = None
    monkeypatch.setitem(sys.modules, "openai", missing)
    with pytest.raises(AdapterUnavailable, match=r"specstream-client\[openai\]"):
        OpenAIRecognizer(url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("english", "en"),
        ("German", "de"),
        ("haitian creole", "ht"),
        ("pt-BR", "pt"),
        ("zh_Hant", "zh"),
        ("yue", "yue"),
        ("klingon", None),
        ("", None),
        (7, None),
    ],
)
def test_languages_are_told_by_name_or_tag(told: object, code: str | None) -> None:
    assert language_code(told) == code
