from __future__ import annotations

from dataclasses import replace

from specstream.commands.show import tell_report
from specstream.testing import ScriptedGeneration, chunks_of


async def test_reasoning_is_counted_and_a_reply_that_never_came_is_explained() -> None:
    report = ScriptedGeneration(chunks_of("Yes."), lambda: None).report
    assert "reasoning" not in " ".join(tell_report(report, 9))
    thinking = replace(report, text="", reasoning="Hm", reasoning_tokens=3, finish_reason="length")
    lines = tell_report(thinking, 9)
    assert "of these 3 tokens of reasoning, not shown" in lines
    assert "the reply ended inside its reasoning: raise --max-tokens" in lines
    assert len(tell_report(replace(thinking, text="Yes."), 9)) == len(lines) - 1
