"""What the notes beside the results say: one JSON object for a failed picture, one for a held one.

Rules of this file:
- Pure contents; where a note lies and what it is called is the outbox's business.
- A note tells a person what happened, what to do about it, and the command that tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watcher.core import record as records
from watcher.core.job import JobState
from watcher.core.pairing import marked_copy_names, mask_names, meant_name, sidecar_name
from watcher.core.policy import Recipe

if TYPE_CHECKING:
    from watcher.core.job import Job, JsonObject, JsonValue


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
    recipe = recipe or Recipe(job.identity.recipe)
    meant = meant_name(job.source)
    hint: JsonObject = {} if meant is None else {"did_you_mean": _MEANT.format(name=records.printable(meant))}
    return {
        "schema": 1,
        "job": job.id,
        **records.path_fields("source", job.source),
        "state": "held",
        "reason": f"{job.reason}, so nothing was removed",
        **hint,
        "how_to_mark": ways_to_mark(job.source, recipe),
        "mask_names": [records.printable(name) for name in mask_names(job.source)],
        "marks_looked_for": list(recipe.marks),
    }


def ways_to_mark(picture: str, recipe: Recipe) -> str:
    """Say how a picture is marked where this recipe serves it."""
    ways = [way for source in recipe.marks if (way := _way(source, picture, recipe)) is not None]
    return f"{'; or '.join(ways)}. {_WHAT_ELSE}" if ways else _NO_WAY


_MEANT: Final = "if this file says what is to go in another picture, its name should be {name}"
_WHAT_ELSE: Final = (
    "It is served as soon as that is there. Names without the picture's suffix count only while no other "
    "picture of the folder has the same name before its suffix"
)
_NO_WAY: Final = "its recipe marks by regions alone, and none of them lies in this picture: change the recipe"


def _way(source: str, picture: str, recipe: Recipe) -> str | None:
    match source:
        case "mask":
            white = "black" if recipe.invert else "white"
            mask = records.printable(mask_names(picture)[0])
            return f"put a mask beside it: {mask}, the size of the picture, {white} where something is to go"
        case "marked_copy":
            copy = records.printable(marked_copy_names(picture)[0])
            return f"scribble over what is to go, in any editor, and save that beside it as {copy}"
        case "sidecar":
            return f"name boxes or polygons in {records.printable(sidecar_name(picture))}"
        case "colour":
            return f"paint over what is to go in the colour {recipe.colour}, and save it under its name"
        case "alpha":
            return "erase what is to go, so that it is transparent, and save it under its name"
        case _:
            return None


def retry_remedy(job: Job) -> str:
    """What a person does who wants a picture served again that needs nothing."""
    if job.has_result:
        return f"to do it again: watcher retry {job.id}"
    return f"change the file, or: watcher retry {job.id}"
