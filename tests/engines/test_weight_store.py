"""The weight store: nothing is loaded that was not proved, and the proof is not repeated without need."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest

from watcher.wire import EngineChoice
from watcher.worker.models import store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"PK" + bytes(5000))
    return path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were hashed, in order."""
    names: list[str] = []
    original = hashlib.file_digest

    def note(file: Any, digest: Any) -> Any:
        names.append(file.name)
        return original(file, digest)

    monkeypatch.setattr(hashlib, "file_digest", note)
    return names


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the store's clock ahead: times of files cannot be set back."""

    def move(seconds: float) -> None:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + seconds)

    return move


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sparse(path: Path, size_bytes: int, head: bytes = b"PK") -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size_bytes)
    return path


def test_the_pinned_hash_is_accepted_in_any_case(weights: Path) -> None:
    choice = EngineChoice(weights_path=str(weights), weights_sha256=f" {sha256_of(weights).upper()} ")
    verified = store.locate_verified(choice, {})
    assert (verified.path, verified.sha256) == (weights, sha256_of(weights))


@pytest.mark.kind("PD1")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK" + bytes(1_000_000), "has 1,000,002 bytes where 205,803,670 are expected: it is cut off"),
        (b"<!DOCTYPE html><title>Sign in</title>", "is a web page"),
        (b"\n<html>404</html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"GGUF" + bytes(100), "is not a TorchScript archive"),
    ],
    ids=["empty", "cut off", "web page", "old web page", "lfs pointer", "other format"],
)
@pytest.mark.parametrize("pinned", [None, "0" * 64], ids=["unpinned", "pinned"])
def test_the_usual_accidents_are_named(tmp_path: Path, content: bytes, said: str, pinned: str | None) -> None:
    path = tmp_path / "big-lama.pt"
    path.write_bytes(content)
    with pytest.raises(store.WeightsRejectedError) as caught:
        store.verify(path, pinned_sha256=pinned)
    assert str(path) in str(caught.value)
    assert said in str(caught.value) or (pinned and "has sha256" in str(caught.value))
    assert "[model]" in caught.value.remedy


@pytest.mark.kind("PD1")
@pytest.mark.parametrize("known", store.KNOWN, ids=lambda known: known.title)
def test_the_right_size_is_not_enough(tmp_path: Path, known: store.KnownWeights) -> None:
    path = sparse(tmp_path / "big-lama.pt", known.size_bytes)
    with pytest.raises(store.WeightsRejectedError, match=r"has sha256 [0-9a-f]{64}, and no known weights"):
        store.verify(path)


@pytest.mark.kind("PD1", "PD2")
def test_a_wrong_size_is_refused_without_hashing(tmp_path: Path, hashed: list[str]) -> None:
    path = sparse(tmp_path / "big-lama.pt", store.PUBLISHED.size_bytes - 1)
    for pinned in (None, store.PUBLISHED.sha256):
        with pytest.raises(store.WeightsRejectedError, match="cut off"):
            store.verify(path, pinned_sha256=pinned)
    assert hashed == []


@pytest.mark.kind("PD4")
def test_a_known_file_is_good_unless_another_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    monkeypatch.setattr(
        store, "KNOWN", (store.KnownWeights("tiny", weights.stat().st_size, sha256_of(weights)),)
    )
    assert store.verify(weights).sha256 == sha256_of(weights)
    with pytest.raises(store.WeightsRejectedError, match="the configuration names"):
        store.verify(weights, pinned_sha256=store.PUBLISHED.sha256)
    assert sorted(tmp_path.iterdir()) == [weights]


def test_configuration_goes_before_environment_before_cache(tmp_path: Path, weights: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    sha256 = sha256_of(weights)
    cached = cache / store.cached_name(sha256)
    other = tmp_path / "other.pt"
    for path in (cached, other):
        path.write_bytes(weights.read_bytes())

    def located(path: Path | None, environ: dict[str, str]) -> Path:
        choice = EngineChoice(
            weights_path=str(path) if path else None, weights_sha256=sha256, model_cache_dir=str(cache)
        )
        return store.locate(choice, environ)

    assert located(weights, {"LAMA_MODEL": str(other)}) == weights
    assert located(None, {"LAMA_MODEL": str(other)}) == other
    assert located(None, {}) == cached
    assert located(None, {"LAMA_MODEL": ""}) == cached


def test_a_named_place_without_a_file_is_an_error_even_if_the_cache_has_one(tmp_path: Path) -> None:
    (tmp_path / store.cached_name(store.PUBLISHED.sha256)).write_bytes(b"PK")
    choice = EngineChoice(weights_path=str(tmp_path / "gone.pt"), model_cache_dir=str(tmp_path))
    with pytest.raises(store.WeightsMissingError, match=r"gone\.pt.*does not exist"):
        store.locate(choice, {})
    with pytest.raises(store.WeightsMissingError, match="environment variable LAMA_MODEL"):
        store.locate(EngineChoice(model_cache_dir=str(tmp_path)), {"LAMA_MODEL": str(tmp_path / "gone.pt")})


@pytest.mark.kind("PD3")
def test_known_weights_are_found_in_the_cache_by_their_hash(tmp_path: Path) -> None:
    for known in store.KNOWN:
        path = sparse(tmp_path / store.cached_name(known.sha256), known.size_bytes)
        assert store.locate(EngineChoice(model_cache_dir=str(tmp_path)), {}) == path
        path.unlink()
    with pytest.raises(store.WeightsMissingError, match="configured or cached"):
        store.locate(EngineChoice(model_cache_dir=str(tmp_path)), {})


def test_a_hash_that_is_none_is_refused(weights: Path) -> None:
    with pytest.raises(store.WeightsRejectedError, match="is not a sha256") as caught:
        store.locate_verified(EngineChoice(weights_path=str(weights), weights_sha256="abc"), {})
    assert "64 hexadecimal digits" in caught.value.remedy


def test_a_folder_and_a_pipe_are_refused_without_being_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(store.WeightsRejectedError, match="is not a file"):
            store.verify(path)


def test_a_file_that_may_not_be_read_is_refused(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(weights), "open", refuse)  # not by mode: root may read everything
    with pytest.raises(store.WeightsRejectedError, match="cannot be read: Permission denied"):
        store.verify(weights, pinned_sha256="0" * 64)


def test_a_verification_is_remembered(
    tmp_path: Path, weights: Path, hashed: list[str], later: Callable[[float], None]
) -> None:
    memory, sha256 = tmp_path / "cache" / "verified.json", sha256_of(weights)
    later(10)
    for _ in range(3):
        assert store.verify(weights, pinned_sha256=sha256, memory=memory).sha256 == sha256
    assert hashed == [str(weights)]
    assert [path.name for path in memory.parent.iterdir()] == ["verified.json"]


def test_a_remembered_hash_is_still_compared_with_what_is_wanted(
    tmp_path: Path, weights: Path, later: Callable[[float], None]
) -> None:
    memory = tmp_path / "verified.json"
    later(10)
    store.verify(weights, pinned_sha256=sha256_of(weights), memory=memory)
    with pytest.raises(store.WeightsRejectedError, match="the configuration names 0000"):
        store.verify(weights, pinned_sha256="0" * 64, memory=memory)


@pytest.mark.kind("PD1")
def test_a_file_rewritten_with_its_old_size_and_time_is_hashed_again(
    tmp_path: Path, weights: Path, later: Callable[[float], None]
) -> None:
    memory, sha256 = tmp_path / "verified.json", sha256_of(weights)
    later(10)
    store.verify(weights, pinned_sha256=sha256, memory=memory)
    status = weights.stat()
    with weights.open("r+b") as file:
        file.seek(100)
        file.write(b"evil")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights.stat().st_mtime_ns == status.st_mtime_ns
    assert weights.stat().st_size == status.st_size
    with pytest.raises(store.WeightsRejectedError, match="has sha256"):
        store.verify(weights, pinned_sha256=sha256, memory=memory)


def test_a_file_that_is_seconds_old_is_not_remembered(
    tmp_path: Path, weights: Path, hashed: list[str]
) -> None:
    memory = tmp_path / "verified.json"
    for _ in range(2):
        store.verify(weights, pinned_sha256=sha256_of(weights), memory=memory)
    assert len(hashed) == 2
    assert not memory.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"files": 3}', b'{"files": {"x": 1}}', b"\xff", b"[" * 100_000]
)
def test_a_spoilt_memory_costs_one_hash(
    tmp_path: Path, weights: Path, hashed: list[str], later: Callable[[float], None], content: bytes
) -> None:
    memory = tmp_path / "verified.json"
    memory.write_bytes(content)
    later(10)
    for _ in range(2):
        store.verify(weights, pinned_sha256=sha256_of(weights), memory=memory)
    assert len(hashed) == 1


def test_a_memory_that_cannot_be_written_stops_nothing(
    tmp_path: Path, weights: Path, hashed: list[str], later: Callable[[float], None]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    later(10)
    for _ in range(2):
        store.verify(weights, pinned_sha256=sha256_of(weights), memory=tmp_path / "file" / "verified.json")
    assert len(hashed) == 2


def test_the_memory_is_bounded(tmp_path: Path, later: Callable[[float], None]) -> None:
    memory = tmp_path / "verified.json"
    later(10)
    for number in range(30):
        path = sparse(tmp_path / f"{number}.pt", 100 + number)
        store.verify(path, pinned_sha256=sha256_of(path), memory=memory)
    files = store._read_memory(memory)
    assert len(files) == 16
    assert str(tmp_path / "29.pt") in files
    assert stat.S_ISREG(memory.stat().st_mode)


@pytest.mark.kind("PD1")
def test_a_file_that_changes_while_it_is_hashed_is_refused(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = hashlib.file_digest

    def write_meanwhile(file: Any, digest: Any) -> Any:
        result = original(file, digest)
        with weights.open("ab") as other:
            other.write(b"more")
        return result

    sha256 = sha256_of(weights)
    monkeypatch.setattr(hashlib, "file_digest", write_meanwhile)
    with pytest.raises(store.WeightsRejectedError, match="changed while it was being read"):
        store.verify(weights, pinned_sha256=sha256)
