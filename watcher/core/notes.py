"""What the notes beside the results say: one JSON object for a failed picture, one for a held one.

Rules of this file:
- Pure contents; where a note lies and what it is called is the outbox's business.
- A note tells a person what happened, what to do about it, and the command that tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.core import record as records
from watcher.core.job import JobState
from watcher.core.pairing import mask_names

if TYPE_CHECKING:
    from watcher.core.job import Job, JsonObject, JsonValue
    from watcher.core.policy import Recipe


def failed_note(job: Job, remedy: JsonValue) -> JsonObject:
    """The note of a job that failed or was quarantined."""
    note: dict[str, JsonValue] = {
        "schema": 1,
        "job": job.id,
        **records.path_fields("source", job.source),
        "state": job.state.value,
        "reason": job.reason,
        "remedy": remedy,
        "try_again": f"watcher retry {job.id}",
    }
    if job.state is JobState.QUARANTINED:
        note["evidence"] = list(job.losses)
    return note


def held_note(job: Job, recipe: Recipe | None) -> JsonObject:
    """The note of a job that waits for a mask; `recipe` is None if the configuration lost it."""
    certain, *others = mask_names(job.source)
    marks: list[JsonValue] = list(recipe.marks) if recipe is not None else []
    return {
        "schema": 1,
        "job": job.id,
        **records.path_fields("source", job.source),
        "state": "held",
        "reason": "nothing is marked in this picture, so nothing was removed",
        "how_to_mark": (
            f"put a mask beside it: {records.printable(certain)}, the size of the picture, white where "
            "something is to go and black elsewhere; it is served as soon as the mask is there. The other "
            "names count only while no other picture of the folder has the same name before its suffix"
        ),
        "mask_names": [records.printable(name) for name in (certain, *others)],
        "marks_looked_for": marks,
    }


def retry_remedy(job: Job) -> str:
    """What a person does who wants a picture served again that needs nothing."""
    if job.has_result:
        return f"to do it again: watcher retry {job.id}"
    return f"change the file, or: watcher retry {job.id}"
