"""The kinds of failure that programs met that watch folders, keep a model in a process, or take in pictures.

Rules of this file:
- A kind is named by its letters and number. A test that holds it carries `@pytest.mark.kind("A1")`; several
  tests may hold one kind, and one test several kinds.
- Kinds of pictures begin with P: PA is size, channels and masks, PC files, formats and metadata, PD the model
  file, its packages and the service around them. PB (quality, seams, speed, memory of the fill) is to come.
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
    # the worker: hang or crash
    "W1": "the worker is dead or frozen, and its parent goes on answering that all is well",
    "W2": "a health check beside the work passes while the work stands still",
    "W4": "the worker is killed while its parent waits for it or writes to it: a hang, a zombie",
    "W5": "after a worker's end the pool accepts work and does none",
    "W6": "a worker crashes: the server stays up, says that it is healthy, and cannot serve",
    "W7": "work is sent to a process that is busy with old work, or its late answer is taken for the new one",
    "W8": "one limit for loading and answering: a slow start is killed",
    "W9": "a hang leaves no evidence",
    # the worker: memory
    "W10": "a silent SIGKILL: nobody learns that memory ran out",
    "W11": "too little memory shows as a timeout",
    "W12": "who killed the worker knows why, who judges the job does not",
    # the worker: restarts
    "W13": "restarts that always fail go on for ever, or a permanent error is retried",
    "W14": "the service manager gives up after some crashes and stays dead",
    "W15": "a start limit that can never be reached",
    "W16": "a check that always fails is tried without end and without a state",
    "W17": "no restart after the worker was killed for memory; the queue fills quietly",
    # the worker: poison
    "W18": "a picture that kills its worker is lost, or comes back without end",
    "W19": "its count is kept by an id that changes, or dies with the service",
    "W20": "one poison picture among good ones keeps crashing every worker",
    "W21": "innocent pictures that share its worker are blamed",
    "W23": "recovery after a crash waits for a time-out",
    # the worker: leaks and recycling
    "W24": "recycling drops work, or leaves nobody to serve",
    "W25": "memory stays with the process after each batch, until it is killed",
    "W26": "a memory limit below what the warm worker needs kills it always, and in mid-work",
    "W27": "ProcessPoolExecutor with a task limit deadlocks",
    "W28": "ProcessPoolExecutor with many submits deadlocks",
    # the worker: orphans and zombies
    "W29": "the service is killed, and its workers live on with their memory",
    "W31": "a parent with process number 1 is taken for dead; a parent that dies early is missed",
    "W32": "at its parent's death the worker runs destructors, dumps core or leaves half an output",
    "W33": "on Windows a kill does not reach grandchildren",
    "W34": "without an init the dead pile up as zombies",
    # the worker: fork, threads, pipes
    "W36": "a fork after torch has run deadlocks",
    # the worker: the stop
    "W38": "SIGTERM kills work in flight, and it stays marked as running",
    "W39": "the signal reaches the whole group: the workers die first",
    "W40": "a shell in front of the service swallows SIGTERM; it is given less time than it needs",
    # the worker: logs
    "W42": "logs of workers grow without bound",
    "W43": "two processes write and rotate one log",
    # the worker: accelerators
    "W44": "recovery from a full accelerator inside the process is unreliable",
    "W45": "after one device error every call fails until the process ends",
    # the worker: publication, shared storage
    "W46": "a rename without fsync leaves files of zeros",
    "W47": "the last commits are lost at a power cut",
    "W48": "SQLite on a network file system is damaged",
    "W49": "no events come across a network file system; polling drops files",
    "W50": "a long task runs twice, since its lease ran out",
    "W51": "a task whose worker was killed is lost",
    # the worker: batching
    "W52": "the batch limit counts requests and not items",
    "W54": "a preferred batch size makes smaller ones",
    "W55": "each lone request pays the batching delay",
    # the worker: service managers
    "W56": "the watchdog kills a service that works for long, or hangs with it",
    "W57": "a service without permission for the folder hangs on a prompt",
    "W58": "a hardened unit keeps the model from running",
    "W59": "the service is killed while the model loads",
    "W60": "a small /dev/shm crashes the worker",
    "W61": "a Windows service does not start after an upgrade",
    # pictures: size, channels, masks
    "PA1": "the result is larger than the picture: it was padded and never cropped",
    "PA2": "a picture or mask that is not plain RGB or grey ends in an error about channels",
    "PA3": "a picture whose sides are no multiples of 8 ends in an error",
    "PA4": "a tiny or very narrow picture ends in an error about padding",
    "PA6": "a mask saved as JPEG marks its noise too: the whole picture, or a halo, is filled",
    "PA7": "the soft edge of a mask counts as marked, or as not, as it comes",
    "PA8": "the rim of what was marked stays, since the mask is tight",
    "PA9": "the mask is inverted: all but the mark is filled",
    "PA10": "a mask of another shape is stretched over the picture without a word",
    "PA11": "nothing was marked, and the unchanged picture is reported as done",
    "PA12": "everything is marked: a picture is made up",
    "PA14": "of two pictures whose names differ in their suffix only, one is lost",
    "PA15": "files are passed over without a word, and the run is called a success",
    "PA16": "the picture that was handed in is changed by the filling",
    # pictures: files, formats, metadata
    "PC1": "a portrait photo comes back on its side: its orientation was dropped",
    "PC2": "a photo comes back turned twice: its pixels were turned, and its tag stayed",
    "PC3": "EXIF, GPS and dates are lost; or the old thumbnail still shows what was removed",
    "PC4": "colours are dull: the colour profile was dropped",
    "PC5": "saving fails on a profile that is not of the picture's kind",
    "PC6": "transparent parts come back black",
    "PC7": "files come back many times larger",
    "PC8": "a JPEG comes back visibly worse; a lossless WebP comes back lossy",
    "PC9": "a picture of 16 bits comes back white, or with 8 bits",
    "PC10": "a CMYK picture comes back negative, or with other colours",
    "PC12": "a HEIC photo is not taken, and nobody says what to do",
    "PC13": "a file that is still being copied fails for good, and ends the batch",
    "PC14": "a picture that unpacks to gigabytes kills the process; a large scan is refused",
    "PC16": "a name with other letters than English ones cannot be opened",
    "PC19": "gamma, colour codes, resolution, texts: lost without a word",
    # the model file, its packages, the service around it
    "PD1": "half a model file, or a web page in its place, is trusted for ever",
    "PD2": "a download that ended early counts as complete",
    "PD3": "two different model files have one name, and one is taken for the other",
    "PD4": "a good model file is refused, since two exports are confused",
    "PD5": "the first run leaves folders of the downloader behind",
    "PD6": "it does not start without a network",
    "PD7": "a model file saved on a GPU does not load on a machine without one",
    "PD8": "the model's package demands an old Pillow",
    "PD9": "OpenCV needs a display's libraries on a server, or is installed twice",
    "PD10": "a torchvision of another build breaks torch",
    "PD11": "a module that newer Pythons no longer have is imported",
    "PD12": "the model's format is deprecated: each start warns, or ends",
    "PD13": "loading the model in a thread hangs",
    "PD14": "own results are served again, or failed files tried again, without end",
    "PD15": "a file is picked up while it is being copied, or never again",
    "PD16": "a broken file is tried for ever",
    "PD17": "the worker's start fails where processes are spawned",
    "PD18": "one bad file ends the batch, and later ones are not done",
    "PD19": "it ends without a word",
}

NOT_HERE: Final[dict[str, str]] = {
    "C2": "Windows is not supported; on every system the rescan finds what no event told of (C1, C16)",
    "C3": "a property of other libraries; what matters of it is C1",
    "H6": "Windows is not supported",
    "H8": "a decision, not a behaviour: the service is one long-lived process, started by no path event",
    "W27": "a decision: no pool of the library is used; workers are started by exec and spoken to by pipes",
    "W28": "as W27",
    "W33": "Windows is not supported",
    "W61": "Windows is not supported",
    "PD17": "a decision: workers are started by exec and spoken to by pipes; nothing is pickled",
}
