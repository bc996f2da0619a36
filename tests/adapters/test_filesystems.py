"""Which file system a path is on, from the listings that Linux and macOS give."""

from __future__ import annotations

from pathlib import Path

import pytest

from watcher.adapters import filesystems
from watcher.adapters.filesystems import (
    Mount,
    file_system_type,
    is_network,
    parse_mac_mounts,
    parse_mountinfo,
)

MOUNTINFO = b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:25 / /mnt/nas rw shared:2 master:3 - nfs4 nas:/export rw
31 30 0:26 / /mnt/nas/local rw - tmpfs tmpfs rw
32 27 0:27 / /mnt/my\\040pictures\\134x rw - cifs //nas/p rw
33 27 0:28 / /mnt/twice rw - ext4 /dev/vdb rw
34 27 0:29 / /mnt/twice rw - fuse.sshfs me@host:/ rw
35 27 0:30 / /mnt/\xff rw - 9p share rw
"""


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "mountinfo"
    listing.write_bytes(MOUNTINFO)
    monkeypatch.setattr(filesystems, "MOUNTINFO", listing)


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/home/me", "ext4", False),
        ("/mnt/nas", "nfs4", True),
        ("/mnt/nas/a/b", "nfs4", True),
        ("/mnt/nasty", "ext4", False),
        ("/mnt/nas/local/x", "tmpfs", False),
        ("/mnt/my pictures\\x/y", "cifs", True),
        ("/mnt/twice/x", "fuse.sshfs", True),
        ("/mnt/\udcff/x", "9p", True),
        ("/mnt/nas/local/../x", "nfs4", True),
    ],
)
def test_the_longest_and_latest_mount_decides(path: str, kind: str, *, network: bool) -> None:
    assert file_system_type(Path(path)) == kind
    assert is_network(Path(path)) is network


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *(
            (kind, True)
            for kind in ("smb3", "drvfs", "fakeowner", "fuse.rclone", "fuse.blobfuse2", "fuse.ifuse")
        ),
        # the kernel tells of what happens there, or may; where it does not, the inbox finds out
        *(
            (kind, False)
            for kind in ("virtiofs", "overlay", "btrfs", "zfs", "fuseblk", "fuse.mergerfs", "fuse")
        ),
    ],
)
def test_types_that_other_machines_write_to(kind: str, *, network: bool) -> None:
    line = f"36 27 0:31 / /mnt/some rw - {kind} source rw\n"
    filesystems.MOUNTINFO.write_bytes(MOUNTINFO + line.encode())
    assert is_network(Path("/mnt/some/folder")) is network


def test_a_link_is_followed_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to("/mnt/nas/state")
    assert is_network(tmp_path / "state" / "deeper")


def test_what_the_system_does_not_tell_counts_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystems, "MOUNTINFO", tmp_path / "none")
    assert file_system_type(tmp_path) is None
    assert not is_network(tmp_path)


def test_lines_that_are_not_mounts_are_passed_over() -> None:
    assert parse_mountinfo(b"\nnonsense\n1 2 3 / /x rw\n") == ()


def test_the_real_listing_of_this_machine_knows_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    listing = Path("/proc/self/mountinfo")
    if not listing.exists():
        pytest.skip("no /proc here")
    assert any(mount.point == Path("/") for mount in parse_mountinfo(listing.read_bytes()))
    assert file_system_type(Path("/proc")) == "proc"


def test_macos_listing() -> None:
    listing = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "//me@nas.local/photos on on /Volumes/my (old) photos (smbfs, nodev, mounted by me)\n"
        "map auto_home on /System/Volumes/Data/home (autofs, automounted)\n"
    )
    assert parse_mac_mounts(listing) == (
        Mount(Path("/"), "apfs"),
        Mount(Path("/Volumes/my (old) photos"), "smbfs"),
        Mount(Path("/System/Volumes/Data/home"), "autofs"),
    )
