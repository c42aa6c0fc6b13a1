"""Each kind through the trainer: its folder loads, drafts in an engine, and changes no text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from specstream import Engine
from specstream.commands import main as cli
from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelBroken, ModelUnsupported, TrainingStopped
from specstream.metrics import Report
from specstream.model.heads.recognise import load_head
from specstream.model.load import load_model, load_tokenizer
from specstream.model.runner import ModelRunner
from specstream.training.draft import draft_config
from specstream.training.eagle import EagleTrainee
from specstream.training.options import KINDS, trainee_of
from specstream.training.run import train
from specstream.types import SamplingParams
from tests.model import families
from tests.training.made import options

SETTINGS: dict[str, dict[str, str]] = {
    "block": {"block_size": "4", "layers": "1", "anchors": "8"},
    "draft": {},
    "eagle": {"steps": "3", "vocabulary": "40"},
    "early-exit": {"layers": "1", "width": "24"},
    "medusa": {"heads": "3", "vocabulary": "40"},
    "streaming": {"streams": "3", "rank": "4", "places": "16"},
}
SETTINGS = {kind: settings for kind, settings in SETTINGS.items() if kind in KINDS}
HEADS = sorted(set(SETTINGS) - {"draft"})
PROMPTS = ("the cat sat", "rain on the roof and a dog")


def asked(root: Path, kind: str, name: str = "", **given: Any) -> Any:
    size = "1x16" if kind == "draft" else ""
    values = {"kind": kind, "size": size, "settings": SETTINGS[kind], "steps": 6} | given
    return options(root, name or f"my-{kind}", **values)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        train(asked(made, kind))
    return made


@pytest.fixture(scope="module")
def target(root: Path) -> ModelRunner:
    return ModelRunner(load_model(str(root / "target"), EngineConfig(dtype="float32", device="cpu")))


async def replies(root: Path, **engine: Any) -> list[Report]:
    found = []
    async with Engine.load(str(root / "target"), dtype="float32", **engine) as one:
        for prompt in PROMPTS:
            async with one.generate(prompt, SamplingParams(max_tokens=24)) as chunks:
                async for _ in chunks:
                    pass
                found.append(chunks.report)
    return found


def test_every_kind_is_tested_here() -> None:
    assert set(SETTINGS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(SETTINGS))
async def test_a_trained_folder_drafts_and_changes_no_text(root: Path, kind: str) -> None:
    plain = await replies(root, proposer="off")
    drafted = await replies(root, draft=str(root / f"my-{kind}"), proposer=kind)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert all(one.drafted > 0 for one in drafted)
    assert "trained parameters" in (root / f"my-{kind}" / "README.md").read_text()


@pytest.mark.parametrize("kind", HEADS)
def test_going_on_begins_with_the_weights_that_were_written(
    root: Path, target: ModelRunner, kind: str
) -> None:
    assert load_head(root / f"my-{kind}", target).kind == kind
    before = load_file(root / f"my-{kind}" / "model.safetensors")
    given = asked(root, kind, f"{kind}-more", init=root / f"my-{kind}", settings={})
    trainee = trainee_of(target, load_tokenizer(given.target), given)
    for name, value in trainee.module.state_dict().items():
        torch.testing.assert_close(value, before[name].float(), rtol=0, atol=0)
    train(given)
    after = load_file(root / f"{kind}-more" / "model.safetensors")
    assert after.keys() == before.keys()
    assert any(not torch.equal(after[name], before[name]) for name in after)
    assert all(
        torch.equal(after[name], before[name]) for name in ("t2d", "d2t", "token_map") if name in before
    )


@pytest.mark.parametrize("kind", HEADS)
def test_what_going_on_refuses(root: Path, kind: str, tmp_path: Path) -> None:
    other = HEADS[HEADS.index(kind) - 1]
    with pytest.raises(ConfigError, match="no such folder"):
        train(asked(root, kind, "never", init=tmp_path / "missing", settings={}))
    with pytest.raises(ModelUnsupported, match=f"holds a head of {other}; train {kind} goes on"):
        train(asked(root, kind, "never", init=root / f"my-{other}", settings={}))
    with pytest.raises(ModelUnsupported, match="holds no head"):
        train(asked(root, kind, "never", init=root / "my-draft", settings={}))
    shape = {"block": "block_size", "eagle": "own_head", "early-exit": "layers", "medusa": "heads"}.get(
        kind, "rank"
    )
    value = "true" if kind == "eagle" else "2" if kind != "early-exit" else "1"
    with pytest.raises(ConfigError, match=f"{shape}={value}: the folder of --init decides"):
        train(asked(root, kind, "never", init=root / f"my-{kind}", settings={shape: value}))
    config = json.loads((root / f"my-{kind}" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    modes = {file.stat().st_mode for file in (root / f"my-{kind}").iterdir()}
    assert len(modes) == 1, "whoever may read the config may read the weights"
    tensors = load_file(root / f"my-{kind}" / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises((ModelUnsupported, ModelBroken), match="300|target"):
        train(asked(root, kind, "never", init=tmp_path, settings={}))


@pytest.mark.parametrize("kind", HEADS)
def test_settings_that_cannot_be(root: Path, kind: str) -> None:
    wrong = {
        "block": ({"block_size": "1"}, {"depths": "1,1"}, {"decay": "nan"}, {"mask_token_id": "-1"}),
        "eagle": ({"steps": "0"}, {"depths": "3"}, {"kv_heads": "3"}, {"fc_norm": "yes"}),
        "early-exit": ({"layers": "2"}, {"width": "none"}),
        "medusa": ({"heads": "0"}, {"vocabulary": "some"}),
        "streaming": ({"streams": "99"}, {"stream_layers": "2"}),
    }[kind]
    for settings in wrong:
        ((name, value),) = settings.items()
        with pytest.raises(ConfigError, match=f"--set {name}={value}: it must be"):
            train(asked(root, kind, "never", settings=settings))
    with pytest.raises(ConfigError, match=f"train {kind} has no setting 'colour'; there are: "):
        train(asked(root, kind, "never", settings={"colour": "red"}))
    with pytest.raises(ConfigError, match="--size is an option of train draft"):
        train(asked(root, kind, "never", size="1x16"))


def test_a_pruned_vocabulary_is_that_of_the_replies_and_stays_when_it_goes_on(root: Path) -> None:
    def stop_after(count: int) -> Any:
        seen: list[str] = []

        def tell(what: str, done: float, says: str) -> None:
            seen.append(what)

        return tell, lambda: seen.count("training") >= count

    given = asked(root, "eagle", "stopped", checkpoint_s=0.0)
    with pytest.raises(TrainingStopped):
        train(given, *stop_after(3))
    shards = sorted((root / "stopped.training" / "replies").glob("*.pt"))
    seen = torch.zeros(258, dtype=torch.int64)
    for shard in shards:
        for reply in torch.load(shard):
            seen += torch.bincount(reply["ids"][reply["prompt"] :].long(), minlength=258)
    train(given)
    drafted = load_file(root / "stopped" / "model.safetensors")["t2d"]
    assert int(drafted.sum()) == 40
    assert int(seen[drafted].min()) >= int(seen[~drafted].max())


def test_a_large_vocabulary_is_pruned_unless_told_otherwise(
    root: Path, target: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specstream.training.batches._LARGE", 200)
    monkeypatch.setattr("specstream.training.batches._PRUNED", 30)

    def made(settings: dict[str, str]) -> EagleTrainee:
        given = asked(root, "eagle", "never", settings=settings)
        trainee = trainee_of(target, load_tokenizer(given.target), given)
        assert isinstance(trainee, EagleTrainee)
        return trainee

    whole, pruned = made({"vocabulary": "0"}), made({"own_head": "true"})
    assert len(whole.vocabulary.ids) == 258 and not whole.chooses
    assert len(made({}).vocabulary.ids) == len(pruned.vocabulary.ids) == 30 and pruned.chooses
    counts = torch.zeros(258, dtype=torch.int64)
    counts[100:130] = 1
    pruned.choose(counts)
    assert pruned.vocabulary.ids.tolist() == list(range(100, 130))
    head = target.decoder.weights.head.float()
    assert torch.equal(pruned.module.state_dict()["lm_head.weight"], head[100:130])


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_of_another_family_is_refused_with_what_to_do(
    root: Path, tmp_path: Path, kind: str
) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 300,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
    }
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(tmp_path)
    load_tokenizer(str(root / "target")).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match="can't be learnt from.* take suffix, or a small"):
        train(asked(root, kind, "never", target=str(tmp_path)))


def test_an_eagle_head_is_trained_on_a_cpu_only(root: Path, target: ModelRunner) -> None:
    given = asked(root, "eagle", "never")
    elsewhere = ModelRunner(target.model)
    elsewhere.device = torch.device("meta")
    with pytest.raises(ModelUnsupported, match="--device cpu"):
        trainee_of(elsewhere, load_tokenizer(given.target), given)


def test_an_eagle_head_goes_on_where_the_targets_matrices_are_quantised(root: Path) -> None:
    """As in learning in service: the layer from which a new head begins is not there any more."""
    given = asked(root, "eagle", "never", init=root / "my-eagle", settings={})
    model = load_model(given.target, EngineConfig(dtype="float32", device="cpu"))
    quantised = ModelRunner(model, quantize="int8")
    trainee = trainee_of(quantised, load_tokenizer(given.target), given)
    before = load_file(root / "my-eagle" / "model.safetensors")
    assert all(torch.equal(v, before[n].float()) for n, v in trainee.module.state_dict().items())


def test_several_drafts_and_heads_from_the_command_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--target", str(root / "target"), "--draft", str(root / "my-draft")]
    words = [*pair, "--draft", str(root / "my-eagle"), "--json", "--dtype", "float32"]
    texts = []
    for kind in ("off", "auto", "eagle", "draft"):
        given = ["generate", "Hi", *words, "--proposer", kind, "--max-tokens", "24"]
        assert cli.main(given) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        texts.append(found["token_ids"])
        if kind in ("eagle", "draft"):
            assert found["drafted"] > 0 and found["proposer"] == kind
    assert texts == [texts[0]] * 4


def test_auto_and_heads_are_compared_by_bench(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    line = {"id": "a", "domain": "chat", "messages": [{"role": "user", "content": PROMPTS[0]}]}
    prompts.write_text(json.dumps(line))
    folders = [root / "target", root / "my-draft", root / "my-eagle", root / "my-early-exit"]
    named = ("--target", "--draft", "--draft", "--draft")
    words = [word for pair in zip(named, map(str, folders), strict=True) for word in pair]
    arms = "own,auto,draft-2,eagle,early-exit"
    given = ["bench", *words, "--prompts", str(prompts), "--arms", arms, "--dtype", "float32"]
    given += ["--max-tokens", "10", "--threads", "1", "--json", "--out", str(tmp_path / "out")]
    assert cli.main(given) == 0, capsys.readouterr().err
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["domains"]["chat"]
    assert {row["arm"] for row in rows.values()} == set(arms.split(","))
    drafting = [row for row in rows.values() if row["arm"] != "own"]
    assert all(row["same_tokens_as_own"]["share"] == 1.0 for row in drafting)
    assert all(row["drafted"] > 0 for row in drafting if row["arm"] != "auto")


def test_texts_too_short_to_learn_from_are_passed_over(root: Path) -> None:
    """A prompt of one token and a reply of one: no draft step of a head predicts anything."""
    folder = root / "short"
    folder.mkdir()
    (folder / "replies.json").write_text('{"depths": [1, 2]}')
    one = {"ids": torch.tensor([5, 6], dtype=torch.int32), "prompt": 1}
    long = {"ids": torch.arange(2, 14, dtype=torch.int32), "prompt": 1}
    shard = [one | {"states": torch.randn(1, 2, 32)} for _ in range(6)]
    shard += [long | {"states": torch.randn(11, 2, 32)} for _ in range(2)]
    torch.save(shard, folder / "a.pt")
    for kind in HEADS:
        given = asked(root, kind, f"{kind}-short", data=None, replies=folder, batch_tokens=8, steps=7)
        assert train(given).progress.step == 7


def test_a_head_that_is_not_there_is_asked_for(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("block", "eagle", "streaming"):
        words = ["generate", "Hi", "--target", str(root / "target"), "--proposer", kind]
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert f"--proposer {kind} needs a head" in said and f"specstream train {kind}" in said


def test_a_drafts_heads_have_an_even_size_for_rotary_positions() -> None:
    sizes = {"hidden_size": 60, "intermediate_size": 96, "head_dim": 14}
    made = draft_config(ModelRunner(families.build("llama", **sizes)))
    assert made.head_dim is not None and made.head_dim % 2 == 0
