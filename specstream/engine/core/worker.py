"""The engine's thread, and the mailbox through which other threads call the engine.

One dedicated thread rather than a pool, since ``torch.inference_mode`` and the current CUDA stream are
per-thread state, and cancelling and admitting need a mailbox anyway.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from specstream.engine.core.request import Request
from specstream.errors import EngineBusy, EngineClosed, EngineFailed, SpecstreamError

if TYPE_CHECKING:
    from specstream.engine.core.step import EngineCore
from specstream.params import Manner

__all__ = ["EngineWorker"]

_MAX_MAIL = 1024
_EXIT_WAIT_S = 10.0  # how long a program's exit waits for the step under way
_log = logging.getLogger("specstream.engine")

Mail = Callable[["EngineCore"], object]


class EngineWorker:
    """Runs an `EngineCore` until it is closed.

    Every method may be called from any thread and returns at once. ``on_ready`` is called on the
    engine thread with None once the models are loaded, or with the error that prevented it;
    ``on_closed`` when the thread is about to end.

    Attributes:
        failure: What ended the thread before it was closed; None if nothing did.
    """

    def __init__(
        self,
        build: Callable[[], EngineCore],
        on_ready: Callable[[SpecstreamError | None], object],
        on_closed: Callable[[], object],
    ) -> None:
        self._build = build
        self._on_ready = on_ready
        self._on_closed = on_closed
        self._mail: queue.SimpleQueue[Mail | None] = queue.SimpleQueue()
        self._encoder = ThreadPoolExecutor(1, "specstream-encoder")  # starts its thread when needed
        self._closing = False
        self._gate = threading.Lock()  # no request may enter the mailbox after the closing notice
        self._thread = threading.Thread(target=self._run, name="specstream-engine", daemon=True)
        self._process = os.getpid()
        self.no_tools: str | None = "the engine is being loaded"
        self.places = 0
        self.manner = Manner()
        self.slowed: str | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread and, on it, the loading of the models."""
        # At exit, a daemon thread that is killed inside torch can abort the process, so end it first.
        atexit.register(self._at_exit)
        self._thread.start()

    def _at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked process has no such thread
            self.close()
            if self._thread.ident is not None:  # else the exit came before it began
                self._thread.join(_EXIT_WAIT_S)

    def submit(self, request: Request) -> None:
        """Hand a request over to the engine thread.

        Raises:
            EngineClosed: the worker is closed or closing.
            EngineBusy: the mailbox is full.
        """
        with self._gate:
            if self._closing:
                raise EngineClosed("the engine is closed")
            if self._mail.qsize() >= _MAX_MAIL:
                raise EngineBusy("the engine's mailbox is full; try again later")
            self._mail.put(lambda core: self._enter(core, request))

    def _enter(self, core: EngineCore, request: Request) -> None:
        """Queue a request; a long prompt is encoded on another thread meanwhile."""
        try:
            request.encoding = core.admission.is_long(request)
            core.submit(request)
            if request.encoding and not request.over:
                try:
                    self._encoder.submit(self._encode, core, request)
                except RuntimeError:  # the main thread has ended: Python starts no more threads
                    self._encode(core, request)
        except BaseException as error:  # a panic, too, fails this request only
            core.requests.encoded(request, error)

    def _encode(self, core: EngineCore, request: Request) -> None:
        found: BaseException | None = None
        try:
            if not request.delivery.cancelled:
                core.admission.tokenize(request, aside=True)
        except BaseException as error:  # a panic in the Rust tokenizer is not an Exception
            found = error
        self.post(lambda core: core.requests.encoded(request, found))

    def post(self, mail: Mail) -> None:
        """Run ``mail(core)`` on the engine thread between two steps; dropped after closing."""
        self._mail.put(mail)

    def wake(self) -> None:
        """Make the engine thread look for work, after a consumer has caught up or cancelled."""
        self._mail.put(lambda core: None)

    def close(self) -> None:
        """End every request as cancelled, after the step under way, then the thread. Idempotent."""
        with self._gate:
            if not self._closing:
                self._closing = True
                self._mail.put(None)

    def check(self) -> None:
        """Abort the building of an engine that was closed meanwhile; ``build`` calls this repeatedly.

        Raises:
            EngineClosed: the worker was closed.
        """
        if self._closing:
            raise EngineClosed("the engine was closed before it was ready")

    def join(self) -> None:
        """Wait for the thread to end, which takes no time once ``on_closed`` has been called."""
        self._thread.join()

    def _run(self) -> None:
        try:
            core = self._load()
            if core is not None:
                self._serve(core)
        finally:
            atexit.unregister(self._at_exit)

    def _load(self) -> EngineCore | None:
        try:
            core = self._build()
        except BaseException as error:  # a panic in Rust is not an Exception; unanswered, `start` hangs
            failure = error if isinstance(error, SpecstreamError) else None
            if failure is None:
                failure = EngineFailed(f"the engine can't start: {error!r}")
                failure.__cause__ = error
            with self._gate:
                self._closing = True
            self._on_ready(failure)
            self._on_closed()
            return None
        self.no_tools = core.admission.no_tools
        self.places = core.config.places
        self.manner = core.admission.manner
        self.slowed = core.target.slowed
        self._on_ready(None)
        return core

    def _serve(self, core: EngineCore) -> None:
        try:
            progressing, patience = False, None
            with torch.inference_mode():
                while self._read_mail(core, wait=not progressing, patience=patience):
                    progressing = core.step() or core.learn()
                    patience = None if progressing else core.scheduler.patience()
        except BaseException as error:
            _log.exception("the engine thread ends")
            self.failure = error
        finally:
            self._end(core)

    def _end(self, core: EngineCore) -> None:
        """End all requests, including those still in the mailbox, whatever ended the thread."""
        with self._gate:
            self._closing = True
        while not self._mail.empty():
            try:
                self._read_mail(core, wait=False)
            except BaseException:  # the mail after it may bring requests, whose readers wait
                _log.exception("a message to the engine broke")
        try:
            core.close(self.failure)
        except BaseException:
            _log.exception("the engine's thread couldn't clean up")
        finally:  # `stop` waits for this
            self._encoder.shutdown(wait=False, cancel_futures=True)
            self._on_closed()

    def _read_mail(self, core: EngineCore, *, wait: bool, patience: float | None = None) -> bool:
        """Run everything in the mailbox; return False at the closing notice.

        With ``wait`` and an empty mailbox, wait for mail, at most ``patience`` seconds (None: no limit).
        """
        while True:
            try:
                mail = self._mail.get(wait, patience)
            except queue.Empty:
                return True
            if mail is None:
                return False
            mail(core)
            wait = False
