"""The server on Ray Serve: two replicas, cut sockets, killed replicas, updates under open sockets.

Needs Ray: ``pytest -m ray tests/commands/test_cluster.py``. With
``RAY_SERVE_ENABLE_HA_PROXY=1`` all of it goes through HAProxy; ``RAY_KILLS=50`` kills more often.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any, NamedTuple

import anyio
import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from specstream.client import RealtimeClient
from specstream.client.client import Done, TextDelta
from specstream.commands.cluster import ClusterConfig, app
from specstream.errors import ConfigError

ray = pytest.importorskip("ray", reason="Ray is not installed")
serve = pytest.importorskip("ray.serve")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(1800),  # fifty kills
    pytest.mark.filterwarnings("default"),  # Ray's own
]

PLACES = 4  # of each replica
MOST = 16 << 20  # bytes that a session is sent whose client acknowledges nothing


class Cluster(NamedTuple):
    port: int
    journal: Path

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def run(self, **changed: Any) -> None:
        """(Re)deploy; Ray replaces all replicas whose options have changed."""
        config = self.journal.parent / "specstream.toml"
        config.write_text(f'[engine]\nmode = "reproducible"\n[server]\nmax_output = {MOST}\n')
        options = f"--config {config} --journal {self.journal} --max-sessions {PLACES} "
        arguments = {"replicas": 2, "cpus": 0.2, "stop_s": 60, **changed}
        arguments["options"] = options + arguments.get("options", "")
        serve.run(app(arguments), name="talk", route_prefix="/")

    async def whole(self) -> None:
        """Wait until both replicas run."""
        while len(replicas()) != 2 or self.running() != 2:  # noqa: ASYNC110  # Ray tells nobody
            await anyio.sleep(0.2)

    def running(self) -> int:
        deployed = serve.status().applications["talk"].deployments["specstream"]
        return sum(n for state, n in deployed.replica_states.items() if state == "RUNNING")


def replicas() -> list[psutil.Process]:
    """The processes of the replicas."""
    processes = psutil.process_iter(["cmdline"])
    return [one for one in processes if "ServeReplica" in " ".join(one.info["cmdline"] or ())]


def memory() -> int:
    """Bytes of the replicas and the proxies."""
    named = [(one, " ".join(one.info["cmdline"] or ())) for one in psutil.process_iter(["cmdline"])]
    parts = ("ServeReplica", "ProxyActor", "HAProxyManager", "haproxy ")
    return sum(one.memory_info().rss for one, name in named if any(p in name for p in parts))


def serving() -> psutil.Process:
    """The replica that has a session's journal open."""
    for process in replicas():
        files = Path(f"/proc/{process.pid}/fd")
        if any(".session" in os.readlink(fd) for fd in files.iterdir() if fd.exists()):
            return process
    raise AssertionError("no replica serves a session")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster, None, None]:
    """One cluster for the run, in a folder and at ports of its own; only it is ended."""
    folder = Path("/tmp") / f"r{os.getpid()}"  # short: names of sockets have a limit
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    here = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join((here, f"{here}/adapters"))
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        _temp_dir=str(folder),
        object_store_memory=10**8,
        log_to_driver=False,
    )
    made = Cluster(8000 + os.getpid() % 1000, tmp_path_factory.mktemp("cluster") / "journal")
    serve.start(http_options={"host": "127.0.0.1", "port": made.port})
    made.run()
    try:
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()


QUESTION = "Tell me a story."


async def story(client: RealtimeClient) -> tuple[str, Done]:
    text, done = "", None
    async for event in client.respond(QUESTION, audio=False):
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, Done):
            done = event
    assert done is not None
    return text, done


@pytest.mark.parametrize("argument", [{"option": "--port 1"}, {"replicas": 0}, {"options": "--lead x"}])
def test_a_wrong_argument_is_refused_where_it_was_given(argument: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, SystemExit)):
        app(argument)
    assert ClusterConfig().replicas == 1


def test_it_is_ready(cluster: Cluster) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/ready", timeout=10) as answer:
        assert answer.status == 200


async def test_places_of_clients_that_are_cut_are_free_at_once(cluster: Cluster) -> None:
    """A hundred clients go without a word, in mid-reply: far more than there are places."""
    slowest = 0.0
    for _ in range(100):
        began = time.perf_counter()
        socket = await connect(f"{cluster.url}/v1/realtime", proxy=None)
        assert json.loads(await socket.recv())["type"] == "session.created"
        slowest = max(slowest, time.perf_counter() - began)
        response = {"output_modalities": ["text"]}
        await socket.send(json.dumps({"type": "response.create", "response": response}))
        assert json.loads(await socket.recv())["type"] == "response.created"
        socket.transport.abort()
    assert slowest < 5.0, "nobody waited for a place of one that was cut"
    await anyio.sleep(1.0)
    async with AsyncExitStack() as stack:  # every place is free again
        for _ in range(2 * PLACES):
            socket = await stack.enter_async_context(connect(f"{cluster.url}/v1/realtime", proxy=None))
            assert json.loads(await socket.recv())["type"] == "session.created"


async def test_a_client_that_reads_nothing_costs_bounded_memory(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    """A proxy may read on for the client, so what it is sent is bounded; no two payloads are alike."""
    random, before, peak, sent = Random(5), memory(), 0, 0
    url = f"{cluster.url}/v1/realtime"
    async with connect(url, proxy=None, max_size=None, max_queue=1, ping_interval=None) as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"

        async def flood() -> None:
            nonlocal sent
            for number in range(60):
                part = {"type": "input_text", "text": random.randbytes(200_000).hex()}
                item = {"type": "message", "role": "user", "content": [part], "id": f"item{number}"}
                for message in (
                    {"type": "conversation.item.create", "item": item},
                    {"type": "conversation.item.delete", "item_id": item["id"]},
                ):
                    await socket.send(json.dumps(message))
                sent += 400_000

        async with anyio.create_task_group() as group:
            group.start_soon(flood)
            for _ in range(125):  # 25 s; Ray's own proxy cuts a client that reads nothing for 60
                peak = max(peak, memory())
                await anyio.sleep(0.2)
            group.cancel_scope.cancel()
        read, last = 0, ""
        try:
            async for frame in socket:
                read, last = read + len(frame), str(frame)
        except ConnectionClosed:
            pass
    record_property("peak_mb", round((peak - before) / 1e6))
    record_property("sent_mb_read_mb", (sent // 1_000_000, read // 1_000_000))
    record_property("last", last[:200])
    assert read < MOST + (2 << 20)
    assert (socket.close_code, '"output_limit"' in last) == (1008, True)
    assert peak - before < 6 * MOST


async def test_a_killed_replicas_session_goes_on_at_the_other(cluster: Cluster) -> None:
    """At random points of a reply: the same words as without, within five seconds."""
    async with RealtimeClient.connect(cluster.url) as client:
        whole, _ = await story(client)
    chance, waits = Random(7), list[float]()
    for _ in range(int(os.environ.get("RAY_KILLS", "5"))):
        await cluster.whole()
        async with RealtimeClient.connect(cluster.url) as client:
            at, events, text, done, killed = chance.randint(1, 30), 0, "", None, 0.0
            async for event in client.respond(QUESTION, audio=False):
                events += 1
                if killed:
                    waits.append(time.perf_counter() - killed)
                    killed = 0.0
                if events == at:
                    serving().kill()
                    killed = time.perf_counter()
                if isinstance(event, TextDelta):
                    text += event.text
                elif isinstance(event, Done):
                    done = event
            assert done is not None and done.status == "completed"
            assert text == whole
    assert max(waits) < 5.0, waits


async def test_an_update_and_a_scaling_down_cut_no_socket(cluster: Cluster) -> None:
    """The session's replica waits for its end; meanwhile the others are replaced."""
    before = {process.pid for process in replicas()}
    update = partial(cluster.run, options="--drain 1", replicas=1)
    async with anyio.create_task_group() as group:
        async with RealtimeClient.connect(cluster.url, resume_s=0) as client:  # won't come back
            group.start_soon(anyio.to_thread.run_sync, update)
            stories = 0
            while stories < 5 or {process.pid for process in replicas()} <= before:
                _, done = await story(client)  # the last ones may fill the model's context
                assert done.status in ("completed", "incomplete") and done.reason != "server_restarted"
                stories += 1
    cluster.run()


async def test_a_small_message_is_hardly_later_than_without_ray(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    times = list[float]()
    async with connect(f"{cluster.url}/v1/realtime", proxy=None) as socket:
        await socket.recv()
        for _ in range(200):
            began = time.perf_counter()
            await socket.send('{"type": "conversation.item.retrieve", "item_id": "none"}')
            assert json.loads(await socket.recv())["type"] == "error"
            times.append(time.perf_counter() - began)
    p99 = quantiles(times, n=100)[98]
    record_property("p99_ms", round(1e3 * p99, 2))
    assert p99 < 0.1
