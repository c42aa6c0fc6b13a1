"""``serve`` and ``adapter``: sources of their settings, and how they stop."""

import signal
import ssl
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from specstream.client.client import Done, RealtimeClient
from specstream.commands import main as cli, serve
from specstream.commands.shared.serving import ServerConfig, keys_of, server_config, until_stopped
from specstream.config import EngineConfig
from specstream.errors import ConfigError, ConnectionFailed, EngineFailed
from specstream.server.journal.sqlite import SqliteJournal
from specstream.testing import ScriptedEngine
from tests.server.certificate import CERTIFICATE, LOCKED_KEY
from tests.server.doubles import Gate, settle, wait_for


def parsed(*argv: str) -> Namespace:
    return cli.read_arguments(argv)


def test_the_table_sets_what_the_options_leave_open(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[server]\nhost = "::1"\nport = 9000\norigins = ["https://a.example"]\nhosts = ["v.example"]\n'
        "max_sessions = 5\nmax_per_address = 2\nidle_s = 60\nlead_s = 1.5\ndrain = 3\n"
        'proxies = ["10.0.0.0/8"]\nlongest_s = 900\nresume_s = 7\nmax_frame = 2048\nbuffer_s = 9\n'
        "reuse_port = true\nlog_json = true\npreempt = true\nmax_output = 70000\n"
        'journal = "sessions"\njournal_age_s = 600\njournal_durable = true\n'
        'api_key_file = "key"\ntls_cert = "c.pem"\ntls_key = "k.pem"\n'
    )
    written = ServerConfig(
        host="::1",
        port=9000,
        origins=("https://a.example",),
        hosts=("v.example",),
        max_sessions=5,
        max_per_address=2,
        idle_s=60,
        lead_s=1.5,
        drain=3,
        proxies=("10.0.0.0/8",),
        longest_s=900,
        resume_s=7,
        max_frame=2048,
        max_output=70_000,
        buffer_s=9,
        reuse_port=True,
        log_json=True,
        preempt=True,
        journal="sessions",
        journal_age_s=600,
        journal_durable=True,
        api_key_file="key",
        tls_cert="c.pem",
        tls_key="k.pem",
    )
    assert written.model_fields_set == set(ServerConfig.model_fields), "every key is tried"
    assert server_config(parsed("serve", "--config", str(file)), table=True) == written
    options = ["--host", "127.0.0.1", "--port", "0", "--origins", "https://b.example", "null"]
    options += ["--max-sessions", "7", "--lead", "0.5", "--idle", "9", "--drain", "0"]
    config = server_config(parsed("serve", "--config", str(file), *options), table=True)
    assert config == written.model_copy(
        update={
            "host": "127.0.0.1",
            "port": 0,
            "origins": ("https://b.example", "null"),
            "max_sessions": 7,
            "lead_s": 0.5,
            "idle_s": 9.0,
            "drain": 0.0,
        }
    )
    adapter = server_config(parsed("adapter", "voice", "--config", str(file)), table=False)
    assert adapter == ServerConfig(), "the table is the server's, and so is its port"


@pytest.mark.parametrize(
    ("toml", "argv", "says"),
    [
        (
            "[server]\nmax_session = 3\n",
            [],
            "server.max_session: there is no such key; did you mean max_sessions?",
        ),
        ("[server]\norigins = 'x'\n", [], "server.origins"),
        ("[server]\nlead_s = 0\n", [], "server.lead_s"),
        ("[servers]\n", [], "unknown table 'servers'"),
        ("server = 3\n", [], "server must be a table"),
        ("", ["--max-sessions", "0"], "--max-sessions"),
        ("", ["--drain", "nan"], "--drain"),
        ("", ["--idle", "0"], "--idle"),
        ("", ["--origins", "https://a.example/"], "'https://a.example/' is no origin"),
        ("", ["--origins", "a.example"], "'a.example' is no origin"),
        ("[server]\norigins = ['https://a.example:443']\n", [], "write https://a.example, as"),
        ("", ["--hosts", "a.example", "a.example:80"], "'a.example:80' is no host name"),
        ("", ["--proxies", "10.0.0.0/33"], "'10.0.0.0/33' is no address"),
        ("", ["--hosts", "https://a.example"], "'https://a.example' is no host name"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_loaded(
    toml: str, argv: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(toml)
    assert cli.main(["serve", "--config", str(file), *argv]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("file", "says"), [("cert", "--tls-key"), ("locked", "pass phrase")])
def test_a_certificate_that_cannot_be_used_is_told_with_its_remedy(
    file: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is asked for a pass phrase: a server starts without a person."""
    end = "-----END CERTIFICATE-----\n"
    certificate = CERTIFICATE.partition(end)[0] + end
    (tmp_path / "cert").write_text(certificate)
    (tmp_path / "locked").write_text(certificate + LOCKED_KEY)
    assert cli.main(["serve", "--tls-cert", str(tmp_path / file)]) == 2
    told = capsys.readouterr().err
    assert file in told and says in told


def test_a_key_comes_from_the_option_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")

    def key(*argv: str) -> str | None:
        args = parsed("serve", *argv)
        found = keys_of(args, server_config(args, table=True))
        return found[0].secret if found else None

    monkeypatch.delenv("SPECSTREAM_API_KEY", raising=False)
    assert key() is None
    monkeypatch.setenv("SPECSTREAM_API_KEY", "from-environment")
    assert key() == "from-environment"
    assert key("--api-key-file", str(file)) == "from-file"
    assert key("--api-key-file", str(file), "--api-key", "given") == "given"
    monkeypatch.setenv("SPECSTREAM_API_KEY", "")
    with pytest.raises(ConfigError, match="SPECSTREAM_API_KEY"):
        key()
    for bad, says in ((b"\n", "hold a key"), (b"two words\n", "line 1"), (b"\xff\xfe", "no text")):
        file.write_bytes(bad)
        with pytest.raises(ConfigError, match=says):
            key("--api-key-file", str(file))
    with pytest.raises(ConfigError, match="can't read the key file"):
        key("--api-key-file", str(tmp_path / "none"))


def test_the_help_tells_who_sees_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "ps" in capsys.readouterr().out


@asynccontextmanager
async def serving(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, *argv: str
) -> AsyncGenerator[tuple[str, list[int]], None]:
    """``specstream serve`` on a scripted engine: its address, and the exit code once it has ended."""
    notes: list[str] = []
    codes: list[int] = []
    listening = anyio.Event()

    def note(text: str = "") -> None:
        notes.append(text)
        listening.set()

    @asynccontextmanager
    async def scripted(args: object) -> AsyncGenerator[ScriptedEngine, None]:
        engine.config = EngineConfig()  # type: ignore[attr-defined]
        yield engine

    async def run() -> None:
        codes.append(await serve.run_server(parsed("serve", "--port", "0", *argv)))

    monkeypatch.delenv("SPECSTREAM_API_KEY", raising=False)
    monkeypatch.setattr(serve, "text_engine_of", scripted)
    monkeypatch.setattr(serve, "note", note)
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await listening.wait()
        yield notes[0].split()[-1], codes


async def test_sigterm_lets_a_reply_finish_and_exits_with_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    engine = ScriptedEngine(["fine."], gate=gate)
    argv = ("--voice", "reference", "--drain", "60")
    async with serving(engine, monkeypatch, *argv) as (url, codes):
        async with RealtimeClient.connect(url) as client:
            reply = client.respond("Hi", audio=False)
            ended: list[Any] = []

            async def read() -> None:
                async for event in reply:
                    ended.append(event)

            async with anyio.create_task_group() as group:
                group.start_soon(read)
                while not engine.requests:
                    await anyio.lowlevel.checkpoint()
                signal.raise_signal(signal.SIGTERM)
                await settle()
                gate.open()
    assert isinstance(ended[-1], Done)
    assert ended[-1].status == "completed"
    assert codes == [0]


@pytest.mark.parametrize(
    ("run", "argv"),
    [
        (serve.run_server, ["serve", "--port", "0"]),
        (serve.run_adapter, ["adapter", "voice", "--name", "reference"]),
    ],
)
async def test_a_server_that_says_it_is_ready_can_be_stopped(
    run: Callable[[Namespace], Awaitable[int]], argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that waits for the line may send SIGTERM before the server does anything else."""
    notes: list[str] = []

    def note(text: str = "") -> None:
        notes.append(text)
        assert signal.getsignal(signal.SIGTERM) is not before, "a SIGTERM now would end the process"
        if len(notes) == 1:
            signal.raise_signal(signal.SIGTERM)

    @asynccontextmanager
    async def scripted(args: object) -> AsyncGenerator[ScriptedEngine, None]:
        engine = ScriptedEngine([])
        engine.config = EngineConfig()  # type: ignore[attr-defined]
        yield engine

    monkeypatch.delenv("SPECSTREAM_API_KEY", raising=False)
    monkeypatch.setattr(serve, "text_engine_of", scripted)
    monkeypatch.setattr(serve, "note", note)
    before = signal.getsignal(signal.SIGTERM)
    assert await run(parsed(*argv)) == 0
    assert notes[0].startswith("ready")


async def test_a_second_sigterm_does_not_wait() -> None:
    codes: list[int] = []
    draining = anyio.Event()

    async def drain(seconds: float) -> None:
        draining.set()
        await anyio.sleep_forever()

    async def stopped() -> None:
        codes.append(await until_stopped(drain, 600))

    before = signal.getsignal(signal.SIGTERM)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stopped)
            await settle()
            signal.raise_signal(signal.SIGTERM)
            await draining.wait()
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes == [130]


async def test_a_server_whose_engine_has_ended_by_itself_is_drained_and_fails() -> None:
    drained = list[float]()

    async def drain(seconds: float) -> None:
        drained.append(seconds)

    async def ended() -> None:
        raise EngineFailed("planted")

    with pytest.raises(EngineFailed, match="planted"):
        await until_stopped(drain, 7, ended=ended)
    assert drained == [7]


async def test_an_adapter_is_stopped_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = anyio.Event()
    codes: list[int] = []

    async def run() -> None:
        codes.append(await serve.run_adapter(parsed("adapter", "voice", "--name", "reference")))

    monkeypatch.delenv("SPECSTREAM_API_KEY", raising=False)
    monkeypatch.setattr(serve, "note", lambda text="": listening.set())
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await listening.wait()
        await settle()
        signal.raise_signal(signal.SIGTERM)
    assert codes == [0]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this platform has no such signal")
async def test_sighup_reads_keys_and_certificate_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys, certificate = tmp_path / "keys", tmp_path / "cert"
    keys.write_text("old\n")
    certificate.write_text(CERTIFICATE)
    loaded: list[str] = []
    plain = ServerConfig.load_certificate

    def load(self: ServerConfig, context: Any) -> None:
        plain(self, context)
        loaded.append(certificate.read_text())

    monkeypatch.setattr(ServerConfig, "load_certificate", load)
    notes: list[str] = []
    monkeypatch.setattr("specstream.commands.shared.serving.note", notes.append)
    argv = ("--api-key-file", str(keys), "--tls-cert", str(certificate), "--voice", "reference")
    trusted = ssl.create_default_context(cadata=CERTIFICATE.partition("-----BEGIN PRIV")[0])
    trusted.check_hostname = False
    async with serving(ScriptedEngine(["a.", "b."]), monkeypatch, *argv) as (url, codes):
        async with RealtimeClient.connect(url, api_key="old", tls=trusted):
            pass
        keys.write_text("new name=web\n")
        signal.raise_signal(signal.SIGHUP)
        await wait_for(lambda: len(notes) == 1)
        async with RealtimeClient.connect(url, api_key="new", tls=trusted):
            with pytest.raises(ConnectionFailed, match="401"):
                async with RealtimeClient.connect(url, api_key="old", tls=trusted):
                    pass
        keys.write_text("")
        signal.raise_signal(signal.SIGHUP)
        await wait_for(lambda: len(notes) == 2)
        assert "what was in use stays" in notes[1] and "must hold a key" in notes[1]
        async with RealtimeClient.connect(url, api_key="new", tls=trusted):
            pass
        signal.raise_signal(signal.SIGTERM)
    assert codes == [0]
    assert len(loaded) == 2


def test_a_journal_is_a_folder_or_a_database(tmp_path: Path) -> None:
    folder = ServerConfig(journal=str(tmp_path / "sessions"), journal_age_s=600).open_journal()
    assert isinstance(folder, SqliteJournal)
    assert (folder.max_age_s, folder.durable) == (600, False)
    assert ServerConfig().open_journal() is None
    for place in ("", "mysql://host/name"):
        with pytest.raises(ConfigError, match="a folder, or a database"):
            ServerConfig(journal=place).open_journal()


def test_a_journal_in_postgresql_needs_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match="pip install"):
        ServerConfig(journal="postgresql://host/name").open_journal()
