"""The names of everything the service says in its log: one table, and what each name means.

Rules of this file: a name is `subject.past_participle` (or a state); a new one is one entry here. A test
finds every name that the code uses and fails where it is not in the table, or has another level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One name.

    Attributes:
        level: of every line with this name.
        meaning: what happened, and what a person has to do, if anything.
    """

    level: Literal["debug", "info", "warning", "error"]
    meaning: str


EVENTS: Final[Mapping[str, EventSpec]] = {
    # the service
    "service.started": EventSpec(
        "info", "The state folder is ours and the journal is open; watching begins."
    ),
    "service.stopping": EventSpec("info", "Nothing new is accepted; what runs is finished."),
    "service.stopped": EventSpec("info", "The process ends; nothing is left running."),
    "service.failed": EventSpec("error", "The service cannot go on; the line says why and what to do."),
    "service.rescued": EventSpec("info", "Work that the last run left unfinished was taken up again."),
    "log.file_failed": EventSpec("warning", "The log file cannot be written; lines go to stderr alone."),
    # the inbox
    "inbox.found": EventSpec("info", "The inbox is there and watched; `mode` is native or polling."),
    "inbox.lost": EventSpec("warning", "The inbox is away (unmounted, renamed, deleted). Its jobs wait."),
    "inbox.rescanned": EventSpec("debug", "The inbox was listed."),
    "inbox.polling": EventSpec(
        "warning", "The system's notifications do not work here: the inbox is polled."
    ),
    "inbox.watch_failed": EventSpec(
        "warning", "The system's notifications could not be set up, or ended; they are set up again."
    ),
    "inbox.folder_unreadable": EventSpec(
        "warning", "A folder of the inbox cannot be listed; what was in it counts as still there."
    ),
    "inbox.defect": EventSpec(
        "error", "A defect in watching: the line has the traceback. Watching goes on; please report it."
    ),
    "file.settled": EventSpec("debug", "A file is complete."),
    "file.empty": EventSpec("warning", "A file has been empty for long; it is taken when it is filled."),
    "file.unreadable": EventSpec("warning", "A file cannot be read; it is tried again."),
    "file.orphan_mask": EventSpec("info", "A mask has waited long for its picture; it goes on waiting."),
    # jobs
    "job.created": EventSpec("debug", "A picture, its mask and its recipe became a job."),
    "job.dispatched": EventSpec("debug", "A job went to a worker."),
    "job.held": EventSpec("info", "Nothing is marked in the picture: the job waits for a mask."),
    "job.finished": EventSpec("info", "The result is published and recorded."),
    "job.failed": EventSpec("warning", "The picture was refused; `outbox/failed/` says why and what to do."),
    "job.quarantined": EventSpec("error", "The picture killed its process twice; it is not tried again."),
    "job.duplicate": EventSpec(
        "info", "The same content lies at a second path; it gets a copy of the result."
    ),
    "job.already_done": EventSpec("info", "The same content was done before; `watcher retry` does it again."),
    "job.renamed": EventSpec("info", "A picture that was done has another name now; nothing to do."),
    "job.superseded": EventSpec("info", "The bytes changed before publication; the new bytes are a new job."),
    "job.gone": EventSpec("info", "The source vanished before it was read."),
    "job.retried": EventSpec("info", "An attempt ended through no fault of the job; it is tried again."),
    # workers
    "worker.starting": EventSpec("info", "The resident worker is being started."),
    "worker.ready": EventSpec(
        "info", "The model is loaded and warm; the segments of the start are in the line."
    ),
    "worker.exited": EventSpec("warning", "A worker's process ended; the line says how."),
    "worker.restarting": EventSpec("info", "The worker is started again after a pause."),
    "worker.killed": EventSpec("warning", "A worker was killed, for the reason in the line."),
    "worker.disabled": EventSpec("error", "The worker cannot run as configured; pictures go the cold path."),
    "worker.breaker_opened": EventSpec("error", "The worker died too often; it rests, the cold path serves."),
    "worker.breaker_closed": EventSpec("info", "The worker is trusted again."),
    "engine.chosen": EventSpec("info", "Which engine and device run, which were configured, and why."),
    "path.changed": EventSpec("info", "Pictures go another path (hot, cold) from now on, and why."),
    # results
    "publish.blocked": EventSpec("error", "The outbox takes no results (full, away, read-only); they wait."),
    "publish.resumed": EventSpec("info", "The outbox takes results again."),
    "note.failed": EventSpec(
        "warning", "A note for `outbox/failed/` or `outbox/held/` could not be written."
    ),
    "after.failed": EventSpec("warning", "A source could not be archived or deleted; its result is safe."),
    "timing.failed": EventSpec("warning", "A timing line could not be written; it is made up for later."),
    # people
    "retry.accepted": EventSpec("info", "Jobs that a person named are done again."),
    "retry.unknown": EventSpec("warning", "The journal has no such job."),
    "request.rejected": EventSpec(
        "warning", "A file in the requests folder is not a request; it was set aside."
    ),
}


def markdown_table() -> str:
    """The table as the documentation shows it."""
    rows = [f"| `{name}` | {spec.level} | {spec.meaning} |" for name, spec in EVENTS.items()]
    return "\n".join(["| event | level | meaning |", "|---|---|---|", *rows]) + "\n"
