"""What a WAV file holds, whatever happens to it."""

import os
import struct
import wave
from pathlib import Path

import pytest

from specstream.errors import OutputError
from specstream.playback.playout import WaveSink

RATE = 8000


async def test_a_file_has_a_valid_header_after_every_write(tmp_path: Path) -> None:
    """A process that is killed can't complete its file."""
    path, sink = tmp_path / "out.wav", WaveSink(tmp_path / "out.wav")
    for count in range(1, 5):
        await sink.write(bytes(2 * 960), RATE)
        data = path.read_bytes()
        assert len(data) == 44 + 2 * 960 * count
        assert struct.unpack("<4sL", data[:8]) == (b"RIFF", len(data) - 8)
        with wave.open(str(path)) as file:
            assert file.getnframes() == 960 * count and file.getframerate() == RATE
    await sink.aclose()
    assert path.read_bytes() == data


async def test_a_file_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def much(self: wave.Wave_write, pcm: bytes) -> None:
        self._datawritten = 2**32  # type: ignore[attr-defined]
        plain(self, pcm)

    sink, plain = WaveSink(tmp_path / "out.wav"), wave.Wave_write.writeframes
    await sink.write(bytes(960), RATE)
    monkeypatch.setattr(wave.Wave_write, "writeframes", much)
    with pytest.raises(OutputError, match="4 GiB"):
        await sink.write(bytes(960), RATE)
    await sink.aclose()


async def test_audio_is_written_to_a_pipe_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    sink = WaveSink(path)
    for count in range(1, 4):
        await sink.write(b"ab" * 100, RATE)
        assert len(os.read(reader, 10_000)) == 200 + 44 * (count == 1)
    with pytest.raises(OutputError):  # the header of a pipe can't be completed
        await sink.aclose()
    os.close(reader)
