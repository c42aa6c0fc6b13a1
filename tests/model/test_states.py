"""Hidden states of a pass: the residual stream after some layers, for every token."""

import pytest
import torch

from specstream.errors import ModelUnsupported
from specstream.model.forward import Extras, ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from tests.model.families import FAMILY, build, text

pytestmark = pytest.mark.usefixtures("passes")


@torch.inference_mode()
def wanted(runner: ModelRunner, ids: torch.Tensor, depth: int) -> torch.Tensor:
    """The model's own states ``[n, hidden]``: what layer ``depth`` gets, or the final norm."""
    inner = runner.model.model
    heard = inner.layers[depth] if depth < len(inner.layers) else inner.norm
    seen: list[torch.Tensor] = []
    hook = heard.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].clone()))
    runner.model(input_ids=ids.unsqueeze(0), use_cache=False)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("name", FAMILY)
@torch.inference_mode()
def test_states_are_the_models_own_at_every_depth(name: str) -> None:
    runner = ModelRunner(build(name))
    ids, others = text(12), text(7, 9)
    cache = runner.new_cache()
    runner.forward([ForwardInput(ids[:4], cache)])
    inputs = [ForwardInput(ids[4:], cache, 3), ForwardInput(others, runner.new_cache())]
    plain = runner.forward([ForwardInput(ids, runner.new_cache(), 3)]).logits[0]
    made = runner.forward(inputs, Extras((0, 1, 2)))
    states, second = made.states
    torch.testing.assert_close(made.logits[0], plain, rtol=1e-5, atol=1e-4)
    assert states.shape == (8, 3, 32)
    for depth in range(3):
        own = wanted(runner, ids, depth)[4:]
        torch.testing.assert_close(states[:, depth], own, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(second[:, depth], wanted(runner, others, depth), rtol=1e-5, atol=1e-4)


@torch.inference_mode()
def test_a_trees_states_are_those_of_its_paths() -> None:
    runner, tree = ModelRunner(build("llama")), Tree((-1, -1, 0, 1))
    prompt, nodes = text(5), text(4, 8)
    item = ForwardInput(torch.cat([prompt, nodes]), runner.new_cache(), 5, tree)
    (states,) = runner.forward([item], Extras((2, 1))).states
    for node, path in enumerate(tree.paths):
        own = wanted(runner, torch.cat([prompt, nodes[list(path)]]), 2)[-1]
        torch.testing.assert_close(states[5 + node, 0], own, rtol=1e-5, atol=1e-4)


def test_what_can_not_give_states_is_refused_by_name() -> None:
    with pytest.raises(ModelUnsupported, match="LlamaForCausalLM"):
        ModelRunner(build("llama"), lean=False).check_states((1,))
    with pytest.raises(ModelUnsupported, match="reproducible"):
        ModelRunner(build("llama"), fixed_width=8, context_length=64).check_states((1,))
    with pytest.raises(ModelUnsupported, match="2 layers; there are no states at 3"):
        ModelRunner(build("llama")).check_states((3,))
