"""Names: which files arrive, and the litter of every program that shares a folder with us."""

from __future__ import annotations

import pytest

from watcher.core.names import (
    is_hidden_sibling,
    is_ignored,
    is_ignored_name,
    is_picture,
    is_sidecar,
    is_wanted,
)

IGNORED_NAMES = {
    # sync clients: what they write before they rename it, and what they keep for themselves
    "Syncthing": [
        ".syncthing.a.png.tmp",
        "~syncthing~a.png.tmp",
        ".stversions",
        ".stfolder",
        ".stignore",
    ],
    "Nextcloud": [
        "a.png.ocTransferId431656977.part",
        "a.png.octransferid1.png",
        ".a.png.~1a2b3c",
        "a.png.~1a2b",
        ".sync_ab12.db",
        ".nextcloudsync.log",
        "a.png.nextcloud",
    ],
    "ownCloud": ["._sync_1a2b.db", ".owncloudsync.log", ".csync_journal.db", "a.png.owncloud"],
    "Dropbox": [".dropbox.cache", ".dropbox", ".dropbox.attr", ".dropbox.device"],
    "Google Drive": [
        ".tmp.drivedownload",
        "a.png.tmp.drivedownload",
        ".tmp.driveupload",
        "a.png.tmp.driveupload",
    ],
    "OneDrive": [
        ".849C9593-D756-4E56-8D6E-42412F2A707B",
        "a.png.partial",  # the client for Linux
        "~RF1a2b3c.TMP",
        "a.png~RF1a2b3c.TMP",
    ],
    "MEGA": [".getxfer.1234.mega", "a.png.mega", ".megatmp.h4ndl3", ".debris", ".megaignore"],
    "Resilio": [
        ".sync",
        "a.png.!sync",
        "a.png.bts",
        "a.png.SyncPart",
        "a.png.SyncTemp",
        "a.png.SyncOld",
        ".SyncArchive",
    ],
    "iCloud": [".a.png.icloud", "a.png.icloud"],
    "Seafile": ["a.png.seaftmp~", ".seafile-data"],
    "Synology Drive": [".SynologyWorkingDirectory"],
    "Baidu": ["a.png.baiduyun.downloading", "a.png.baiduyun.p.downloading", "a.png.uploading"],
    "FolderSync": ["a.jpg.tacitpart"],
    "FreeFileSync": ["a.png.8ea2.ffs_tmp", "sync.ffs_lock", "sync.ffs_db", ".sync.ffs_db"],
    "GoodSync": ["_gsdata_"],
    "rsync": [".a.png.Xy12Ab", ".~tmp~", "a.png.~tmp~", ".rsync-partial"],
    "rclone": ["a.png.1a2b3c4d.partial", "a.png.partial"],
    "Unison": [".unison.a.png.581106b2917358e73c9036f678424717.unison.tmp"],
    # downloads and uploads
    "Chrome": ["a.png.crdownload", "Unconfirmed 12345.crdownload"],
    "Firefox": ["a.png.part", "KdEOMuF2.png.part"],
    "Safari": ["a.png.download"],
    "Opera": ["a.png.opdownload"],
    "Edge and Explorer": ["a.png.q1w2e3r.partial"],
    "Android": [".pending-1700000000-IMG_0001.jpg", ".trashed-1700000000-IMG_0001.jpg"],
    "downloaders": [
        "a.png.aria2",
        "a.png.fdmdownload",
        "a.png.dtapart",
        "a.png.xltd",
        "a.png.td",
        "a.png.incomplete",
        "a.png.ytdl",
        "a.png.inprogress",
    ],
    "BitTorrent": ["a.png.!ut", "a.png.!qB", "a.png.!bt", "a.png.bc!", "a.png.az!"],
    "FTP": ["a.png.filepart", ".pureftpd-upload.4eefcd05.15.543d.f8a021e", ".in.a.png."],
    # editors
    "office": ["~$a.png", "~$photo.jpg", "~WRL0001.tmp", ".~lock.a.odt#"],
    "editors": [
        "a.png~",
        ".a.png.swp",
        "#a.png#",
        ".goutputstream-AB12CD",
        ".#a.png",
        "a.png.kate-swp",
        "a.png.swp",
        "a.png.swo",
        "a.png.swx",
        "a.png.temp",
        "a.xcf.lock",
        "a.lck",
    ],
    "exiftool": ["a.jpg_exiftool_tmp"],
    # systems and boxes
    "Windows": [
        "Thumbs.db",
        "THUMBS.DB",
        "Thumbs.db:encryptable",
        "ehthumbs.db",
        "ehthumbs_vista.db",
        "desktop.ini",
        "$RECYCLE.BIN",
        "RECYCLER",
        "Recycled",
        "System Volume Information",
        "DfsrPrivate",
    ],
    "macOS": [
        ".DS_Store",
        "._a.png",
        "__MACOSX",
        "Icon\r",
        ".Screenshot 1.png",
        ".Trashes",
        ".AppleDouble",
        ".TemporaryItems",
        "Temporary Items",
        "Network Trash Folder",
        "TheVolumeSettingsFolder",
        "a.png.sb-1a2b3c4d-AbCdEf",
        "(A Document Being Saved By Preview 2)",
    ],
    "Linux": ["lost+found", ".nfs0000000000000001", ".fuse_hidden0001", ".Trash-1000", ".directory"],
    "Synology": [
        "@eaDir",
        "#recycle",
        "@tmp",
        "#snapshot",
        "@sharebin",
        "a.jpg@SynoEAStream",
        "a.jpg@SynoResource",
    ],
    "QNAP": ["@Recycle", "@Recently-Snapshot", ".@__thumb"],
    "ours": [".watcher"],
}

ORDINARY_NAMES = [
    "a.png",
    "IMG_0001.JPG",
    "~a.png",
    "$a.png",
    "#a.png",
    "@a.png",
    "a~b.png",
    "temp",
    "tmp.png",
    "download",
    "part.png",
    "My Thumbs.db.png",
    "a (conflicted copy 2026-01-01).png",
    "a.sync-conflict-20260101-120000-ABCDEFG.png",
    "a.png.mask.png",
    "IMG.marked.jpg",
    "recycle",
    "Icon.png",
    "-rf.png",
    "$(id).png",
    "a\nb.png",
    "\udcff.png",
    "ocTransferId.png",
    # what a person names so is meant: only the end of a name says temporary
    "photo.part1.jpg",
    "photo.part.jpg",
    "a.partial.png",
    "a.download.png",
    "a.crdownload.jpg",
    "exiftool_tmp.png",
    "scan.tmp.tif",
    "IMG~2.jpg",
    "a.std",
    "a.hotdog",
    "A Document Being Saved By Hand.png",
    "synology.png",
    "conflict.bak.png",
]


@pytest.mark.parametrize(
    ("program", "name"), [(program, name) for program, names in IGNORED_NAMES.items() for name in names]
)
def test_litter_is_ignored_as_a_file_and_as_a_folder(program: str, name: str) -> None:
    assert is_ignored_name(name), program
    assert is_ignored(name)
    assert is_ignored(f"a/{name}")
    assert is_ignored(f"{name}/b/c.png")
    assert not is_wanted(f"{name}/c.png")


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_ordinary_names_are_not_ignored(name: str) -> None:
    assert not is_ignored_name(name)
    assert not is_ignored(f"folder/{name}")


@pytest.mark.parametrize(
    "suffix",
    [
        "jpg jpeg jpe jfif png webp tif tiff bmp gif heic heif avif mpo JPG Png",
        "dng CR2 cr3 nef ARW orf raf rw2",
    ],
)
def test_pictures_are_known_by_their_suffix_in_any_case(suffix: str) -> None:
    for each in suffix.split():
        assert is_picture(f"a/b.{each}"), each
        assert is_wanted(f"a/b.{each}"), each


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a.txt",
        "a.png.tmp",
        "a.pngx",
        "png",
        "a.png/b",
        "a.png/b.txt",
        ".png",
        "x/.png",
        "a.",
        "a.txt.marks.json",
        "a.marks.json",
        ".marks.json",
        "a.jpg.marks.JSON",
    ],
)
def test_other_files_are_not_pictures(path: str) -> None:
    assert not is_picture(path)
    assert not is_wanted(path)


def test_a_sidecar_arrives_and_is_no_picture() -> None:
    assert is_sidecar("b/a.jpg.marks.json")
    assert is_wanted("b/a.jpg.marks.json")
    assert not is_picture("b/a.jpg.marks.json")
    assert not is_wanted("b/.a.jpg.marks.json")


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("private", "private/a.png", True),
        ("private", "x/private/y/a.png", True),
        ("private", "private.png", False),
        ("raw_*.png", "raw_1.png", True),
        ("raw_*.png", "x/y/raw_1.png", True),
        ("raw_*.png", "raw_1.jpg", False),
        ("cache/**", "cache/x/a.png", True),
        ("cache/**", "x/cache/a.png", False),
        ("x/cache", "x/cache/a.png", True),
        ("x/*/cache", "x/1/cache/2/a.png", True),
        ("**/old/*.png", "x/old/a.png", True),
        ("**/old/*.png", "x/old/y/a.png", False),
    ],
)
def test_the_users_globs(pattern: str, path: str, ignored: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_ignored(path, ("nothing-else", pattern)) is ignored
    assert is_wanted(path, (pattern,)) is not ignored


def test_a_malformed_glob_tells_what_to_write_instead() -> None:
    with pytest.raises(ValueError, match="stands alone"):
        is_ignored("a.png", ("a**b",))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".Screenshot 1.png", True),
        ("x/.Screenshot 1.png", True),
        (".a.png.Xy12Ab", True),
        (".DS_Store", False),
        ("._a.png", False),
        ("@eaDir/.a.png", False),
        (".stversions/.a.png", False),
        ("private/.a.png", False),
        ("a.png", False),
        ("a.png.tmp", False),
    ],
)
def test_dot_files_that_may_become_pictures(path: str, expected: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_hidden_sibling(path, ("private",)) is expected
