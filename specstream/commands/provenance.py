"""``specstream provenance``: who signed an audio file and what made it; and the signer of `say`."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import ssl
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specstream import __version__
from specstream.checks import writing
from specstream.commands.shared.output import print_json
from specstream.commands.shared.terminal import adding_to
from specstream.errors import ConfigError, OutputError

__all__ = ["SpeechSigner", "add_provenance_options", "add_signing_options", "read_manifest", "run"]

_SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
_MADE_BY = "org.specstream.speech"  # the assertion that names the model and the voice
_MAKERS = ("model", "voice", "mark")
_UNTRUSTED = "signingCredential.untrusted"
_KINDS = ("es256", "ps256", "es384", "es512", "ed25519")  # of keys, the usual ones first
_BEGIN = "-----BEGIN CERTIFICATE-----"
_INSTALL = "pip install 'specstream-sdk[provenance]'"


def add_provenance_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = adding_to(parser)
    add("file", "an audio file: .wav, .mp3, .flac or .m4a")
    trust = "PEM file of the authorities whose certificates are trusted (default: none is)"
    add("--trust FILE", trust)
    add("--json", "one JSON object as the last line", action="store_true")


def add_signing_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that writes audio files."""
    add = adding_to(parser, "provenance")
    chain = "the signer's first, then those of its authorities"
    add("--sign-cert FILE", f"sign speech.wav (C2PA) with these certificates (PEM): {chain}")
    add("--sign-key FILE", "the certificate's key (PEM), if not in its file")


async def run(args: argparse.Namespace) -> int:
    """Print what the file's manifest says; return 1 if it has none, or a broken one."""
    found = read_manifest(Path(args.file), None if args.trust is None else Path(args.trust))
    if args.json:
        print_json(found)
    else:
        print("\n".join(_lines(found)))
    return 0 if found["state"] in ("valid", "trusted") else 1


def _lines(found: Mapping[str, Any]) -> list[str]:
    told = {
        "none": "there is no manifest: nothing says who made this file, or how",
        "broken": "BROKEN: the file or its manifest was changed, or its signature isn't good",
        "valid": "valid: unchanged since it was signed; nobody vouches for the signer (see --trust)",
        "trusted": "valid: unchanged since it was signed, by a signer of a trusted authority",
    }
    lines = [f"{'manifest':14}{told[found['state']]}"]
    for label in ("signer", "issuer", "generator", "action", "source", *_MAKERS):
        if found.get(label):
            lines.append(f"{label:14}{found[label]}")
    return [*lines, *(f"{'problem':14}{problem}" for problem in found["problems"])]


def read_manifest(path: Path, trust: Path | None = None) -> dict[str, Any]:
    """Read and verify the C2PA manifest of a file, without a network.

    Returns:
        ``state``: ``"none"``, ``"broken"``, ``"valid"``, or ``"trusted"`` if an authority of ``trust``
        (a PEM file) vouches for the signer. ``problems``: why it is broken. As far as the manifest
        tells them: ``signer``, ``issuer`` (its organisation), ``generator``, ``action``, ``source``
        (C2PA's digital source type), ``model``, ``voice``, ``mark``.

    Raises:
        ConfigError: a file can't be read, or it is of a kind that has no manifests.
            Or the extra ``provenance`` is missing.
    """
    c2pa, data = _library(), _read(path, "the audio file")
    kind = path.suffix.lower().removeprefix(".")
    if kind not in c2pa.Reader.get_supported_mime_types():
        raise ConfigError(f"{path}: such a file has no manifest; .wav, .mp3, .flac and .m4a may")
    settings: dict[str, Any] = {"verify": {"remote_manifest_fetch": False}}
    if trust is not None:
        anchors = _read(trust, "the authorities").decode("utf-8", "replace")
        if _BEGIN not in anchors:
            raise ConfigError(f"{trust} holds no certificate in PEM")
        _check_certificates(anchors, trust)
        settings["trust"] = {"user_anchors": anchors}
    try:
        with c2pa.Context.from_dict(settings) as context:
            with c2pa.Reader(kind, io.BytesIO(data), context=context) as reader:
                return _found(json.loads(reader.json()))
    except c2pa.C2paError as error:
        if str(error).startswith("ManifestNotFound"):
            return {"state": "none", "problems": []}
        if b"c2pa" not in data:
            raise ConfigError(f"{path} is no such file, or damaged: {error}") from None
        return {"state": "broken", "problems": [str(error)]}


def _check_certificates(text: str, path: Path) -> None:
    """Refuse authorities that can't be read: the library would take the signed file for a broken one."""
    for number, rest in enumerate(text.split(_BEGIN)[1:], 1):
        one = (_BEGIN + rest).encode("ascii", "ignore").decode()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=one)
        except (ValueError, ssl.SSLError):
            raise ConfigError(
                f"certificate {number} of {path} can't be read; is the file whole?"
            ) from None


def _found(store: Mapping[str, Any]) -> dict[str, Any]:
    """What the active manifest of a store says, in the words of `read_manifest`."""
    active: dict[str, Any] = store.get("manifests", {}).get(store.get("active_manifest"), {})
    assertions = {one["label"]: one.get("data", {}) for one in active.get("assertions", ())}
    made: dict[str, Any] = assertions.get(_MADE_BY, {})
    actions = [
        action
        for label, data in assertions.items()
        if label.startswith("c2pa.actions")
        for action in data.get("actions", ())
    ]
    signed = active.get("signature_info", {})
    generator: Mapping[str, Any] = next(iter(active.get("claim_generator_info", ())), {})
    state = {"Valid": "valid", "Trusted": "trusted"}.get(store.get("validation_state", ""), "broken")
    found: dict[str, Any] = {"state": state, "problems": []}
    if state == "broken":
        found["problems"] = [
            f"{one['code']}: {one.get('explanation', '')}"
            for one in store.get("validation_status", ())
            if one["code"] != _UNTRUSTED
        ]
    told = {
        "signer": signed.get("common_name") or signed.get("issuer"),
        "issuer": signed.get("issuer"),
        "generator": " ".join(filter(None, (generator.get("name"), generator.get("version")))),
        "action": next((action.get("action") for action in actions), None),
        "source": next((action.get("digitalSourceType") for action in actions), None),
        **{name: made.get(name) for name in _MAKERS},
    }
    return found | {name: str(value) for name, value in told.items() if value}


class SpeechSigner:
    """Signs WAV files of machine-made speech with a certificate.

    Making one signs a moment of silence, so that certificates and a key that can't be used are found
    before any speech is made.

    Args:
        chain: PEM file of the signer's certificate and those above it.
        key: PEM file of its key; None: it is in the same file.

    Attributes:
        made_by: What made the speech, for the manifest: ``model``, ``voice``, ``mark``, by name.

    Raises:
        ConfigError: a file can't be read, they can't sign, or the extra ``provenance`` is missing.
    """

    def __init__(self, chain: Path, key: Path | None = None) -> None:
        self._c2pa = _library()
        self.made_by: dict[str, str] = {}
        above = _blocks(chain, "the signer's certificates", "CERTIFICATE")
        secret = _blocks(key or chain, "the signer's key", r"(?:\w+ )?PRIVATE KEY")
        self._credentials = (above, secret)
        self._named = " with ".join(str(path) for path in (chain, key) if path is not None)
        self._kind = self._tried()

    @classmethod
    def of(cls, args: argparse.Namespace) -> SpeechSigner | None:
        """The signer that a command's options describe; None: nothing is to be signed.

        Raises:
            ConfigError: as for the class; a key without a certificate.
        """
        if args.sign_cert is None:
            if args.sign_key is not None:
                raise ConfigError("--sign-key needs --sign-cert")
            return None
        return cls(Path(args.sign_cert), None if args.sign_key is None else Path(args.sign_key))

    def sign(self, path: Path) -> None:
        """Sign a WAV file in place; what was there before stays until the signed file is whole.

        Raises:
            OutputError: the file can't be signed or written.
        """
        partly = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with writing(path):
                with open(path, "rb") as source, open(partly, "w+b") as signed:
                    self._sign(self._kind, source, signed)
                os.replace(partly, path)
        except self._c2pa.C2paError as error:
            raise OutputError(f"can't sign {path}: {error}") from error
        finally:
            partly.unlink(missing_ok=True)

    def _tried(self) -> str:
        """The kind of the key, by signing a moment of silence with each.

        Raises:
            ConfigError: it can't be signed, or what was signed isn't valid.
        """
        silence, faults = io.BytesIO(), list[str]()
        with wave.open(silence, "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(bytes(3200))
        for kind in _KINDS:
            signed = io.BytesIO()
            try:
                silence.seek(0)
                self._sign(kind, silence, signed)
                signed.seek(0)
                with self._c2pa.Reader("audio/wav", signed) as reader:
                    found = _found(json.loads(reader.json()))
            except self._c2pa.C2paError as error:
                faults.append(str(error))
                continue
            if found["state"] != "broken":
                return kind
            faults.append("; ".join(found["problems"]))
        # Only the key's own kind gets past the reading of the key.
        fault = next((one for one in faults if "private key" not in one), faults[0])
        raise ConfigError(
            f"{self._named} can't sign: {fault}; --sign-cert needs the certificates of a C2PA signer in "
            "PEM (its own first, key usage digitalSignature, extended key usage emailProtection; then "
            "its authority's), --sign-key its unencrypted PKCS #8 key"
        )

    def _sign(self, kind: str, source: Any, signed: Any) -> None:
        chain, key = self._credentials
        info = self._c2pa.C2paSignerInfo(kind.encode(), chain, key, None)
        with self._c2pa.Signer.from_info(info) as signer:
            with self._c2pa.Builder(json.dumps(self._manifest())) as builder:
                builder.sign(signer, "audio/wav", source, signed)

    def _manifest(self) -> dict[str, Any]:
        generator = {"name": "specstream", "version": __version__}
        action = {"action": "c2pa.created", "digitalSourceType": _SOURCE, "softwareAgent": generator}
        assertions: list[dict[str, Any]] = [{"label": "c2pa.actions.v2", "data": {"actions": [action]}}]
        told = {name: self.made_by[name] for name in _MAKERS if name in self.made_by}
        if told:
            assertions.append({"label": _MADE_BY, "data": told})
        return {"claim_generator_info": [generator], "assertions": assertions}


def _library() -> Any:
    try:
        return importlib.import_module("c2pa")
    except ImportError as error:
        raise ConfigError(f"manifests need c2pa-python: {_INSTALL}") from error


def _blocks(path: Path, what: str, label: str) -> bytes:
    """Those blocks of a PEM file that are labelled so; all of the file if none is, for its error."""
    data = _read(path, what)
    block = f"-----BEGIN {label}-----.*?-----END {label}-----\n?".encode()
    return b"\n".join(re.findall(block, data, re.DOTALL)) or data


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {what} {path}: {error.strerror or error}") from error
