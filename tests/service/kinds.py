"""The kinds of failure that programs that watch folders met, each held by a test against the real service.

Rules of this file:
- A kind is named by its letter and number. A test that holds it carries `@pytest.mark.kind("A1")`; several
  tests may hold one kind, and one test several kinds.
- What cannot be run on this system is in `NOT_HERE`, with the reason, and what holds the decision instead.
- `tests/docs/test_kinds.py` keeps marks, this list and `docs/FAILURES.md` together.
"""

from __future__ import annotations

from typing import Final

KINDS: Final[dict[str, str]] = {
    # files that are not complete yet
    "A1": "a scanner has the file open for seconds: it was taken at its first event",
    "A2": "a writer holds the file for longer than any patience: its path was dropped until a restart",
    "A3": "a scanner makes an empty file and fills it minutes later: the empty one was refused for good",
    "A4": "a share client makes an empty file and fills it at once: a false failure before the success",
    "A5": "half a file lies there for a while: it was given up for ever, also when it was completed",
    "A6": "one slow upload beside quick files: one timer for the whole folder cut the slow one short",
    "A8": "a file has its final size from the start (preallocated): its size was taken for completeness",
    "A9": "a file is being written when the service starts: the first scan had no patience",
    "A11": "a writer opens and closes for each chunk: one file was queued many times",
    "A12": "a file grows in steps: the wait was counted from its first sight and not from its last growth",
    "A13": "a slow download lies there in part: it failed and was never tried again by itself",
    "A14": "opening is refused because a writer has the file for itself: the program died",
    "A15": "a move from another file system is a slow copy: it was taken before its end",
    "A16": "a sync client delivers a half-written file, and later the whole one: the second was ignored",
    # renames and temporary names
    "B1": "a file moved in is complete, and was made to wait like one that is being written",
    "B2": "rsync writes a dot-file and renames it: the rename was taken for a removal",
    "B3": "Syncthing's temporary names were picked up; stale ones were warned of at every scan",
    "B4": "Nextcloud's `.ocTransferId….part` names were picked up",
    "B5": "an unknown sync tool's temporary suffix was picked up",
    "B6": "a screenshot is written hidden and then renamed, and only the hidden name is told of",
    "B7": "a hard link has only a `created` event and no close: it was never taken",
    # events that are missing, and watches that are dead
    "C1": "the kernel's queue overflows: the events beyond it were lost without a word",
    "C2": "the buffer of ReadDirectoryChangesW overflows: nothing is told, not even that",
    "C3": "an overflow that the library drops was looked for in another library",
    "C4": "every overflow led to a scan at once: a core was pinned for minutes",
    "C5": "a recovery scan's own reading made events that overflowed the queue again",
    "C6": "the root is away for a moment: the polling thread died, and looked alive",
    "C7": "the root is unmounted and mounted again: the watch was blind, without an error",
    "C9": "the root is deleted and made again: the watch was dead, or the program",
    "C10": "one odd file raises in the handler: the dispatcher died, and the program lived on, blind",
    "C11": "folders come, move and go in swarms: the reader thread died of a KeyError",
    "C12": "a folder moved in shows its files, and not those that are added later",
    "C13": "a folder with files is moved or copied in: nothing in it was taken",
    "C14": "new folders were not watched with some configurations",
    "C15": "arming anew took a new baseline: what came in between was never queued",
    "C16": "the file system sends no events (containers, network): it worked at the start, then never",
    "C17": "the watch limit is reached: a crash loop, or a tree that is watched in part only",
    "C18": "a file moved out of the tree delayed every event after it by half a second",
    "C19": "events come shuffled, doubled and with the wrong label: files were taken as gone, or twice",
    "C20": "polling a huge tree with ignored folders never came to its end",
    # exactly once
    "D2": "the process restarts every few seconds: existing files were queued again at each start",
    "D3": "the database fails in the middle: the source was removed and never stored",
    "D4": "writing the result is interrupted: half an output stood under the final name",
    "D5": "the source cannot be deleted: it was served again and again",
    "D6": "the source stays where it is: it was served for ever",
    "D7": "a file that kills its process was tried for ever",
    "D8": "a process that cannot start was started in a tight loop, for days, unnoticed",
    "D9": "the disk is full: files were marked as done, or the program looped",
    "D11": "device and inode numbers change over a remount: everything looked new",
    "D12": "what was done between the last save and the exit was done again",
    "D14": "a name that is replaced was scanned twice and queued again",
    "D15": "a second copy of a file was an error at every start",
    # loops
    "E1": "the outbox lies in the inbox: results were served again without end",
    "E2": "the program's own intermediate files were picked up",
    "E3": "folders that contain each other were accepted",
    "E4": "a rename comes as an addition and a removal: the file was served twice",
    "E5": "the log lay in the watched folder: each line made an event, each event a line",
    # names and trees
    "F3": "names that differ in case only: one overwrote the other",
    "F4": "names that differ in their suffix or folder only: one result overwrote the other",
    "F5": "names with spaces, quotes, control characters or bytes that are no UTF-8 broke something",
    "F7": "links in the tree: loops, and files read from outside",
    "F8": "a tree is deleted while its files are served: a crash",
    "F9": "ignored names were honoured at the top only: a NAS's own folders flooded the log",
    "F10": "a pattern in the wrong language ignored nearly everything",
    # times
    "G1": "an old modification time, or the same size and time with other bytes: the change was missed",
    # permissions, mounts, services
    "H1": "a file may be read and not deleted: finished work counted as failed",
    "H2": "an inbox that may only be read did not work, or was written to",
    "H4": "the mount is away for a while: its files counted as deleted, and were served again on return",
    "H5": "the system denies access to the folder: the program looked healthy",
    "H6": "a mapped drive does not exist for a Windows service",
    "H7": "a placeholder of a cloud drive was opened: it blocked, and downloaded everything",
    "H8": "a unit that starts the program by path events misses some, or spins",
    # long runs
    "I2": "after one file, or after days, nothing was taken any more",
}

NOT_HERE: Final[dict[str, str]] = {
    "C2": "Windows is not supported; on every system the rescan finds what no event told of (C1, C16)",
    "C3": "a property of other libraries; what matters of it is C1",
    "H6": "Windows is not supported",
    "H8": "a decision, not a behaviour: the service is one long-lived process, started by no path event",
}
