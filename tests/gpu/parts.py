"""All parts of the GPU figures, in order of worth."""

from tests.gpu import (
    captures,
    decoders,
    equality,
    exactness,
    kernels,
    machine,
    passes,
    peers,
    profiling,
    speed,
)
from tests.gpu.running import Part

__all__ = ["PARTS"]

PARTS = [
    # The first use of a package, a card and a compiler on a machine takes tens of seconds.
    Part("env", machine.env, 25),
    Part("kernels", kernels.kernels, 55),
    Part("decoder", decoders.decoder, 25),
    Part("graphs", captures.graphs, 30),
    Part("equality", equality.equality, 55, least=20, number=0.0),
    Part("halves", equality.halves, 20),
    Part("passes", passes.passes, 50, least=15),
    Part("speed8", speed.speed8, 80, least=20),
    Part("speed1", speed.speed1, 40, least=15),
    Part("peers", peers.peers, 35, least=15),
    Part("cells", exactness.cells, 60, least=12),
    Part("bits", exactness.bits, 15),
    Part("profile", profiling.profile, 20, least=12),
    Part("memory", machine.memory, 12),
    Part("sanitizer", profiling.sanitizer, 45, least=15),
    Part("doctor", machine.doctor, 45, least=15),
]
