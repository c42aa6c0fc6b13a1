"""Keys with quotas, client secrets, and what a key's account is charged."""

import json
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from specstream.errors import ConfigError, EngineBusy
from specstream.realtime.settings import SessionSettings
from specstream.server import Key, KeyRing
from specstream.server.keys import ApiCaller, ClientSecrets, KeyAccount, read_keys
from specstream.testing import ScriptedEngine
from tests.server.doubles import Stand, wait_for

HI: list[Any] = [{"role": "user", "content": "Hi"}]
DAY = 86_400


class Time:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_file_of_keys() -> None:
    text = "# whose\n\nabc\nk2 name=web sessions=8 tokens_per_day=1000 until=2027-01-31T12:00+01:00\n"
    first, second = read_keys(text, "keys.txt")
    assert (first.secret, first.name, first.sessions) == ("abc", "key 1", None)
    until = datetime(2027, 1, 31, 11, tzinfo=UTC)
    assert (second.name, second.sessions, second.tokens_per_day, second.until) == (
        *("web", 8, 1000),
        until,
    )
    assert "k2" not in repr(second)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# none\n", "must hold a key"),
        ("secret word\n", "line 1: after a key come name="),
        ("a\nsecret session=3\n", "line 2: .*did you mean sessions"),
        ("secret sessions=many\n", "sessions must be a whole number"),
        ("secret sessions=0\n", "at least 1"),
        ("secret until=tomorrow\n", "line 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_without_a_key(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_keys(text, "keys.txt")
    assert "keys.txt" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_quotas_are_of_a_day_and_survive_a_change_of_keys() -> None:
    time = Time()
    ring = KeyRing([Key("a", "web", tokens_per_day=10), Key("b", "old")], time)
    assert ring.find(["x"]) is None and ring.find([]) is None
    caller = ring.find(["x", "a"])
    old = ring.find(["b"])
    assert caller is not None and old is not None
    caller.account.spend(9)
    assert caller.account.refusal() is None
    caller.account.spend(1)
    assert "'web' has used its 10 tokens" in str(caller.account.refusal())
    ring.replace([Key("a", "web", tokens_per_day=20), Key("c")])
    assert caller.account.refusal() is None, "the same account with its new quota"
    assert "has expired" in str(old.account.refusal()), "its sessions begin nothing more"
    assert ring.find(["b"]) is None
    caller.account.spend(10)
    assert caller.account.refusal() is not None
    time.now += DAY
    assert caller.account.refusal() is None
    ring.replace([])
    assert ring.find([]) is not None, "without keys everybody may come in"


def test_a_key_expires() -> None:
    time = Time()
    until = datetime.fromtimestamp(time.now + 60, UTC)
    caller = KeyRing([Key("a", until=until)], time).find(["a"])
    assert caller is not None and caller.account.refusal() is None
    time.now += 60
    assert "expired" in str(caller.account.refusal())


def test_client_secrets_expire_and_are_bounded() -> None:
    time = Time()
    secrets, caller = ClientSecrets(time), ApiCaller(KeyAccount())
    settings = SessionSettings(type="realtime")
    value, until = secrets.issue(caller, 60, settings)
    assert until == int(time.now) + 60
    found = secrets.find(["x", value])
    assert found is not None and found.account is caller.account and found.session is settings
    for _ in range(4095):
        secrets.issue(caller, 600, settings)
    with pytest.raises(EngineBusy, match="4096 client secrets of this key are good") as caught:
        secrets.issue(caller, 60, settings)
    assert caught.value.retry_s == 60
    assert secrets.find([value]) is found, "none is forgotten for another"
    secrets.issue(ApiCaller(KeyAccount()), 60, settings)  # another key's
    time.now += 60
    assert secrets.find([value]) is None
    secrets.issue(caller, 60, settings)


def test_the_settings_of_client_secrets_are_bounded() -> None:
    secrets, caller = ClientSecrets(), ApiCaller(KeyAccount())
    settings = SessionSettings(type="realtime", instructions="x" * (1 << 20))
    for _ in range(15):
        secrets.issue(caller, 60, settings)
    with pytest.raises(EngineBusy, match="15 client secrets"):
        secrets.issue(caller, 60, settings)


def client_of(stand: Stand, key: str) -> openai.AsyncOpenAI:
    base = f"http://127.0.0.1:{stand.port}/v1"
    return openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0)


async def test_a_client_secret_opens_sessions_with_its_settings_and_nothing_else() -> None:
    stand = Stand(ScriptedEngine(["fine."]), voice=None, keys=[Key("k", "web", sessions=1)])
    async with stand.running(), client_of(stand, "k") as client:
        session: Any = {"type": "realtime", "instructions": "Be brief."}
        expires: Any = {"anchor": "created_at", "seconds": 30}
        made = await client.realtime.client_secrets.create(expires_after=expires, session=session)
        assert made.value.startswith("ek_") and made.expires_at > 0
        assert made.session.to_dict()["instructions"] == "Be brief."
        protocols: Any = ["realtime", f"openai-insecure-api-key.{made.value}"]
        async with stand.client(subprotocols=protocols) as wire:
            assert wire.seen[0]["session"]["instructions"] == "Be brief."
            assert (await wire.reply("Hi"))["status"] == "completed"
            with pytest.raises(InvalidStatus, match="503"):  # its key has one session
                async with connect(stand.url + "?token=k", proxy=None):
                    pass
            with pytest.raises(openai.RateLimitError, match="'web' has its 1 sessions"):
                await client.models.list()
        async with client_of(stand, made.value) as browser:
            with pytest.raises(openai.AuthenticationError):
                await browser.models.list()
        await wait_for(lambda: not stand.server.counters.sessions)
        wrong: Any = {"type": "realtime", "instruction": "x"}
        with pytest.raises(openai.BadRequestError) as caught:
            await client.realtime.client_secrets.create(session=wrong)
        assert caught.value.param == "session.instruction"


async def test_a_key_pays_for_its_tokens_over_both_ways() -> None:
    keys = [Key("k", "web", tokens_per_day=3), Key("other")]
    stand = Stand(ScriptedEngine(["one two.", "three four."]), voice=None, keys=keys)
    async with stand.running(), stand.client("?token=k") as wire, client_of(stand, "k") as client:
        async with connect(stand.url + "?token=k&resumable=1", proxy=None) as socket:
            token = json.loads(await socket.recv())["specstream"]["resume"]["token"]
            socket.transport.abort()
        await wire.reply("Hi")
        await client.chat.completions.create(model="specstream", messages=HI)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="specstream", messages=HI)
        assert caught.value.code == "insufficient_quota"
        error = await wire.refused("response.create", response={"conversation": "none"})
        assert error["code"] == "insufficient_quota"
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(stand.url + "?token=k", proxy=None):
                pass
        for query in ("xresume=1", "model=resume=", "resume=&seq=1"):  # nothing that goes on
            with pytest.raises(InvalidStatus, match="403"):
                async with connect(f"{stand.url}?token=k&{query}", proxy=None):
                    pass
        away = f"{stand.url}?token=k&resume={token}&seq=0"
        async with connect(away, proxy=None) as socket:  # a session that has begun goes on
            assert json.loads(await socket.recv())["type"] == "specstream.resumed"
        async with client_of(stand, "other") as another:
            assert await another.chat.completions.create(model="specstream", messages=HI)


async def test_a_key_that_asks_for_too_much_over_http_is_told_when_to_come_again() -> None:
    stand = Stand(ScriptedEngine(["one."]), voice=None, keys=["k", "other"], max_sessions=2)
    async with stand.running(), client_of(stand, "k") as client, client_of(stand, "other") as calm:
        statuses = set()
        for _ in range(60):  # a share of one connection: 800 small frames, 20 a request
            try:
                await client.models.list()
            except openai.RateLimitError as error:
                statuses.add((error.code, int(error.response.headers["retry-after"]) >= 1))
                break
        assert statuses == {("rate_limit_exceeded", True)}
        assert await calm.models.list()
