"""``specstream verify`` on a small pair in a folder: it says yes when all holds, and no when not."""

import json
import re
from collections.abc import Sequence
from unittest import mock

import pytest

from specstream.commands.main import main
from specstream.drafting.proposers import build_proposer
from specstream.engine import build
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from tests.exactness.bugs import ArgmaxDraft
from tests.support.tiny import save_pair

pytestmark = pytest.mark.slow

CLAIMS = 5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model pair as folders, and the options that name it."""
    target, draft = save_pair(tmp_path_factory.mktemp("pair"))
    return ["--target", str(target), "--draft", str(draft)]


def verify(options: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = main(["verify", "--runs", "40", "--tokens", "80", "--json", *options])
    out = capsys.readouterr().out.splitlines()
    values: dict[str, object] = json.loads(out[-1])
    assert len(out) == CLAIMS + 1
    return code, values


def claims(values: dict[str, object]) -> dict[str, dict[str, object]]:
    found = values["claims"]
    assert isinstance(found, list)
    return {claim["claim"]: claim for claim in found}


@pytest.mark.parametrize("proposer", ["draft", "suffix"])
def test_a_sound_pair_is_called_sound(
    pair: list[str], proposer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, values = verify([*pair, "--proposer", proposer], capsys)
    assert code == 0
    assert values["holds"] is True
    found = claims(values)
    assert len(found) == CLAIMS
    rules = found["exact by rule"]["details"]
    assert isinstance(rules, dict)
    assert ("ratio" in rules["max_error"]) == (proposer == "draft")
    bits = found["bit-identical in the reproducible mode"]["details"]
    assert isinstance(bits, dict)
    assert bits.keys() == {"float32", "bfloat16"}
    parameters = found["every sampling parameter is honoured or refused"]["details"]
    assert isinstance(parameters, dict)
    assert {"min_p", "logit_bias", "repetition_penalty"} <= set(parameters["supported"])
    assert "num_beams" in parameters["refused"]


def test_a_target_without_a_draft_is_checked_with_lookup(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, values = verify([*pair[:2], "--runs", "10", "--dtype", "float32"], capsys)
    assert (code, values["proposer"], values["draft"]) == (0, "suffix", None)


def test_a_draft_that_lies_about_q_is_caught(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    honest = build_proposer
    with mock.patch.object(build, "build_proposer", lambda *args: ArgmaxDraft(honest(*args))):
        code, values = verify([*pair, "--runs", "200", "--dtype", "float32"], capsys)
    assert code == 1
    found = claims(values)
    assert not found["samples have the target's law"]["holds"]
    # The reproducible mode trusts no q.
    assert found["bit-identical in the reproducible mode"]["holds"]


def test_a_greedy_text_that_parts_without_a_tie_is_caught(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A target whose passes of several tokens are off by far more than rounding in one row."""
    right = ModelRunner.forward

    def off(self: ModelRunner, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        made = right(self, inputs, extras)
        if self.fixed_width is not None:
            return made
        return ForwardOutput([r.roll(1, -1) if 1 < r.shape[0] < 5 else r for r in made.logits])

    with mock.patch.object(ModelRunner, "forward", off):
        code, values = verify([*pair, "--runs", "1", "--dtype", "float32"], capsys)
    assert code == 1
    assert not claims(values)["greedy text is the target's, or parts where rounding decides"]["holds"]


def test_a_sample_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--runs", "0"]) == 2
    assert "--runs" in capsys.readouterr().err


def test_too_few_runs_say_so_and_how_many_are_needed(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["verify", "--runs", "5", "--tokens", "1", "--dtype", "float32", *pair]
    assert main([*argv, "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    (line,) = [line for line in out[:-1] if "samples have the target's law" in line]
    told = re.search(r"are too few: .*; (\d+) replies to each are needed", line)
    assert line.startswith("?   ") and told is not None
    found = claims(json.loads(out[-1]))
    assert [name for name, claim in found.items() if not claim["conclusive"]] == [
        "samples have the target's law"
    ]
    assert int(told[1]) > 5
    assert main([*argv[:2], told[1], *argv[3:]]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in out if "samples have the target's law" in line] == ["yes "]


@pytest.mark.parametrize("command", [["verify"], ["adapter", "voice"]])
def test_sampling_options_that_would_be_ignored_are_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--temperature", "0.5"])
    assert ended.value.code == 2
    assert "unknown option '--temperature'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([command[0], "--help"])
    shown = capsys.readouterr().out
    assert "--target" in shown and "--seed" not in shown and "--top-p" not in shown
