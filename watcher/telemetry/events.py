"""The names of everything the service says in its log: one table, and what each name means.

Rules of this file: a name is `subject.past_participle` (or a state); a new one is one entry here. A test
finds every name that the code uses and fails where it is not in the table, or never has that level.
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
        level: of lines with this name, as a rule; some are louder or quieter by their circumstances.
        meaning: what happened, and what a person has to do, if anything.
    """

    level: Literal["debug", "info", "warning", "error"]
    meaning: str


EVENTS: Final[Mapping[str, EventSpec]] = {
    # the service
    "service.started": EventSpec("info", "The state folder is ours, the journal is open; watching begins."),
    "service.stopping": EventSpec("info", "Nothing new is accepted; what runs is finished."),
    "service.stopped": EventSpec("info", "The process ends; nothing is left running."),
    "log.file_failed": EventSpec("warning", "The log file cannot be written; lines go to stderr alone."),
    "status.failed": EventSpec("warning", "`watcher status` shows old facts until this works again."),
    "manager.unreachable": EventSpec(
        "warning", "The service manager's socket takes nothing. It is tried again; meanwhile it may end us."
    ),
    # the inbox
    "inbox.found": EventSpec(
        "info",
        "The inbox is there and watched; `mode` is native or polling; `network`: on a network file system.",
    ),
    "inbox.lost": EventSpec("error", "The inbox is away (unmounted, renamed, deleted). Its jobs wait."),
    "inbox.rescanned": EventSpec("debug", "The inbox was listed."),
    "inbox.polling": EventSpec(
        "warning",
        "The system's notifications do not work here: it is polled, and they are tried again later.",
    ),
    "inbox.watch_failed": EventSpec(
        "warning", "The watch ended, or was deaf to a file that came; it is set up again."
    ),
    "inbox.folder_unreadable": EventSpec("warning", "A folder of the inbox cannot be listed."),
    "inbox.links_ignored": EventSpec("info", "The inbox has links in it, which are not followed."),
    "inbox.defect": EventSpec("error", "A mistake of ours in the watching; it goes on. Please report it."),
    "file.settled": EventSpec("debug", "A file is complete."),
    "file.empty": EventSpec("warning", "A file has been empty for long; it is taken when it is filled."),
    "file.incomplete": EventSpec("info", "A file has no end yet; it is looked at again when it grows."),
    "file.unreadable": EventSpec("warning", "A file cannot be read; it is tried again."),
    "file.orphan_mask": EventSpec("warning", "A mark file has waited long for its picture; it waits on."),
    # jobs
    "job.held": EventSpec("info", "Nothing is marked in the picture: the job waits for a mark."),
    "job.finished": EventSpec("info", "The result is published and recorded."),
    "job.failed": EventSpec("warning", "The picture was refused; `outbox/failed/` says why and what to do."),
    "job.quarantined": EventSpec("error", "The picture killed its process twice; it is not tried again."),
    "job.duplicate": EventSpec("info", "The same content lies at a second path; it gets a copy."),
    "job.already_done": EventSpec("info", "The same content was done before; `watcher retry` does it again."),
    "job.renamed": EventSpec("info", "A picture that was done has another name now; nothing to do."),
    "job.engine_failed": EventSpec("warning", "The engine raised on this picture; it is tried once more."),
    "job.too_large_for_device": EventSpec(
        "warning", "The picture does not fit into the accelerator's memory; it is served on the CPU."
    ),
    # workers
    "worker.starting": EventSpec("info", "The resident worker is being started."),
    "worker.ready": EventSpec(
        "info", "The model is warm and has passed its self-test; the line has the start's segments."
    ),
    "worker.exited": EventSpec("warning", "A worker's process ended; the line says how."),
    "worker.restarting": EventSpec(
        "warning", "The worker is started again after a pause, once one-shots that work are done."
    ),
    "worker.recycling": EventSpec(
        "info", "The worker is replaced by a fresh one; the line says which limit it has reached."
    ),
    "worker.slow": EventSpec(
        "info", "The worker is silent for long, and was seen to work or to want to; it is waited for longer."
    ),
    "worker.killed": EventSpec("warning", "A worker was killed, for the reason in the line."),
    "worker.disabled": EventSpec("error", "The worker cannot run as configured; pictures go the cold path."),
    "worker.breaker_opened": EventSpec("error", "The worker died too often; it rests, the cold path serves."),
    "worker.cold_start_failed": EventSpec("error", "A one-shot process did not start; it is tried again."),
    "worker.garbage": EventSpec("warning", "A worker wrote what is no message; it is killed."),
    "worker.unheard": EventSpec(
        "error", "The service failed to listen to a worker: a fault of ours. It is killed."
    ),
    "worker.pipe_closed": EventSpec("debug", "A worker ended while it was being written to."),
    "device.replaced": EventSpec("warning", "The configured device is not what runs; the line says why."),
    "path.changed": EventSpec("info", "Pictures go another path (hot, cold) from now on, and why."),
    "report.stale": EventSpec("info", "A worker that is no longer ours reported something; it is ignored."),
    # results
    "publish.blocked": EventSpec("error", "The outbox takes no results (full, away, read-only); they wait."),
    "publish.resumed": EventSpec("info", "The outbox takes results again."),
    "publish.stage_lost": EventSpec("warning", "A staged result vanished; the picture is done again."),
    "stage.not_removed": EventSpec("warning", "A staged file could not be removed; the next start does it."),
    "staging.undecided": EventSpec("debug", "Where staging may lie could not be tried: `.watcher/` it is."),
    "outbox.swept": EventSpec("info", "Staged files that a crash left were removed."),
    "outbox.folder_renamed": EventSpec("warning", "The result lies in a folder of another name."),
    "outbox.name_escaped": EventSpec(
        "warning", "The outbox's file system refuses a picture's name: its result has escapes (`%3F`) in it."
    ),
    "outbox.call_failed": EventSpec(
        "error", "A mistake of ours in the outbox; it is retried. Please report."
    ),
    "note.failed": EventSpec("warning", "A note for `outbox/failed/` or `held/` could not be written."),
    "note.not_removed": EventSpec("warning", "A note that is out of date could not be removed."),
    "after.failed": EventSpec("warning", "A source could not be archived or deleted; its result is safe."),
    "after.skipped": EventSpec("info", "A source was not archived or deleted, since it was changed."),
    # records
    "journal.blocked": EventSpec("error", "The journal cannot be written; nothing goes on before it can."),
    "journal.resumed": EventSpec("info", "The journal takes writes again."),
    "journal.unreadable": EventSpec("debug", "The journal could not be read; it is tried again."),
    "journal.prune_failed": EventSpec("debug", "The journal could not forget what is old; it tries again."),
    "journal.mark_failed": EventSpec("debug", "A mark in the journal was not made; it is made up for later."),
    "timings.blocked": EventSpec("error", "Timing lines cannot be written; they are kept for later."),
    "timings.rescued": EventSpec("info", "Timing lines that a crash prevented were written."),
    "timings.torn_line_removed": EventSpec("warning", "A torn timing line was removed; it is redone."),
    "timings.pruned": EventSpec("info", "An old timing log was deleted, as configured."),
    # people
    "retry.accepted": EventSpec("info", "Jobs that a person named are done again."),
    "retry.refused": EventSpec("warning", "A job cannot be done again: see the line."),
    "retry.unknown": EventSpec("warning", "The journal has no such job."),
    "request.rejected": EventSpec("warning", "A file in the requests folder is none; it was set aside."),
}


def markdown_table() -> str:
    """The table as the documentation shows it."""
    rows = [f"| `{name}` | {spec.level} | {spec.meaning} |" for name, spec in EVENTS.items()]
    return "\n".join(["| event | level | meaning |", "|---|---|---|", *rows]) + "\n"
