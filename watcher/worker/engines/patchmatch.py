"""Engine `patchmatch`: the embedded default. It copies texture from around the hole and understands nothing.

Rules of this file:
- Each hole component (8-connected) is filled on its own, from a box around it with a margin of max(64 px,
  its thickness); what the crop's edge takes of the margin is added on the open side. Where the boxes
  together are larger than the crop, the crop is filled as a whole: hundreds of specks never cost more than
  one crop.
- No pixel of any hole is ever a source, filled or not, so the result does not depend on what was under it.
- Components at most 4 px thick, components with too little around them to copy from, and everything where
  patchmatch has no binary go to OpenCV's Navier-Stokes inpainting: smooth, and blurred in a large hole.
- The same crop gives the same bytes: the search starts from one seed, whatever ran before.
- The cost is bounded. Measured (x86, one thread): 2.6 us a pixel of the box and 19 us a pixel of the hole, so
  1.1 s for a 100 x 200 hole in 512 x 512; a pixel of a speck costs about twice that. A box beyond about 8 s
  (a solid hole of more than 430 x 430 px) is filled at a smaller scale and the fill enlarged: it comes out
  softer than its surroundings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watcher.wire import DeviceEvidence, DeviceFacts, EngineFacts
from watcher.worker import devices
from watcher.worker.engines.load_clock import LoadClock
from watcher.worker.engines.protocol import Crop, FillError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from watcher.wire import EngineChoice
    from watcher.worker.engines.protocol import LoadSegments

    Pixels = NDArray[np.uint8]
    Hole = NDArray[np.bool_]

PATCH_RADIUS_PX = 3
"""Patches of 7 x 7, what pypatchmatch calls size 3."""
SEED = 20_091_018
MIN_MARGIN_PX = 64
MARGIN_SHARE = 1.0
"""Of a hole's thickness. Both were measured (docs/QUALITY.md): much less is worse in texture, more costs time
and is no better."""
THIN_PX = 4
"""Measured with lines over real pictures (docs/QUALITY.md): at 3 px patches are little nearer in texture and
further from the truth; from 5 px on Navier-Stokes shows."""
NAVIER_STOKES_RADIUS_PX = 3
MIN_SOURCE_PATCHES = 49
"""Fewer wholly known patches than one patch has pixels are not a texture to copy from."""
WORK_PER_HOLE_PX = 8
"""What a pixel of the hole costs more than a pixel of the box, measured (see the module's docstring)."""
CROP_PX_PER_WORK = 64
NAVIER_STOKES_BOX_PX_PER_WORK = 16
NAVIER_STOKES_WORK_PER_HOLE_PX = 2
"""What looking through a crop, and Navier-Stokes, cost in the same measure."""
MAX_WORK = 3 << 20
"""In pixels of box; about 8 s."""


@dataclass(frozen=True, slots=True)
class Component:
    """One hole, or several that are filled together.

    Attributes:
        box: rows and columns of its smallest box.
        mask: bool, of the box's shape; True on the component.
        thickness_px: twice the largest distance to a known pixel. A strip along the crop's edge counts
            double, since it is known from one side only.
    """

    box: tuple[slice, slice]
    mask: Hole
    thickness_px: float


class PatchmatchEngine:
    """pypatchmatch for what is thick, OpenCV's Navier-Stokes for what is thin."""

    name = "patchmatch"

    def __init__(self, choice: EngineChoice) -> None:
        self._choice = choice
        self._clock = LoadClock()
        self._patchmatch: Any = None
        self._reason: str | None = None
        self._loads = 0
        self._seen: tuple[Crop, list[Component]] | None = None

    @property
    def model_loads(self) -> int:
        """One after `load`: there are no weights, and the libraries are loaded once."""
        return self._loads

    def load(self) -> LoadSegments:
        """Import the libraries. Without patchmatch's binary the engine runs on Navier-Stokes and says so."""
        with self._clock.measure("import_ns"):
            import cv2

            self._patchmatch = _import_patchmatch()
            if self._choice.threads is not None:
                cv2.setNumThreads(self._choice.threads)
        if self._patchmatch is None:
            self._reason = (
                "pypatchmatch has no binary here: every hole is filled by OpenCV's Navier-Stokes, which blurs"
            )
        self._loads += 1
        return self._clock.segments()

    def warm_up(self) -> None:
        """Fill one small hole of each kind, so that both libraries have run."""
        import numpy as np

        pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        hole = np.zeros((64, 64), dtype=np.bool_)
        hole[8:12, 8:12] = True
        hole[30:42, 30:42] = True
        self.fill([Crop(pixels=pixels, hole=hole)])

    def give_way(self, reason: str) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing stands behind this one."""
        return False

    def work_px(self, crop: Crop) -> int:
        """Return about what `fill` will do, in pixels of a patchmatch box: holes cost, not crops."""
        thin, thick = _thin_and_thick(self._components_of(crop))
        work = crop.hole.size // CROP_PX_PER_WORK
        for component in (*thin, *self._boxes_in_budget(thick, crop.hole)):
            box_px = _area(_grown(component.box, _margin_px(component), crop.hole.shape))
            hole_px = int(component.mask.sum())
            if self._copies(component):
                work += min(MAX_WORK, box_px + WORK_PER_HOLE_PX * hole_px)
            else:
                work += box_px // NAVIER_STOKES_BOX_PX_PER_WORK + NAVIER_STOKES_WORK_PER_HOLE_PX * hole_px
        return work

    def fill(self, crops: Sequence[Crop], *, progress: Callable[[int], None] | None = None) -> list[Pixels]:
        """Fill each crop's components one by one. Contract: `Engine.fill`."""
        results = []
        for index, crop in enumerate(crops):
            results.append(self._fill_one(crop))
            if progress is not None:
                progress(index)
        return results

    def facts(self) -> EngineFacts:
        """Return the engine's two columns; the reason tells of a missing binary."""
        return EngineFacts(configured=self.name, actual=self.name, reason=self._reason)

    def device(self) -> DeviceFacts:
        """Return the CPU: there is no other way to run it, and nothing to measure."""
        elsewhere = self._choice.device not in (devices.AUTO, devices.CPU)
        return DeviceFacts(
            configured=self._choice.device,
            available=(devices.CPU,),
            actual=devices.CPU,
            reason="patchmatch runs on the CPU only" if elsewhere else None,
            evidence=DeviceEvidence(output=devices.CPU),
        )

    def _fill_one(self, crop: Crop) -> Pixels:
        if crop.hole.all():
            raise FillError("the crop is hole all over: there is nothing to copy from")
        result: Pixels = crop.pixels.copy()
        if not crop.hole.any():
            return result
        thin, thick = _thin_and_thick(self._components_of(crop))
        self._seen = None
        for component in (*thin, *self._boxes_in_budget(thick, crop.hole)):
            within = _grown(component.box, _margin_px(component), crop.hole.shape)
            filled = self._fill_component(component, within, crop)
            target = result[component.box]
            target[component.mask] = filled[_relative(component.box, within)][component.mask]
        return result

    def _components_of(self, crop: Crop) -> list[Component]:
        """Find the crop's holes; once, where `fill` follows `work_px`: it takes 40 ms for a megapixel."""
        if self._seen is None or self._seen[0] is not crop:
            self._seen = (crop, _components(crop.hole))
        return self._seen[1]

    def _boxes_in_budget(self, thick: list[Component], hole: Hole) -> list[Component]:
        """Join the components where their boxes, summed up, are more work than the crop as a whole."""
        boxes = (_grown(component.box, _margin_px(component), hole.shape) for component in thick)
        if sum(_area(box) for box in boxes) <= hole.size or len(thick) < 2:  # noqa: PLR2004 - one is joined already
            return thick
        return [_joined(thick, hole)]

    def _fill_component(self, component: Component, within: tuple[slice, slice], crop: Crop) -> Pixels:
        import numpy as np

        pixels = np.ascontiguousarray(crop.pixels[within])
        holes = np.ascontiguousarray(crop.hole[within])
        own = np.zeros_like(holes)
        own[_relative(component.box, within)] = component.mask
        if not self._copies(component) or not _has_sources(holes):
            return _navier_stokes(pixels, holes)
        scale = _scale_in_budget(holes.size, int(own.sum()))
        if scale == 1:
            return self._copy_patches(pixels, own, holes & ~own)
        return self._copy_patches_smaller(pixels, own, holes & ~own, scale)

    def _copies(self, component: Component) -> bool:
        """Whether patches are to be copied into it, if there are any."""
        return self._patchmatch is not None and component.thickness_px > THIN_PX

    def _copy_patches(self, pixels: Pixels, own: Hole, others: Hole) -> Pixels:
        """Fill `own`; `others` are neither filled nor copied from."""
        self._patchmatch.set_random_seed(SEED)
        filled: Pixels = self._patchmatch.inpaint(
            pixels, own, global_mask=others if others.any() else None, patch_size=PATCH_RADIUS_PX
        )
        return filled

    def _copy_patches_smaller(self, pixels: Pixels, own: Hole, others: Hole, scale: float) -> Pixels:
        """Fill at a smaller scale and enlarge the fill. A small pixel is hole if any part of it is."""
        import cv2
        import numpy as np

        height, width = own.shape
        size = (max(1, round(width * scale)), max(1, round(height * scale)))

        def shrunk(hole: Hole) -> Hole:
            share = cv2.resize(hole.astype(np.float32), size, interpolation=cv2.INTER_AREA)
            return np.asarray(share > 0)

        small_own = shrunk(own)
        small_pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
        filled = self._copy_patches(small_pixels, small_own, shrunk(others) & ~small_own)
        enlarged = cv2.resize(filled, (width, height), interpolation=cv2.INTER_CUBIC)
        return np.asarray(enlarged, dtype=np.uint8)


def _import_patchmatch() -> Any:  # noqa: ANN401 - the module, or None
    try:
        import patchmatch
    except (ImportError, OSError):
        return None
    return patchmatch if patchmatch.patchmatch_available else None


def _components(hole: Hole) -> list[Component]:
    import cv2
    import numpy as np

    count, labels, stats, _ = cv2.connectedComponentsWithStats(hole.astype(np.uint8), connectivity=8)
    distance = cv2.distanceTransform(hole.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    found = []
    for label in range(1, count):
        left, top, width, height = (int(stats[label, column]) for column in range(4))
        box = (slice(top, top + height), slice(left, left + width))
        mask = np.asarray(labels[box] == label)
        thickness_px = 2 * float(distance[box][mask].max())
        found.append(Component(box=box, mask=mask, thickness_px=thickness_px))
    return found


def _thin_and_thick(components: list[Component]) -> tuple[list[Component], list[Component]]:
    thin = [component for component in components if component.thickness_px <= THIN_PX]
    return thin, [component for component in components if component.thickness_px > THIN_PX]


def _joined(components: list[Component], hole: Hole) -> Component:
    """Return one component of all, with the box of the whole crop."""
    import numpy as np

    mask = np.zeros_like(hole)
    for component in components:
        mask[component.box] |= component.mask
    return Component(
        box=(slice(0, hole.shape[0]), slice(0, hole.shape[1])),
        mask=mask,
        thickness_px=max(component.thickness_px for component in components),
    )


def _margin_px(component: Component) -> int:
    if component.thickness_px <= THIN_PX:
        return 2 * NAVIER_STOKES_RADIUS_PX  # Navier-Stokes sees no further
    return max(MIN_MARGIN_PX, round(MARGIN_SHARE * component.thickness_px))


def _grown(box: tuple[slice, slice], margin_px: int, shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Return the box with a margin; what the edge takes of it on one side is added on the other."""
    rows, columns = box
    return _widened(rows, margin_px, shape[0]), _widened(columns, margin_px, shape[1])


def _widened(span: slice, margin_px: int, limit: int) -> slice:
    start, stop = span.start - margin_px, span.stop + margin_px
    return slice(max(0, start - max(0, stop - limit)), min(limit, stop + max(0, -start)))


def _relative(box: tuple[slice, slice], within: tuple[slice, slice]) -> tuple[slice, slice]:
    top, left = within[0].start, within[1].start
    return (
        slice(box[0].start - top, box[0].stop - top),
        slice(box[1].start - left, box[1].stop - left),
    )


def _area(box: tuple[slice, slice]) -> int:
    rows, columns = box
    return int((rows.stop - rows.start) * (columns.stop - columns.start))


def _has_sources(holes: Hole) -> bool:
    """Tell whether enough patches are wholly known."""
    import cv2
    import numpy as np

    side = 2 * PATCH_RADIUS_PX + 1
    if min(holes.shape) < side:
        return False
    known = (~holes).astype(np.uint8)
    # outside of the box counts as unknown: a patch must lie inside it
    whole = cv2.erode(
        known, np.ones((side, side), np.uint8), borderType=cv2.BORDER_CONSTANT, borderValue=(0,)
    )
    return int(np.count_nonzero(whole)) >= MIN_SOURCE_PATCHES


def _scale_in_budget(box_px: int, hole_px: int) -> float:
    work = box_px + WORK_PER_HOLE_PX * hole_px
    return 1.0 if work <= MAX_WORK else float((MAX_WORK / work) ** 0.5)


def _navier_stokes(pixels: Pixels, holes: Hole) -> Pixels:
    """Fill all holes of the box smoothly.

    Bertalmio, Bertozzi and Sapiro, "Navier-Stokes, fluid dynamics, and image and video inpainting" (2001).
    """
    import cv2
    import numpy as np

    mask = holes.astype(np.uint8) * np.uint8(255)
    return np.asarray(cv2.inpaint(pixels, mask, NAVIER_STOKES_RADIUS_PX, cv2.INPAINT_NS), dtype=np.uint8)
