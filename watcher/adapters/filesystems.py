"""Which kind of file system a path lies on. Looks; changes nothing.

Rules of this file: what the system does not tell is None, never a guess, and None counts as local.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOUNTINFO = Path("/proc/self/mountinfo")

NETWORK_TYPES: Final = frozenset(
    {
        # file servers
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "afs", "afpfs", "ncpfs", "coda", "davfs", "webdav"),
        # file systems of a cluster
        *("ceph", "glusterfs", "lustre", "gpfs", "beegfs", "orangefs", "pvfs2", "gfs2", "ocfs2"),
        # folders that a virtual machine or container shares with its host. virtiofs is left out: it is also
        # the root disk of whole guests, where locks and shared memory work. Where it is a shared folder, the
        # inbox finds out by itself that nobody tells of its files
        *("9p", "vboxsf", "vmhgfs", "prl_fs", "fakeowner", "drvfs"),
        # the same through FUSE
        *(
            "fuse.sshfs",
            "fuse.rclone",
            "fuse.s3fs",
            "fuse.gcsfuse",
            "fuse.goofys",
            "fuse.davfs",
            "fuse.davfs2",
        ),
        *("fuse.ceph", "fuse.glusterfs", "fuse.smbnetfs", "fuse.curlftpfs", "fuse.cifs", "fuse.nfs"),
        *(
            "fuse.gvfsd-fuse",
            "fuse.kio-fuse",
            "fuse.google-drive-ocamlfuse",
            "fuse.onedriver",
            "fuse.juicefs",
        ),
        *("fuse.blobfuse", "fuse.blobfuse2", "fuse.ifuse", "fuse.jmtpfs", "fuse.simple-mtpfs", "fuse.portal"),
        *("fuse.vmhgfs-fuse", "fuse.prl_fsd", "fuse.osxfs", "fuse.grpcfuse", "macfuse", "osxfuse"),
    }
)
_MAC_MOUNT: Final = re.compile(r"^.*? on (?P<point>/.*) \((?P<kind>[^,()]+)[^()]*\)$")


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system shows, and its type as the kernel names it."""

    point: Path
    kind: str


def file_system_type(path: Path) -> str | None:
    """The type of the file system (`ext4`, `nfs4`, `fuse.sshfs`, ...) that a path lies, or would lie, on.

    Returns:
        None where the system does not tell.
    """
    real = Path(os.path.realpath(path))
    best: Mount | None = None
    for mount in _mounts():
        # of two mounts on one point the later hides the earlier
        if real.is_relative_to(mount.point) and (
            best is None or len(mount.point.parts) >= len(best.point.parts)
        ):
            best = mount
    return None if best is None else best.kind


def is_network(path: Path) -> bool:
    """Whether another machine may change this path behind the kernel's back."""
    return file_system_type(path) in NETWORK_TYPES


def parse_mountinfo(text: bytes) -> tuple[Mount, ...]:
    """Read the lines of Linux' `/proc/self/mountinfo` (proc_pid_mountinfo(5)), in order."""
    found = []
    for line in text.splitlines():
        fields, _, rest = line.partition(b" - ")
        names, kinds = fields.split(b" "), rest.split(b" ")
        if len(names) > 4 and kinds[0]:  # noqa: PLR2004 - the fifth field is the mount point
            point = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), names[4])
            found.append(Mount(Path(os.fsdecode(point)), os.fsdecode(kinds[0])))
    return tuple(found)


def parse_mac_mounts(text: str) -> tuple[Mount, ...]:
    """Read the lines of macOS' `mount`: `//me@nas/photos on /Volumes/photos (smbfs, nodev, ...)`."""
    matches = (_MAC_MOUNT.match(line) for line in text.splitlines())
    return tuple(Mount(Path(match["point"]), match["kind"]) for match in matches if match)


def _mounts() -> tuple[Mount, ...]:
    try:
        if sys.platform == "darwin":
            listing = subprocess.run(["/sbin/mount"], capture_output=True, check=False, timeout=5)
            return parse_mac_mounts(os.fsdecode(listing.stdout))
        return parse_mountinfo(MOUNTINFO.read_bytes())
    except (OSError, subprocess.SubprocessError):
        return ()
