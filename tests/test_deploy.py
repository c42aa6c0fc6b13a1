"""The files in deploy/: their commands are ours, and their times fit together."""

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from specstream.commands import main as cli
from specstream.commands.shared.serving import server_config

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[1] / "deploy"


def parsed(argv: list[str]) -> Namespace:
    return cli.read_arguments(argv)


def drained(argv: list[str]) -> float:
    return server_config(parsed(argv), table=False).drain


def test_the_containers_command() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert command is not None
    argv = json.loads(command[1])
    assert server_config(parsed(argv), table=False).log_json
    assert "EXPOSE 8765" in text and ":8765/health" in text


def test_compose_waits_longer_than_replies_may_take() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    for name in ("server", "voice"):
        service = services[name]
        grace = float(service["stop_grace_period"].removesuffix("s"))
        assert drained(service["command"]) < grace, name
    voice = parsed(services["voice"]["command"])
    assert f"ws://voice:{voice.port}" == parsed(services["server"]["command"]).voice
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text("utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": ["server:8765"]}]


def test_kubernetes_sends_clients_where_they_are_served() -> None:
    text = (DEPLOY / "kubernetes" / "server.yaml").read_text("utf-8")
    deployment, service, _ = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert drained(container["args"]) + pause < pod["terminationGracePeriodSeconds"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert service["spec"]["sessionAffinity"] == "ClientIP"
    port = parsed(container["args"]).port or 8765
    assert container["ports"][0]["containerPort"] == port
