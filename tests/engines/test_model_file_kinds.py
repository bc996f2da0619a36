"""What others met with the model file and its packages (kinds PD1 to PD13).

Rules of this file:
- The model file is a small one of LaMa's shape; what happens to it happens to a real file.
- Whatever holds for a whole process (network, folders that are left, warnings, threads) is asked of one: the
  worker's own program, which serves one picture while a hook listens.
"""

from __future__ import annotations

import ast
import hashlib
import http.server
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import threading
import tomllib
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import simple_lama_inpainting
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from PIL import Image

from tests.worker.bench import Bench, photo, rectangle, save_mask
from watcher.wire import Configure, EngineChoice, Exit, ItemDone, RunBatch, decode_from_worker, encode
from watcher.worker.engines.auto import AutoEngine
from watcher.worker.engines.lama import LamaEngine
from watcher.worker.engines.protocol import EngineUnavailableError
from watcher.worker.models import store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from watcher.worker.engines.protocol import Crop

ROOT = Path(__file__).parents[2]
PACKAGE = "simple-lama-inpainting"


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def filled(engine: LamaEngine, crop: Crop) -> bool:
    engine.load()
    engine.warm_up()
    (result,) = engine.fill([crop])
    return bool((result[crop.hole] != crop.pixels[crop.hole]).any())


# --- files that are not what they should be ----------------------------------------------------------------

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda _data: b"",
    "web page": lambda _data: b"<!DOCTYPE html><html><title>Sign in</title></html>" * 50,
    "one bit": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
}


@pytest.mark.kind("PD1")
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_told_at_each_start_and_a_mended_one_is_taken(
    stand_in: Any, tmp_path: Path, noise_crop: Callable[[int, int], Crop], name: str
) -> None:
    good, path = stand_in.path.read_bytes(), tmp_path / "big-lama.pt"
    path.write_bytes(DAMAGES[name](good))
    choice = stand_in.choice(weights_path=str(path), model_cache_dir=str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(EngineUnavailableError) as caught:
            LamaEngine(choice).load()
        assert str(path) in str(caught.value)
        assert stand_in.sha256 in str(caught.value) or "is empty" in str(caught.value)
        assert "sha256" in caught.value.remedy
    other = AutoEngine(EngineChoice(weights_path=str(path), weights_sha256=stand_in.sha256, device="cpu"))
    other.load()
    assert other.facts().actual == "patchmatch"

    path.write_bytes(good)

    assert filled(LamaEngine(choice), noise_crop(64, 64))


@pytest.fixture
def ends_early(stand_in: Any) -> Iterator[str]:
    """The address of a server that promises all of the file, gives half of it and hangs up."""
    data = stand_in.path.read_bytes()

    class HalfOfIt(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), HalfOfIt)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/big-lama.pt"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.kind("PD2")
def test_what_torchs_downloader_takes_for_a_whole_file_is_refused(
    stand_in: Any, ends_early: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The downloader of torch.hub, which simple-lama-inpainting uses, counts no bytes and knows no hash."""
    monkeypatch.setattr(socket.socket, "connect", vars(socket.socket.__base__)["connect"])
    path = tmp_path / "big-lama.pt"
    torch.hub.download_url_to_file(ends_early, str(path), None, progress=False)
    assert path.stat().st_size == stand_in.path.stat().st_size // 2, "it did not complain"

    with pytest.raises(EngineUnavailableError, match="has sha256"):
        LamaEngine(stand_in.choice(weights_path=str(path))).load()


@pytest.mark.kind("PD2", "PD5", "PD6")
@pytest.mark.parametrize("named", [True, False])
def test_the_packages_own_downloader_never_runs(
    stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the downloader ran")

    monkeypatch.setattr("simple_lama_inpainting.models.model.download_model", refuse)
    for function in ("download_url_to_file", "load_state_dict_from_url", "get_dir"):
        monkeypatch.setattr(torch.hub, function, refuse)
    if named:
        LamaEngine(stand_in.choice()).load()
        return
    with pytest.raises(EngineUnavailableError) as caught:
        LamaEngine(EngineChoice(device="cpu", model_cache_dir=str(tmp_path))).load()
    assert "Download big-lama.pt" in caught.value.remedy


# --- two files of one name ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def another_export(stand_in_script: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("another") / "big-lama.pt"
    stand_in_script.build(tiny=True, seed=9).save(str(path))
    return path.read_bytes()


@pytest.fixture
def two_exports(
    tmp_path: Path, stand_in: Any, another_export: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Two small files named `big-lama.pt`, of different bytes, both of which the store knows."""
    one, other = tmp_path / "one" / "big-lama.pt", tmp_path / "other" / "big-lama.pt"
    small = []
    for path, content, known in (
        (one, stand_in.path.read_bytes(), store.PUBLISHED),
        (other, another_export, store.SANSTER),
    ):
        path.parent.mkdir()
        path.write_bytes(content)
        small.append(store.KnownWeights(known.title, len(content), sha256_of(path)))
    monkeypatch.setattr(store, "KNOWN", tuple(small))
    return one, other


@pytest.mark.kind("PD3", "PD4")
def test_two_exports_of_one_name_are_both_good_and_never_taken_for_each_other(
    two_exports: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = two_exports
    hashes = [store.verify(path).sha256 for path in (one, other)]
    assert hashes[0] != hashes[1]
    cache = tmp_path / "cache"
    cache.mkdir()
    for path, sha256 in zip((one, other), hashes, strict=True):
        (cache / store.cached_name(sha256)).write_bytes(path.read_bytes())
    assert len(list(cache.iterdir())) == 2, "they lie side by side"
    for sha256 in hashes:
        choice = EngineChoice(model_cache_dir=str(cache), weights_sha256=sha256, device="cpu")
        engine = LamaEngine(choice)
        engine.load()
        assert engine.facts().model_sha256 == sha256

    one.write_bytes(other.read_bytes())
    assert store.verify(one).sha256 == hashes[1], "it is judged by what it is now"


@pytest.mark.kind("PD4")
def test_whoever_names_the_hash_of_the_other_export_is_told_so(two_exports: tuple[Path, Path]) -> None:
    """A public registry lists the hash of the one beside the address of the other."""
    one, other = two_exports
    for path, pinned, is_, wanted in (
        (one, store.KNOWN[1], store.KNOWN[0], store.KNOWN[1]),
        (other, store.KNOWN[0], store.KNOWN[1], store.KNOWN[0]),
    ):
        with pytest.raises(store.WeightsRejectedError) as caught:
            store.verify(path, pinned_sha256=pinned.sha256)
        assert is_.title in str(caught.value), "which file it is"
        assert wanted.title in str(caught.value), "which file the configuration names"
        assert is_.sha256 in caught.value.remedy, "what to write to have this one taken"


@pytest.mark.kind("PD3", "PD4")
def test_the_known_files_are_the_two_that_circulate() -> None:
    assert [(known.size_bytes, known.sha256[:8], known.sha256[-4:]) for known in store.KNOWN] == [
        (205_803_670, "7ba7aa7a", "6b4c"),
        (205_669_692, "344c77bb", "9ea9"),
    ]


# --- a process of its own ----------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path

network, in_main_thread = [], []
SOCKETS = ("socket.connect", "socket.getaddrinfo", "urllib.Request")
sys.addaudithook(lambda event, _: network.append(event) if event in SOCKETS else None)

from watcher.worker import loop
from watcher.worker.engines.lama import LamaEngine

load, leave = LamaEngine.load, loop.leave

def load_and_tell(self):
    in_main_thread.append(threading.current_thread() is threading.main_thread())
    return load(self)

def tell_and_leave(code):
    facts = {"network": network, "in_main_thread": in_main_thread, "modules": sorted(sys.modules)}
    Path(os.environ["FACTS"]).write_text(json.dumps(facts))
    leave(code)

LamaEngine.load, loop.leave = load_and_tell, tell_and_leave
loop.main(sys.argv[1:], time.monotonic_ns())
"""


class Alone(NamedTuple):
    """A worker that served one picture by its model, with every warning an error."""

    network: list[str]
    """Whatever it did that needs one."""
    loaded_in_main_thread: list[bool]
    modules: set[str]
    """All that were imported."""
    stderr: str
    left: list[str]
    """What lies in its home, which is its working folder too."""


@pytest.fixture(scope="module")
def alone(stand_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    home, bench = tmp_path_factory.mktemp("home"), Bench(tmp_path_factory.mktemp("work"))
    picture = bench.folder / "a.png"
    Image.fromarray(photo(96, 64)).save(picture)
    mask = save_mask(bench.folder / "mask.png", rectangle(96, 64, (30, 20, 50, 40)))
    batch = RunBatch(batch="b1", sent_ns=0, items=(bench.item(picture, mask),))
    configure = Configure(incarnation=1, parent_pid=os.getpid(), spawned_ns=0, engine=stand_in.choice())
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "TORCH", "LAMA"))}
    facts = bench.folder / "facts.json"
    own = {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "FACTS": str(facts)}
    commands_read, commands = os.pipe()
    reports, reports_write = os.pipe()
    os.write(commands, encode(configure) + encode(batch) + encode(Exit()))
    pipes = [f"--commands-fd={commands_read}", f"--reports-fd={reports_write}"]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *pipes],
        pass_fds=(commands_read, reports_write),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=home,
        env={**kept, **own},
    )
    for descriptor in (commands_read, commands, reports_write):
        os.close(descriptor)
    with os.fdopen(reports, "rb") as told:
        said = [decode_from_worker(line) for line in told]
    assert any(isinstance(report, ItemDone) and report.outcome == "done" for report in said), (
        said,
        ran.stderr,
    )
    found = json.loads(facts.read_text("utf-8"))
    left = [path.relative_to(home).as_posix() for path in home.rglob("*")]
    modules = set(found["modules"])
    return Alone(found["network"], found["in_main_thread"], modules, ran.stderr, left)


@pytest.mark.kind("PD5")
def test_a_run_leaves_no_folders_behind(alone: Alone) -> None:
    assert alone.left == []


@pytest.mark.kind("PD6")
def test_a_run_asks_no_network_for_anything(alone: Alone) -> None:
    assert alone.network == []


@pytest.mark.kind("PD12")
def test_a_run_warns_of_nothing_though_its_format_is_deprecated(stand_in: Any, alone: Alone) -> None:
    """Every warning was an error there. Here is the one that would have been."""
    if Version(torch.__version__) >= Version("2.13"):
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            torch.jit.load(str(stand_in.path))  # type: ignore[no-untyped-call] # torch's
    assert alone.stderr == ""


@pytest.mark.kind("PD13")
def test_the_model_is_loaded_in_the_main_thread_before_anything_else_runs(alone: Alone) -> None:
    assert alone.loaded_in_main_thread == [True]


@pytest.mark.kind("PD7")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch that cannot reach a GPU")
def test_a_file_that_was_saved_on_a_gpu_loads_on_a_cpu(
    stand_in: Any, tmp_path: Path, noise_crop: Callable[[int, int], Crop]
) -> None:
    """Each tensor of an archive says where it lay when it was saved: type, key, location, size."""
    path = tmp_path / "cuda.pt"
    here, there = (b"X" + len(name).to_bytes(4, "little") + name for name in (b"cpu", b"cuda:0"))
    with zipfile.ZipFile(stand_in.path) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            assert name.rpartition("/")[2] != "data.pkl" or content.count(here) == 1
            new.writestr(name, content.replace(here, there) if name.endswith("/data.pkl") else content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises((RuntimeError, NotImplementedError), match="CUDA"):
            torch.jit.load(str(path))  # type: ignore[no-untyped-call] # torch's

    choice = stand_in.choice(weights_path=str(path), weights_sha256=sha256_of(path))

    assert filled(LamaEngine(choice), noise_crop(64, 64))


# --- packages ----------------------------------------------------------------------------------------------

REMOVED = frozenset(
    (
        *("aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils", "imghdr"),
        *("imp", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd"),
        *("sunau", "telnetlib", "uu", "xdrlib"),
    )
)
"""Modules of the standard library that Python 3.12 or 3.13 no longer has (PEP 594, PEP 632)."""


def demanded(by: str) -> dict[str, Requirement]:
    """What a package says that it needs, by its own metadata."""
    return {
        requirement.name: requirement
        for requirement in map(Requirement, importlib.metadata.requires(by) or [])
    }


def installed(name: str) -> Version:
    return Version(importlib.metadata.version(name))


@pytest.mark.kind("PD8")
def test_the_package_runs_beside_a_pillow_and_a_numpy_that_it_does_not_want(alone: Alone) -> None:
    """Pillow below 10 has known holes in what opens pictures, so the package comes without its needs."""
    wanted = demanded(PACKAGE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    ours = [
        *project["dependencies"],
        *(line for e in project["optional-dependencies"].values() for line in e),
    ]
    assert installed("pillow") not in wanted["pillow"].specifier
    assert installed("numpy") not in wanted["numpy"].specifier
    assert installed("pillow") >= Version("12.3")
    assert installed("numpy") >= Version("2")
    assert not [line for line in ours if Requirement(line).name == PACKAGE], "it would bring what it wants"
    assert {"simple_lama_inpainting", "PIL.Image", "numpy"} <= alone.modules, "they ran together"


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.kind("PD9")
def test_there_is_one_opencv_and_it_needs_no_display() -> None:
    assert "opencv-python" in demanded(PACKAGE), "what it would bring"
    assert importlib.metadata.packages_distributions()["cv2"] == ["opencv-python-headless"]
    program = (
        "import cv2, re; maps = open('/proc/self/maps').read();"
        "print(sorted(set(re.findall(r'/lib(?:GL|EGL|X11|xcb|Qt[0-9])[.-]', maps))), 'cv2' in maps)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "[] True"


@pytest.mark.kind("PD10")
def test_torchvision_is_neither_installed_nor_wanted_nor_imported(alone: Alone) -> None:
    assert "torchvision" in demanded(PACKAGE), "what it would bring"
    assert not is_installed("torchvision")
    assert "torchvision" not in alone.modules


@pytest.mark.kind("PD11")
def test_no_module_is_imported_that_newer_pythons_no_longer_have(alone: Alone) -> None:
    """What ran, and every file of ours and of the package, whether it ran or not."""
    assert "simple_lama_inpainting" in alone.modules
    assert alone.modules & REMOVED == set()
    files = [*(ROOT / "watcher").rglob("*.py"), *Path(simple_lama_inpainting.__file__).parent.rglob("*.py")]
    assert len(files) > 100
    imported = {
        name.partition(".")[0]: file.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
    }
    assert {"os", "torch"} <= imported.keys(), "this look at the files sees nothing"
    assert {name: imported[name] for name in REMOVED & imported.keys()} == {}
