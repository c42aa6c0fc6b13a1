"""The speech of one reply, made while it is written."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from livekit.agents import APIConnectOptions, APITimeoutError, tts, utils
from specstream import Chunk, Event, Phrase, Span, Speech
from specstream.errors import AdapterFailed, SpecstreamError
from specstream.stages import Pipeline, StageFailed

from .faults import api_error
from .words import TimedWords

__all__ = ["SynthesizeStream"]

_SILENCE_S = 0.01  # of audio for a text without a word, since LiveKit takes none for a failure


class SynthesizeStream(tts.SynthesizeStream):
    """Speaks what is written to it, until the first flush or the end of input.

    Closing it stops the voice within one buffer. The first audio must come within
    ``conn_options.timeout`` after the first phrase.
    """

    def __init__(
        self, service: tts.TTS[Any], *, pipeline: Pipeline, conn_options: APIConnectOptions
    ) -> None:
        super().__init__(tts=service, conn_options=conn_options)
        self._pipeline = pipeline

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        rate = self._tts.sample_rate
        output_emitter.initialize(
            request_id=utils.shortuuid("specstream_"),
            sample_rate=rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        words, samples, begun = TimedWords(), 0, False
        output_emitter.start_segment(segment_id=utils.shortuuid("segment_"))
        try:
            async with (
                asyncio.timeout(None) as limit,
                self._pipeline.run(self._written(words)) as events,
            ):
                async for event in events:
                    if isinstance(event.item, Phrase) and limit.when() is None and not begun:
                        now = asyncio.get_running_loop().time()
                        limit.reschedule(now + self._conn_options.timeout)
                    speech = self._speech_of(event)
                    if speech is None:
                        continue
                    if told := words.spoken(speech):
                        output_emitter.push_timed_transcript(told)
                    if speech.pcm:
                        output_emitter.push(speech.pcm)
                        samples, begun = speech.samples.end, True
                        limit.reschedule(None)
        except TimeoutError:
            raise APITimeoutError(retryable=True) from None
        except SpecstreamError as error:
            raise api_error(error, begun=begun) from error
        if rest := words.rest(samples, rate):
            output_emitter.push_timed_transcript(rest)
        if not begun and self._pushed_text:
            output_emitter.push(bytes(2 * int(rate * _SILENCE_S)))
        output_emitter.end_segment()

    async def _written(self, words: TimedWords) -> AsyncGenerator[Chunk, None]:
        """What is written to this stream, as if a model wrote it in no tokens."""
        none, at = Span(0, 0), 0
        async for text in self._input_ch:
            if not isinstance(text, str):  # a flush: LiveKit takes one segment a stream
                break
            words.write(text)
            yield Chunk(text, (), none, Span(at, at + len(text)))
            at += len(text)
        yield Chunk("", (), none, Span(at, at), finish_reason="stop")

    def _speech_of(self, event: Event) -> Speech | None:
        """The speech in an event, if it has any.

        Raises:
            SpecstreamError: the voice failed, or speaks at another rate than was said.
        """
        item = event.item
        if isinstance(item, StageFailed):
            raise item.error
        if isinstance(item, Phrase):
            self._mark_started()
        if not isinstance(item, Speech):
            return None
        if item.pcm and item.sample_rate != self._tts.sample_rate:
            raise AdapterFailed(
                f"the voice speaks at {item.sample_rate} samples a second, but sample_rate is "
                f"{self._tts.sample_rate}"
            )
        return item
