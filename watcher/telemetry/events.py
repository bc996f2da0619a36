"""The names of everything the service says in its log: one table, and what each name means.

Rules of this file: a name is `subject.past_participle` (or a state); a new one is one entry here. A test
finds every line that the code writes and fails where its name, its level or its fields are not those here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One name.

    Attributes:
        level: of lines with this name, as a rule; some are louder or quieter by their circumstances.
        meaning: what happened, and what a person has to do, if anything.
        fields: what such a line may have besides `ts`, `level` and `event`; some only by circumstances.
        also: the other levels that such a line may have.
    """

    level: Level
    meaning: str
    fields: tuple[str, ...] = ()
    also: tuple[Level, ...] = ()


EVENTS: Final[Mapping[str, EventSpec]] = {
    # the service
    "service.started": EventSpec(
        "info",
        "The state folder is ours, the journal is open; watching begins.",
        ("version", "inbox", "outbox", "engine", "device"),
    ),
    "service.stopping": EventSpec("info", "Nothing new is accepted; what runs is finished.", ("reason",)),
    "service.summed_up": EventSpec(
        "info",
        "What was done since the line of this kind before: how jobs ended, the times of those that came out, "
        "workers that were started again. None where nothing was done.",
        (
            "over_s",
            "done",
            "unchanged",
            "failed",
            "quarantined",
            "superseded",
            "gone",
            "held",
            "hot",
            "cold",
            "p50_ms",
            "p95_ms",
            "restarts",
        ),
    ),
    "service.stopped": EventSpec("info", "The process ends; nothing is left running.", ()),
    "log.file_failed": EventSpec(
        "warning", "The log file cannot be written; lines go to stderr alone.", ("file", "reason")
    ),
    "status.failed": EventSpec(
        "warning", "`watcher status` shows old facts until this works again.", ("reason",)
    ),
    "manager.unreachable": EventSpec(
        "warning",
        "The service manager's socket takes nothing. It is tried again; meanwhile it may end us.",
        ("reason",),
    ),
    # the inbox
    "inbox.found": EventSpec(
        "info",
        "The inbox is there and watched; `mode` is native or polling; `network`: on a network file system.",
        ("mode", "network"),
    ),
    "inbox.lost": EventSpec(
        "error", "The inbox is away (unmounted, renamed, deleted). Its jobs wait.", ("reason",)
    ),
    "inbox.rescanned": EventSpec("debug", "The inbox was listed.", ("files", "took_ms")),
    "inbox.polling": EventSpec(
        "warning",
        "The system's notifications do not work here: it is polled, and they are tried again later.",
        ("reason", "remedy", "path"),
    ),
    "inbox.watch_failed": EventSpec(
        "warning", "The watch ended, or was deaf to a file that came; it is set up again.", ("reason", "path")
    ),
    "inbox.folder_unreadable": EventSpec(
        "warning", "A folder of the inbox cannot be listed.", ("folder", "reason", "remedy", "more_folders")
    ),
    "inbox.links_ignored": EventSpec(
        "info", "The inbox has links in it, which are not followed.", ("count", "first", "remedy")
    ),
    "inbox.defect": EventSpec(
        "error", "A mistake of ours in the watching; it goes on. Please report it.", ("path",)
    ),
    "file.settled": EventSpec("debug", "A file is complete.", ("path",)),
    "file.empty": EventSpec(
        "warning", "A file has been empty for long; it is taken when it is filled.", ("path", "waited_s")
    ),
    "file.incomplete": EventSpec(
        "info", "A file has no end yet; it is looked at again when it grows.", ("job", "source", "reason")
    ),
    "file.unreadable": EventSpec("warning", "A file cannot be read; it is tried again.", ("path", "reason")),
    "file.orphan_mask": EventSpec(
        "warning", "A mark file has waited long for its picture; it waits on.", ("path",)
    ),
    # jobs
    "job.held": EventSpec(
        "info", "Nothing is marked in the picture: the job waits for a mark.", ("job", "source", "reason")
    ),
    "job.finished": EventSpec(
        "info",
        "The result is published and recorded.",
        ("job", "source", "outcome", "output", "path", "path_reason", "total_ms"),
    ),
    "job.failed": EventSpec(
        "warning",
        "The picture was refused; `outbox/failed/` says why and what to do.",
        ("job", "source", "reason", "remedy"),
    ),
    "job.quarantined": EventSpec(
        "error",
        "The picture killed its process twice; it is not tried again.",
        ("job", "source", "reason", "remedy"),
    ),
    "job.duplicate": EventSpec(
        "info", "The same content lies at a second path; it gets a copy.", ("job", "source", "duplicate_of")
    ),
    "job.already_done": EventSpec(
        "info",
        "The same content was done before; `watcher retry` does it again.",
        ("job", "source", "outcome", "output", "remedy"),
    ),
    "job.renamed": EventSpec(
        "info",
        "A picture that was done has another name now; nothing to do.",
        ("job", "source", "now", "outcome", "output", "remedy"),
    ),
    "job.engine_failed": EventSpec(
        "warning", "The engine raised on this picture; it is tried once more.", ("job", "source", "reason")
    ),
    "job.too_large_for_device": EventSpec(
        "warning",
        "The picture does not fit into the accelerator's memory; it is served on the CPU.",
        ("job", "source"),
    ),
    # workers
    "worker.starting": EventSpec("info", "The resident worker is being started.", ("incarnation",)),
    "worker.ready": EventSpec(
        "info",
        "The model is warm and has passed its self-test; the line has the start's segments.",
        ("path", "incarnation", "pid", "engine", "device", "segments_ms", "rss_bytes", "model_loads"),
        also=("debug",),
    ),
    "worker.exited": EventSpec(
        "warning",
        "A worker's process ended; the line says how.",
        (
            "path",
            "incarnation",
            "pid",
            "exit_code",
            "story",
            "reason",
            "remedy",
            "cause",
            "signal",
            "rss_bytes",
            "oom_kills",
            "process_state",
        ),
        also=("debug", "info"),
    ),
    "worker.restarting": EventSpec(
        "warning",
        "The worker is started again after a pause, once one-shots that work are done.",
        ("in_s", "fault"),
    ),
    "worker.recycling": EventSpec(
        "info",
        "The worker is replaced by a fresh one; the line says which limit it has reached.",
        ("incarnation", "reason"),
    ),
    "worker.slow": EventSpec(
        "info",
        "The worker is silent for long, and was seen to work or to want to; it is waited for longer.",
        ("incarnation", "phase", "busy_ms", "waits_for_disk"),
    ),
    "worker.killed": EventSpec(
        "warning",
        "A worker was killed, for the reason in the line.",
        ("incarnation", "reason", "again"),
        also=("error",),
    ),
    "worker.disabled": EventSpec(
        "error",
        "The worker cannot run as configured; pictures go the cold path.",
        ("incarnation", "exit_code"),
    ),
    "worker.breaker_opened": EventSpec(
        "error", "The worker died too often; it rests, the cold path serves.", ("crashes", "next_try_in_s")
    ),
    "worker.cold_start_failed": EventSpec(
        "error", "A one-shot process did not start; it is tried again.", ("story", "next_try_in_s")
    ),
    "worker.garbage": EventSpec(
        "warning", "A worker wrote what is no message; it is killed.", ("incarnation", "reason")
    ),
    "worker.unheard": EventSpec(
        "error",
        "The service failed to listen to a worker: a fault of ours. It is killed.",
        ("incarnation", "reason"),
    ),
    "worker.pipe_closed": EventSpec(
        "debug", "A worker ended while it was being written to.", ("incarnation", "reason")
    ),
    "device.replaced": EventSpec(
        "warning",
        "The configured device is not what runs; the line says why.",
        ("configured", "actual", "reason"),
    ),
    "path.changed": EventSpec(
        "info",
        "Pictures go another path (hot, cold) from now on, and why. Not where a long queue uses both.",
        ("path", "reason"),
        also=("warning",),
    ),
    "report.stale": EventSpec(
        "info", "A worker that is no longer ours reported something; it is ignored.", ("job", "incarnation")
    ),
    # results
    "publish.blocked": EventSpec(
        "error",
        "The outbox takes no results (full, away, read-only); they wait.",
        ("job", "source", "reason"),
    ),
    "publish.resumed": EventSpec("info", "The outbox takes results again.", ("job",)),
    "publish.stage_lost": EventSpec(
        "warning", "A staged result vanished; the picture is done again.", ("job", "source", "reason")
    ),
    "stage.not_removed": EventSpec(
        "warning", "A staged file could not be removed; the next start does it.", ("file", "reason")
    ),
    "staging.undecided": EventSpec(
        "debug", "Where staging may lie could not be tried: `.watcher/` it is.", ("reason",)
    ),
    "outbox.swept": EventSpec("info", "Staged files that a crash left were removed.", ("files",)),
    "outbox.folder_renamed": EventSpec(
        "warning", "The result lies in a folder of another name.", ("source", "folder")
    ),
    "outbox.name_escaped": EventSpec(
        "warning",
        "The outbox's file system refuses a picture's name: its result has escapes (`%3F`) in it.",
        ("source", "output", "reason"),
    ),
    "outbox.call_failed": EventSpec(
        "error", "A mistake of ours in the outbox; it is retried. Please report.", ("job",)
    ),
    "note.failed": EventSpec(
        "warning",
        "A note for `outbox/failed/` or `held/` could not be written.",
        ("kind", "source", "reason"),
    ),
    "note.not_removed": EventSpec(
        "warning", "A note that is out of date could not be removed.", ("source", "reason")
    ),
    "after.failed": EventSpec(
        "warning",
        "A source could not be archived or deleted; its result is safe.",
        ("job", "source", "file", "after", "reason", "remedy"),
        also=("debug",),
    ),
    "after.skipped": EventSpec(
        "info",
        "A source was not archived or deleted, since it was changed.",
        ("job", "source", "reason", "file"),
    ),
    # records
    "journal.blocked": EventSpec(
        "error", "The journal cannot be written; nothing goes on before it can.", ("reason", "remedy")
    ),
    "journal.resumed": EventSpec("info", "The journal takes writes again.", ()),
    "journal.unreadable": EventSpec(
        "debug", "The journal could not be read; it is tried again.", ("reason",)
    ),
    "journal.prune_failed": EventSpec(
        "debug", "The journal could not forget what is old; it tries again.", ("reason",)
    ),
    "journal.life_not_saved": EventSpec(
        "debug", "A worker's life was not noted: a trace will lack it.", ("reason",)
    ),
    "journal.mark_failed": EventSpec(
        "debug", "A mark in the journal was not made; it is made up for later.", ("reason",)
    ),
    "timings.blocked": EventSpec(
        "error", "Timing lines cannot be written; they are kept for later.", ("reason",)
    ),
    "timings.rescued": EventSpec("info", "Timing lines that a crash prevented were written.", ("lines",)),
    "timings.torn_line_removed": EventSpec(
        "warning", "A torn timing line was removed; it is redone.", ("file", "removed_bytes")
    ),
    "timings.pruned": EventSpec("info", "An old timing log was deleted, as configured.", ("file",)),
    # people
    "retry.accepted": EventSpec("info", "Jobs that a person named are done again.", ("job", "source")),
    "retry.refused": EventSpec(
        "warning", "A job cannot be done again: see the line.", ("job", "reason", "source"), also=("info",)
    ),
    "retry.unknown": EventSpec("warning", "The journal has no such job.", ("job", "remedy")),
    "request.rejected": EventSpec(
        "warning", "A file in the requests folder is none; it was set aside.", ("file", "reason")
    ),
}


def markdown_table() -> str:
    """The table as the documentation shows it."""
    rows = [
        f"| `{name}` | {' or '.join((spec.level, *spec.also))} | {spec.meaning} | {_listed(spec.fields)} |"
        for name, spec in EVENTS.items()
    ]
    return "\n".join(["| event | level | meaning | fields |", "|---|---|---|---|", *rows]) + "\n"


def _listed(fields: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "-"
