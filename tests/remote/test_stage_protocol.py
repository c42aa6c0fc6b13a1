"""The tables of the stage protocol: alone, and the two sides together."""

import re
from collections import deque
from collections.abc import Iterator
from copy import deepcopy

import pytest

from specstream.remote.frames import (
    CancelFrame,
    ChunkFrame,
    DoneFrame,
    EndFrame,
    ErrorFrame,
    FlushFrame,
    Frame,
    Kind,
    ReadyFrame,
    RevokeFrame,
    SpeechHead,
    StartFrame,
    Violation,
    encode,
)
from specstream.remote.protocol import RULES, Role, Rule, StageRules, State
from tests.server.frames import KINDS, READY, ROLES, SAMPLES, SILENT

# state: frames that may be sent → next state; < marks frames that may be received.
TABLE = {
    "client": """
        greeting:   <ready→idle
        idle:       start→open
        open:       chunk revoke flush ack→open end→ending cancel→cancelling <out <ack→open
        ending:     ack→ending cancel→cancelling <out <ack→ending <done→done
        done:       start→open cancel→cancelling
        cancelling: <out <ack <done→cancelling <cancelled→idle
    """,
    "adapter": """
        greeting:   ready→idle
        idle:       <start→open
        open:       out ack→open <chunk <revoke <flush <ack→open <end→ending <cancel→cancelling
        ending:     out→ending done→done <ack→ending <cancel→cancelling
        done:       <ack→done <start→open <cancel→cancelling
        cancelling: cancelled→idle
    """,
}


def expected(role: Role) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {"closed": {}}
    for line in TABLE[role].strip().splitlines():
        state, _, rest = line.strip().partition(":")
        row = table.setdefault(state, {"<error" if role == "client" else "error": "closed"})
        for names, target in re.findall(r"([^→]+)→(\w+)", rest.strip()):
            for name in names.split():
                sign, bare = re.match(r"(<?)(\w+)", name).groups()  # type: ignore[union-attr]
                many = ["speech", "cue", "prompt", "flushed", "revoked"] if bare == "out" else [bare]
                row.update({sign + one: target for one in many})
    return table


@pytest.mark.parametrize("role", ROLES)
def test_the_table_is_the_documented_one(role: Role) -> None:
    given = {
        state: dict(rule.sends) | {f"<{name}": after for name, after in rule.receives.items()}
        for state, rule in RULES[role].items()
    }
    assert given == expected(role)


def at(role: Role, kind: Kind, state: State, *asked: Frame) -> StageRules:
    """Return rules that were led to ``state`` by few frames; the turn began with what is ``asked``."""
    side = StageRules(role, kind)
    start, end, cancel = StartFrame(window=3), EndFrame(), CancelFrame()
    way: dict[State, list[Frame]] = {
        "greeting": [],
        "idle": [READY],
        "open": [READY, start],
        "ending": [READY, start, end],
        "done": [READY, start, end, DoneFrame()],
        "cancelling": [READY, start, cancel],
        "closed": [ErrorFrame(code="x", message="")],
    }
    frames = [one for frame in way[state] for one in ((frame, *asked) if frame is start else (frame,))]
    for frame in frames:
        mine = isinstance(frame, (ReadyFrame, DoneFrame, ErrorFrame)) == (role == "adapter")
        side.send(frame) if mine else side.receive(encode(frame))
    assert side.state == state
    return side


def exchange(side: StageRules, frame: Frame, *, sent: bool) -> None:
    side.send(frame) if sent else side.receive(encode(frame))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ROLES)
def test_every_frame_in_every_state(role: Role, kind: Kind) -> None:
    own = {"voice": "speech", "avatar": "cue", "prompt": "prompt"}[kind]
    for state, row in expected(role).items():
        for name, sample in SAMPLES.items():
            frame = sample
            if name == "chunk" and kind == "avatar":
                frame = ChunkFrame(speech=SpeechHead.of(SILENT))
            for sent in (True, False):
                asked = {"flushed": (FlushFrame(),), "revoked": (RevokeFrame(from_char=7),)}
                live = state in ("open", "ending", "cancelling")
                side = at(role, kind, state, *(asked.get(name, ()) if live else ()))  # type: ignore[arg-type]
                if name == "ack" and side.state in ("open", "ending", "cancelling", "done"):
                    side.room -= 1  # so that there is something to acknowledge
                target = row.get(name if sent else f"<{name}")
                if name in ("speech", "cue", "prompt") and name != own:
                    target = None
                if target is None:
                    before = deepcopy(vars(side))
                    with pytest.raises(Violation) as caught:
                        exchange(side, frame, sent=sent)
                    assert caught.value.close_code == 1002
                    assert vars(side) == before, "a refused frame must leave no trace"
                else:
                    exchange(side, frame, sent=sent)
                    assert side.state == target


# --- the two tables together --------------------------------------------------------------------

Joint = tuple[State, State, tuple[str, ...], tuple[str, ...]]
Tables = dict[Role, dict[State, Rule]]
CLASSES = {"chunk", "flush", "speech", "flushed"}  # stand for their likes, to keep the search small


def moves(joint: Joint, tables: Tables, depth: int) -> Iterator[tuple[str, Joint | None]]:
    """Yield every next joint state; None is a frame that arrives where it may not."""
    client, adapter, up, down = joint
    skip = {"revoke", "cue", "prompt", "revoked", "error"}
    for name, after in tables["client"][client].sends.items():
        if name not in skip and len(up) < depth:
            yield f"client sends {name}", (after, adapter, (*up, name), down)
    for name, after in tables["adapter"][adapter].sends.items():
        if name not in skip and len(down) < depth:
            yield f"adapter sends {name}", (client, after, up, (*down, name))
    if up:
        target = tables["adapter"][adapter].receives.get(up[0])
        yield f"adapter gets {up[0]}", target and (client, target, up[1:], down)
    if down:
        target = tables["client"][client].receives.get(down[0])
        yield f"client gets {down[0]}", target and (target, adapter, up, down[1:])


def explore(tables: Tables, depth: int = 3) -> tuple[dict[Joint, set[Joint]], list[str]]:
    start: Joint = ("greeting", "greeting", (), ())
    seen: dict[Joint, set[Joint]] = {}
    wrong: list[str] = []
    todo = deque([start])
    while todo:
        joint = todo.popleft()
        if joint in seen:
            continue
        seen[joint] = set()
        for what, following in moves(joint, tables, depth):
            if following is None:
                wrong.append(f"{what} in {joint}")
            else:
                seen[joint].add(following)
                todo.append(following)
    return seen, wrong


def test_two_sides_that_keep_to_their_tables_never_clash_and_always_get_home() -> None:
    seen, wrong = explore(RULES)
    assert len(seen) > 1000
    assert not wrong, wrong[:3]
    back: dict[Joint, set[Joint]] = {joint: set() for joint in seen}
    for joint, following in seen.items():
        for other in following:
            back[other].add(joint)
    home: Joint = ("idle", "idle", (), ())
    reaches, todo = {home}, deque([home])
    while todo:
        for other in back[todo.popleft()] - reaches:
            reaches.add(other)
            todo.append(other)
    assert reaches == set(seen), "some state has no way to the next turn"


def test_nothing_in_the_tables_is_there_for_nothing() -> None:
    """Take any frame out of what a side may receive, and two honest sides clash."""
    for role in ROLES:
        for state, rule in RULES[role].items():
            for name in rule.receives.keys() & (
                CLASSES | {"ack", "end", "cancel", "done", "start", "ready"}
            ):
                less = {key: value for key, value in rule.receives.items() if key != name}
                tables: Tables = {**RULES, role: {**RULES[role], state: Rule(rule.sends, less)}}
                assert explore(tables)[1], f"{role} needs no {name} in {state}"
