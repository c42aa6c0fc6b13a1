from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path

import pytest

from specstream.commands.shared.common import (
    add_learning_options,
    add_model_options,
    add_sampling_options,
    engine_of,
    params_of,
)
from specstream.errors import ConfigError, SamplingError
from specstream.methods import OwnProposerConfig
from specstream.types import Grammar, SamplingParams
from tests.support.packages import install_proposers


def options(folder: Path, toml: str, *argv: str) -> Namespace:
    file = folder / "config.toml"
    file.write_text(toml, encoding="utf-8")
    parser = ArgumentParser()
    add_model_options(parser)
    add_sampling_options(parser)
    add_learning_options(parser)
    return parser.parse_args(["--config", str(file), *argv])


def test_every_parameter_that_toml_can_say_can_be_set_by_a_file(tmp_path: Path) -> None:
    wanted = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=7,
        max_tokens=99,
        stop=("a", "b"),
        min_p=0.1,
        typical_p=0.8,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        logit_bias={15: -2.0, 7: 1},
        bad_words=("x",),
        min_tokens=3,
        stop_token_ids=(4, 5),
        logprobs=2,
        prompt_logprobs=1,
        grammar=Grammar("regex", "[a-z]+"),
    )
    functions = {"stop_when", "processors"}
    lines = ["[sampling]"]
    for field in fields(SamplingParams):
        value = getattr(wanted, field.name)
        if field.name not in functions | {"logit_bias", "grammar"}:
            lines.append(f"{field.name} = {list(value) if isinstance(value, tuple) else value}")
    lines.append('grammar = { kind = "regex", text = "[a-z]+" }')
    lines += ["[sampling.logit_bias]", "15 = -2.0", "7 = 1"]
    assert params_of(options(tmp_path, "\n".join(lines))) == wanted


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ("logit_bias = { a = 1.0 }", ConfigError),
        ("logit_bias = 3", SamplingError),
        ('grammar = { kind = "regex", txt = "a" }', ConfigError),
        ('grammar = { kind = "xml", text = "a" }', SamplingError),
        ('grammar = "a"', SamplingError),
        ('stop = "a"', SamplingError),
        ("top_q = 1", ConfigError),
    ],
)
def test_what_a_file_gets_wrong_is_one_typed_error(
    toml: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        params_of(options(tmp_path, "[sampling]\n" + toml))


def test_options_win(tmp_path: Path) -> None:
    args = options(tmp_path, "[sampling]\ntop_k = 3\nseed = 1", "--top-k", "5", "--stop", "x")
    params = params_of(args)
    assert (params.top_k, params.seed, params.stop) == (5, 1, ("x",))


def test_learning_asks_for_consent_in_so_many_words(tmp_path: Path) -> None:
    file = "[engine.learning]\nevery = 9\nconsent = "
    given = options(tmp_path, file + "false", "--learn", "with-consent", "--learn-out", "there")
    learning = engine_of(given).config.learning
    assert learning is not None and (learning.every, learning.out) == (9, "there")
    assert engine_of(options(tmp_path, file + "true")).config.learning is not None
    assert engine_of(options(tmp_path, "")).config.learning is None
    for wrong in (["--learn", "yes"], ["--learn-out", "there"]):
        with pytest.raises(ConfigError, match="--learn with-consent"):
            engine_of(options(tmp_path, "", *wrong))


def test_a_misspelt_parameter_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key sampling.temperatur; did you mean temperature"):
        params_of(options(tmp_path, "[sampling]\ntemperatur = 0.5"))


def test_a_mistake_in_the_files_engine_table_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.toml, table engine: max_runing: .*max_running"):
        engine_of(options(tmp_path, "[engine]\nmax_runing = 4"))
    given = options(tmp_path, "", "--learn", "with-consent", "--reproducible")
    with pytest.raises(ConfigError) as caught:
        engine_of(given)
    assert "table engine" not in str(caught.value)


def test_variables_of_the_chat_template_win_over_the_files(tmp_path: Path) -> None:
    toml = "[engine.chat_template_kwargs]\nenable_thinking = true\neffort = 'low'"
    args = options(tmp_path, toml, "--chat-template-kwargs", '{"enable_thinking": false}')
    wanted = {"enable_thinking": False, "effort": "low"}
    assert engine_of(args).config.chat_template_kwargs == wanted


@pytest.mark.parametrize("text", ["enable_thinking", "[1]", '{"tokenize": true}', '{"a": NaN}'])
def test_what_can_be_no_variable_ends_before_any_model_is_loaded(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options(tmp_path, "", "--chat-template-kwargs", text)
    assert ended.value.code == 2
    assert "--chat-template-kwargs" in capsys.readouterr().err


def test_variables_in_a_file_are_checked_as_well(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chat_template_kwargs: 'tokenize' can't be"):
        engine_of(options(tmp_path, "[engine.chat_template_kwargs]\ntokenize = true"))


def test_an_installed_proposer_is_found_by_option_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_proposers(tmp_path, monkeypatch, "", {"theirs": "their_package:make"})
    table = '[engine]\nproposer = {kind = "theirs", depth = 3}'
    wanted = OwnProposerConfig(name="theirs", options={"depth": 3})
    assert engine_of(options(tmp_path, table)).config.proposer == wanted
    assert engine_of(options(tmp_path, table, "--proposer", "theirs")).config.proposer == wanted
    other = engine_of(options(tmp_path, "", "--proposer", "theirs")).config.proposer
    assert other == OwnProposerConfig(name="theirs")
    with pytest.raises(ConfigError, match=r"mtp, off, streaming, suffix, theirs\); did you mean"):
        engine_of(options(tmp_path, "", "--proposer", "their"))
