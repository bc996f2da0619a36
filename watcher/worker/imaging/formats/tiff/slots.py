"""Where changed pieces of a compressed TIFF go: back into their slots, into each other's, or to the end.

Rules of this module:
- The old bytes of a changed piece are zeroed before anything is written, unless an unchanged piece shares
  them: then they are that piece's.
- A piece that fits goes where it was. What does not fit takes what others left over, the largest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watcher.worker.imaging.formats.tiff import tags

if TYPE_CHECKING:
    from watcher.worker.imaging.formats.tiff.edit import TiffEdit
    from watcher.worker.imaging.formats.tiff.layout import TiffLayout

    Slots = list[tuple[int, int]]
    """Start and stop of free ranges of a file, in order, apart from each other."""


def put_pieces(edit: TiffEdit, layout: TiffLayout, changed: dict[int, bytes]) -> None:
    """Put changed pieces into a file and tell its directory where they are.

    Args:
        edit: the file.
        layout: of its pixels.
        changed: new contents by the piece's number.
    """
    own = _free_slots(layout, changed)
    for start, stop in own.values():
        edit.erase(start, stop)
    offsets, sizes = layout.offsets.copy(), layout.sizes.copy()
    places, left = _back_into_slots(own, changed)
    left_over = [(place + len(changed[index]), own[index][1]) for index, place in places.items()]
    left_over += [slot for index, slot in own.items() if index not in places]
    places |= places_for(edit, left_over, {index: changed[index] for index in left})
    for index, place in places.items():
        offsets[index], sizes[index] = place, len(changed[index])
        edit.put(place, changed[index])
    edit.set_numbers(tags.TILE_OFFSETS if layout.tiled else tags.STRIP_OFFSETS, offsets)
    edit.set_numbers(tags.TILE_COUNTS if layout.tiled else tags.STRIP_COUNTS, sizes)


def _free_slots(layout: TiffLayout, changed: dict[int, bytes]) -> dict[int, tuple[int, int]]:
    """Return the slots that only changed pieces have, each with the first of them."""
    _, slot_of, users = np.unique(layout.offsets, return_inverse=True, return_counts=True)
    indices = np.array(sorted(changed), np.int64)
    freed = np.bincount(slot_of[indices], minlength=len(users)) == users
    own: dict[int, tuple[int, int]] = {}
    for slot, index in zip(slot_of[indices].tolist(), indices.tolist(), strict=True):
        if freed[slot]:
            freed[slot] = False
            own[index] = (int(layout.offsets[index]), int(layout.offsets[index] + layout.sizes[index]))
    return own


def _back_into_slots(
    own: dict[int, tuple[int, int]], changed: dict[int, bytes]
) -> tuple[dict[int, int], list[int]]:
    places: dict[int, int] = {}
    left: list[int] = []
    for index, content in changed.items():
        start, stop = own.get(index, (0, 0))
        if len(content) <= stop - start:
            places[index] = start
        else:
            left.append(index)
    return places, left


def places_for(edit: TiffEdit, free: Slots, contents: dict[int, bytes]) -> dict[int, int]:
    """Choose where contents go: into erased ranges where they fit, else to the end of the file.

    Args:
        edit: the file.
        free: ranges that are erased, and nobody's.
        contents: by number; those for the end are written.

    Returns:
        Offsets by number.
    """
    free = _merged(free)
    places: dict[int, int] = {}
    for index, content in sorted(contents.items(), key=lambda item: -len(item[1])):
        for number, (start, stop) in enumerate(free):
            if len(content) <= stop - start:
                places[index] = start
                free[number] = (start + len(content), stop)
                break
    behind = {index: content for index, content in contents.items() if index not in places}
    if behind and free and free[-1][1] == edit.end:
        edit.give_back_tail(free[-1][0])
    return places | {index: edit.append(content) for index, content in behind.items()}


def _merged(slots: Slots) -> Slots:
    merged: Slots = []
    for start, stop in sorted(slots):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif stop > start:
            merged.append((start, stop))
    return merged
