"""Signed speech: made by `say`, read by `provenance`; what can't sign is refused before any speech."""

import datetime
import json
import sys
import wave
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specstream.commands.main import main
from specstream.commands.provenance import SpeechSigner, read_manifest
from specstream.errors import ConfigError, OutputError

pytest.importorskip("c2pa")
x509: Any = pytest.importorskip("cryptography.x509")
hashes: Any = pytest.importorskip("cryptography.hazmat.primitives.hashes")
pem: Any = pytest.importorskip("cryptography.hazmat.primitives.serialization")
ec: Any = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
ed: Any = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")

_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Authority(NamedTuple):
    name: Any
    key: Any
    certificate: Any


def named(common: str) -> Any:
    oid = x509.oid.NameOID
    parts = ((oid.ORGANIZATION_NAME, "Tests Ltd"), (oid.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(what, text) for what, text in parts])


def certificate(name: Any, key: Any, above: Authority | None, days: int = 30) -> Any:
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    issuer = above or Authority(name, key, None)
    usages = dict.fromkeys(_USAGES, False)
    usages |= {"digital_signature": True} if above else {"key_cert_sign": True, "crl_sign": True}
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(above is None, None), True)
        .add_extension(x509.KeyUsage(**usages), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )
    if above is not None:
        purposes = [x509.oid.ExtendedKeyUsageOID.EMAIL_PROTECTION]
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
        made = made.add_extension(x509.ExtendedKeyUsage(purposes), False).add_extension(by, False)
    return made.sign(issuer.key, hashes.SHA256())


def pem_of(*certificates: Any) -> bytes:
    return b"".join(one.public_bytes(pem.Encoding.PEM) for one in certificates)


def key_pem(key: Any, password: bytes = b"") -> bytes:
    locked = pem.BestAvailableEncryption(password) if password else pem.NoEncryption()
    return bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, locked))


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: ``chain.pem``, ``key.pem``, ``both.pem``, ``ca.pem``, and what can't sign."""
    folder = tmp_path_factory.mktemp("certificates")
    top = ec.generate_private_key(ec.SECP256R1())
    name = named("Test authority")
    authority = Authority(name, top, certificate(name, top, None))
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signer = certificate(named("Test signer"), key, authority)
    chain = pem_of(signer, authority.certificate)
    old = certificate(named("Old signer"), key, authority, days=1)
    edwards = ed.Ed25519PrivateKey.generate()
    small = certificate(named("Edwards"), edwards, authority)
    files = {
        "chain.pem": chain,
        "key.pem": key_pem(key),
        "both.pem": chain + key_pem(key),
        "ca.pem": pem_of(authority.certificate),
        "other-key.pem": key_pem(other),
        "locked.pem": key_pem(key, b"secret"),
        "expired.pem": pem_of(old, authority.certificate) + key_pem(key),
        "edwards.pem": pem_of(small, authority.certificate) + key_pem(edwards),
        "text.pem": b"no certificate",
    }
    for file, data in files.items():
        (folder / file).write_bytes(data)
    return folder


def say(out: Path, *options: str) -> int:
    return main(
        ["say", "--verbatim", "Hello there.", "--voice", "reference", "--out", str(out), *options]
    )


@pytest.fixture
def signed(credentials: Path, tmp_path: Path) -> Path:
    options = ("--sign-cert", credentials / "chain.pem", "--sign-key", credentials / "key.pem")
    assert say(tmp_path / "out", *map(str, options)) == 0
    return tmp_path / "out" / "speech.wav"


def test_speech_is_signed_and_still_a_wave_file(
    signed: Path, credentials: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["provenance", str(signed)]) == 0
    shown = capsys.readouterr().out
    for words in ("nobody vouches", "Test signer", "Tests Ltd", "specstream", "c2pa.created"):
        assert words in shown
    assert "trainedAlgorithmicMedia" in shown and "reference" in shown
    argv = ["provenance", str(signed), "--trust", str(credentials / "ca.pem"), "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["voice"], found["problems"]) == ("trusted", "reference", [])
    assert say(tmp_path / "plain") == 0
    with wave.open(str(signed)) as one, wave.open(str(tmp_path / "plain/speech.wav")) as other:
        assert one.readframes(1 << 20) == other.readframes(1 << 20)
    assert {path.name for path in signed.parent.iterdir()} == {
        *("speech.wav", "avatar.jsonl", "prompts.jsonl", "trace.json")
    }, "nothing half signed is left"


def test_a_file_that_was_changed_is_broken(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(signed.read_bytes())
    data[2000] ^= 1
    signed.write_bytes(data)
    assert main(["provenance", str(signed), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "broken" and "dataHash.mismatch" in found["problems"][0]
    assert main(["provenance", str(signed)]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_a_manifest_that_was_changed_is_broken(signed: Path) -> None:
    data = signed.read_bytes()
    signed.write_bytes(data.replace(b"reference", b"preferred"))
    assert read_manifest(signed)["state"] == "broken"
    signed.write_bytes(data[: len(data) - 900])
    assert read_manifest(signed)["state"] in ("broken", "none")


def test_a_file_without_a_manifest_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say(tmp_path) == 0
    capsys.readouterr()
    assert main(["provenance", str(tmp_path / "speech.wav")]) == 1
    assert "there is no manifest" in capsys.readouterr().out


@pytest.mark.parametrize("data", [b"", b"a text", b"RIFF1234"])
def test_a_file_that_is_no_audio_is_no_broken_manifest(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(data)
    assert main(["provenance", str(path)]) in (1, 2)
    assert "BROKEN" not in capsys.readouterr().out


@pytest.mark.parametrize("how", ["cut", "whole"])
def test_authorities_that_can_not_be_read_are_named(
    how: str, signed: Path, credentials: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (credentials / "ca.pem").read_text()
    trust = tmp_path / "authorities.pem"
    trust.write_text(whole if how == "whole" else whole[: len(whole) // 3])
    status = main(["provenance", str(signed), "--trust", str(trust)])
    told = capsys.readouterr()
    if how == "whole":
        assert status == 0
    else:
        assert status == 2 and "can't be read; is the file whole?" in told.err


def test_a_copy_in_another_encoding_has_lost_it(signed: Path, tmp_path: Path) -> None:
    import soundfile

    sound, rate = soundfile.read(signed)
    soundfile.write(tmp_path / "again.flac", sound, rate)
    assert read_manifest(tmp_path / "again.flac")["state"] == "none"


@pytest.mark.parametrize("file", ["both.pem", "edwards.pem"])
def test_one_file_may_hold_certificates_and_key(credentials: Path, file: str, tmp_path: Path) -> None:
    assert say(tmp_path, "--sign-cert", str(credentials / file)) == 0
    assert read_manifest(tmp_path / "speech.wav")["state"] == "valid"


@pytest.mark.parametrize(
    ("chain", "key", "says"),
    [
        ("chain.pem", "other-key.pem", "can't sign: .*signature"),
        ("chain.pem", "locked.pem", "can't sign: .*unencrypted"),
        ("chain.pem", "text.pem", "can't sign"),
        ("text.pem", "key.pem", "can't sign"),
        ("ca.pem", "key.pem", "can't sign: .*self-signed"),
        ("expired.pem", "key.pem", "can't sign: .*(expired|valid)"),
        ("chain.pem", "missing.pem", "can't read the signer's key .*No such file"),
        ("missing.pem", "key.pem", "can't read the signer's certificates"),
    ],
)
def test_what_can_not_sign_is_refused_before_any_speech(
    credentials: Path,
    chain: str,
    key: str,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match=says):
        SpeechSigner(credentials / chain, credentials / key)
    options = ("--sign-cert", credentials / chain, "--sign-key", credentials / key)
    assert say(tmp_path / "new", *map(str, options)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_options_that_do_not_go_together(
    credentials: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(tmp_path / "new", "--sign-key", str(credentials / "key.pem")) == 2
    assert "--sign-key needs --sign-cert" in capsys.readouterr().err
    (tmp_path / "a.ogg").write_bytes(b"OggS")
    for path, more, says in (
        ("a.ogg", (), "such a file has no manifest"),
        ("none.wav", (), "can't read the audio file"),
        ("a.wav", ("--trust", str(credentials / "text.pem")), "no certificate in PEM"),
    ):
        if path == "a.wav":
            (tmp_path / path).write_bytes(b"RIFF")
        assert main(["provenance", str(tmp_path / path), *more]) == 2
        assert says in capsys.readouterr().err


def test_a_file_that_can_not_be_signed_is_an_output_error(credentials: Path, tmp_path: Path) -> None:
    signer = SpeechSigner(credentials / "both.pem")
    (tmp_path / "a.wav").write_bytes(b"no wave file")
    with pytest.raises(OutputError, match="can't sign"):
        signer.sign(tmp_path / "a.wav")
    with pytest.raises(OutputError, match="can't write"):
        signer.sign(tmp_path / "none.wav")
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_no_unsigned_speech_is_left_where_signed_speech_was_asked_for(
    credentials: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(signer: SpeechSigner, path: Path) -> None:
        assert path.exists()
        raise OutputError(f"can't sign {path}")

    monkeypatch.setattr(SpeechSigner, "sign", refuse)
    assert say(tmp_path, "--sign-cert", str(credentials / "both.pem")) == 1
    assert "can't sign" in capsys.readouterr().err
    assert "speech.wav" not in {path.name for path in tmp_path.iterdir()}


def test_without_the_library_one_error_says_what_to_install(
    credentials: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "c2pa", None)
    for work in (
        lambda: SpeechSigner(credentials / "both.pem"),
        lambda: read_manifest(tmp_path / "a.wav"),
    ):
        with pytest.raises(ConfigError, match=r"pip install 'specstream-sdk\[provenance\]'"):
            work()
