r"""Makes `sample_inbox/`: real pictures, and what a person would have marked on them.

Users never need this script; the folder it writes is committed. It is here so that everyone can see
where each file comes from, and make the folder again:

    pip download --no-deps --only-binary :all: --python-version 3.11 --dest wheels \
        scikit-image==0.26.0 scipy==1.9.3 matplotlib==3.9.2
    python benchmarks/make_sample_inbox.py --wheels wheels

Rules: only pictures in the public domain or under CC0 go in (`SOURCES.md` names each); no picture is
scaled, only a marked copy is, as a phone's editor does; a picture keeps the bytes it was published with
wherever the sample needs no other form; every mark is drawn on what a viewer shows; all together stay
within 4 MB. The JPEG and WebP bytes depend on the encoders that Pillow brings; everything else is the same on
each run.
"""

from __future__ import annotations

import argparse
import bz2
import io
import json
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFilter, ImageFont

OUT = Path(__file__).resolve().parent.parent / "sample_inbox"
SIZE_LIMIT_BYTES = 4_000_000
ANTIALIAS = 4  # masks with soft edges are drawn this much larger, then reduced
EXIF_DESCRIPTION, EXIF_ORIENTATION, EXIF_ARTIST, EXIF_COPYRIGHT = 0x010E, 0x0112, 0x013B, 0x8298
ROTATED_FOR_VIEWING = 6  # stored a quarter turn to the left, as a phone held upright does

MARKER = (255, 0, 255)  # the colour that the recipe for strokes looks for
PHONE_QUALITY = 85  # with colours at half the resolution, as the editors of phones save
RACCOON_SIZE = (1024, 768)

Point = tuple[int, int]
Ink = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Wheels:
    """The packages that the photographs come with."""

    folder: Path

    def read(self, package: str, member: str) -> bytes:
        """A file out of a package's wheel.

        Raises:
            SystemExit: the folder has not exactly one wheel of that package.
        """
        found = sorted(self.folder.glob(f"{package}-*.whl"))
        if len(found) != 1:
            raise SystemExit(
                f"{self.folder}: {len(found)} wheels of {package}; see --help for what to download"
            )
        with zipfile.ZipFile(found[0]) as wheel:
            return wheel.read(member)

    def bytes_of(self, name: str) -> bytes:
        """A picture that scikit-image ships, as published."""
        return self.read("scikit_image", f"skimage/data/{name}")

    def picture(self, name: str) -> Image.Image:
        """The same, decoded."""
        return Image.open(io.BytesIO(self.bytes_of(name)))

    def raccoon(self) -> Image.Image:
        """SciPy's `misc.face`: plain pixels, compressed."""
        return Image.frombytes("RGB", RACCOON_SIZE, bz2.decompress(self.read("scipy", "scipy/misc/face.dat")))

    def hopper(self) -> Image.Image:
        """Matplotlib's portrait of Grace Hopper."""
        member = "matplotlib/mpl-data/sample_data/grace_hopper.jpg"
        return Image.open(io.BytesIO(self.read("matplotlib", member)))


@dataclass(frozen=True, slots=True)
class Ellipse:
    """An ellipse around (x, y), all in px of the viewed picture."""

    x: int
    y: int
    rx: int
    ry: int

    def draw(self, canvas: ImageDraw.ImageDraw, scale: int) -> None:
        """Fill the ellipse with white."""
        box = (self.x - self.rx, self.y - self.ry, self.x + self.rx, self.y + self.ry)
        canvas.ellipse([edge * scale for edge in box], fill=255)


@dataclass(frozen=True, slots=True)
class Polygon:
    """A closed polygon, px of the viewed picture."""

    points: tuple[Point, ...]

    def draw(self, canvas: ImageDraw.ImageDraw, scale: int) -> None:
        """Fill the polygon with white."""
        canvas.polygon([(x * scale, y * scale) for x, y in self.points], fill=255)


@dataclass(frozen=True, slots=True)
class Stroke:
    """A brush stroke through points, px of the viewed picture, with round joints and ends."""

    points: tuple[Point, ...]
    width: int

    def draw(self, canvas: ImageDraw.ImageDraw, scale: int) -> None:
        """Paint the stroke with white."""
        path = [(x * scale, y * scale) for x, y in self.points]
        canvas.line(path, fill=255, width=self.width * scale, joint="curve")
        radius = self.width * scale // 2
        for x, y in path:
            canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)


Shape = Ellipse | Polygon | Stroke

# What is marked on each picture, and why a person would want it gone.
MARKS: dict[str, tuple[Shape, ...]] = {
    # the mission's badge and the name tag, for a neutral portrait
    "astronaut": (
        Ellipse(171, 386, 46, 45),
        Polygon(((276, 335), (331, 343), (329, 382), (277, 376))),
    ),
    # the two thin lightning masts beside the rocket
    "rocket": (
        Polygon(((196, 120), (202, 120), (206, 190), (209, 374), (166, 374), (184, 190), (194, 190))),
        Polygon(((441, 120), (449, 120), (458, 190), (480, 398), (446, 398), (434, 376), (438, 190))),
    ),
    # the glare of a lamp on the saucer and on the cup's handle
    "coffee": (
        Stroke(((135, 140), (142, 152)), 18),
        Stroke(((116, 152), (104, 176)), 18),
        Stroke(((158, 178), (170, 206)), 14),
        Ellipse(228, 256, 13, 11),
    ),
    # fallen leaves in the lawn
    "grass": (
        Ellipse(484, 74, 32, 30),
        Ellipse(350, 118, 34, 26),
        Ellipse(266, 70, 22, 32),
        Stroke(((268, 350), (296, 356), (330, 348), (380, 342)), 34),
    ),
    # pale stones that catch the eye
    "gravel": (Ellipse(175, 127, 26, 24), Ellipse(265, 66, 22, 22), Ellipse(234, 300, 24, 22)),
    # the joint that one brick too short has left in the course
    "brick": (Polygon(((256, 282), (300, 282), (302, 306), (256, 306))), Ellipse(350, 358, 26, 12)),
    # foreground stars with their diffraction spikes, and one large galaxy
    "hubble_deep_field": (
        Ellipse(752, 577, 38, 36),
        Ellipse(254, 166, 24, 22),
        Ellipse(726, 473, 42, 42),
    ),
    # the high-rises on the skyline
    "camera": (
        Polygon(
            ((408, 110), (438, 110), (440, 150), (470, 140), (474, 168), (498, 172), (498, 192), (408, 194))
        ),
    ),
}

# The name tag and the ribbons on the uniform, scribbled over.
UNIFORM: tuple[Shape, ...] = (
    Stroke(((82, 490), (164, 494), (82, 504), (164, 512)), 16),
    Stroke(((368, 492), (408, 494)), 18),
    Stroke(((334, 508), (448, 506), (330, 520), (448, 521)), 18),
)

# The blade across the raccoon's nose and a dry stalk, each scribbled over in the colour that was at hand.
BLADES: tuple[tuple[Stroke, Ink], ...] = (
    (
        Stroke(((296, 442), (340, 427), (395, 411), (481, 401), (560, 399), (637, 398), (742, 407)), 18),
        (230, 30, 40),
    ),
    (Stroke(((559, 577), (524, 602), (497, 634), (484, 683), (472, 756)), 16), (30, 110, 240)),
)

# The lattice towers at both sides of the launch pad.
TOWERS: dict[str, object] = {
    "schema": 1,
    "size": [640, 427],
    "regions": [
        {"name": "left tower", "polygon": [[0, 0], [98, 0], [92, 427], [0, 427]]},
        {"name": "right tower", "box": [0, 0, "14%", "100%"], "corner": "top-right"},
    ],
}

STAMP = "17  8 '97"
STAMP_AT = (-16, -10)  # from the lower right corner
STAMP_INK, STAMP_GLOW = (255, 186, 74), (255, 110, 20)


def draw_mask(
    size: tuple[int, int], shapes: tuple[Shape, ...], mode: Literal["1", "L", "RGB"]
) -> Image.Image:
    """White shapes on black; hard-edged in mode "1", antialiased in the others.

    Args:
        size: width and height of the viewed picture, px.
        shapes: what to remove.
        mode: Pillow's name of the pixel format.
    """
    scale = 1 if mode == "1" else ANTIALIAS
    mask = Image.new("L", (size[0] * scale, size[1] * scale), 0)
    canvas = ImageDraw.Draw(mask)
    for shape in shapes:
        shape.draw(canvas, scale)
    return mask.resize(size, Image.Resampling.BOX).convert(mode)


def paint(picture: Image.Image, shapes: tuple[Shape, ...], ink: Ink) -> None:
    """Paint shapes over a picture as an editor does: flat, with antialiased edges."""
    picture.paste(ink, (0, 0), draw_mask(picture.size, shapes, "L"))


def exif_of(description: str, artist: str, *, orientation: int = 1) -> Image.Exif:
    """Metadata that says what the picture is and that it is free; nothing about a camera is invented."""
    exif = Image.Exif()
    exif[EXIF_DESCRIPTION] = description
    exif[EXIF_ORIENTATION] = orientation
    exif[EXIF_ARTIST] = artist
    exif[EXIF_COPYRIGHT] = "none: public domain or CC0 1.0"
    return exif


def with_exif(jpeg: bytes, exif: Image.Exif) -> bytes:
    """The same JPEG with an Exif segment after its JFIF header; no pixel is encoded again.

    Raises:
        ValueError: the file does not begin with a JFIF header.
    """
    if jpeg[:4] != b"\xff\xd8\xff\xe0":
        raise ValueError("not a JFIF file: give the picture as scikit-image ships it")
    header_end = 4 + struct.unpack(">H", jpeg[4:6])[0]
    payload = exif.tobytes()
    if not payload.startswith(b"Exif\0\0"):
        payload = b"Exif\0\0" + payload
    segment = b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload
    return jpeg[:header_end] + segment + jpeg[header_end:]


# --- the rendered screenshot ------------------------------------------------------------------

SCREEN = (1600, 900)
WINDOW = (0, 30, 1600, 900)
NOTIFICATION = (1196, 56, 1576, 170)
NOTIFICATION_SHADOW_PX = 12  # how far its soft shadow reaches
INK, GREY, PAPER, BAR, ACCENT = "#24292f", "#6b7280", "#ffffff", "#e7e9ee", "#2f6fb3"
SIDEBAR = ("Inbox", "Minutes", "Plant list", "Invoices", "Photos", "Archive")
MINUTES = (
    "Present: eleven members, two guests. The minutes of October were read and approved.",
    "",
    "1. Winter cover. The beds along the south wall get straw in the first week of December.",
    "    Spare fleece is in the shed; please bring back what you borrowed last year.",
    "",
    "2. Seed exchange. Saturday the 12th, ten to two, in the hall. Tables are put up at nine.",
    "    Label each bag with the kind, the year and whether it was grown from a hybrid.",
    "",
    "3. Water. The pump is drained. The rain barrels are turned over before the first frost.",
    "",
    "4. Tools. Two spades and the long pruner want sharpening; Ilse takes them to the workshop.",
    "",
    "5. Budget. 214.50 in hand. New hoses come to about 80; the rest is kept for compost.",
    "",
    "Next meeting: Tuesday the 8th, half past seven, in the small room.",
)


def font(size_px: int) -> ImageFont.FreeTypeFont:
    """Pillow's own face (Aileron, CC0), so that the screenshot needs no font of the machine.

    Raises:
        RuntimeError: Pillow was built without FreeType.
    """
    face = ImageFont.load_default(size_px)
    if not isinstance(face, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow cannot draw outlines: install the wheel from the package index")  # noqa: TRY004 - no argument is of a wrong type
    return face


def draw_window(screen: Image.Image) -> None:
    """A mail program, maximised, with the minutes of a club."""
    canvas = ImageDraw.Draw(screen)
    left, top, right, bottom = WINDOW
    canvas.rectangle(WINDOW, fill=PAPER)
    canvas.rectangle((left, top, right, top + 44), fill=BAR)
    for index, colour in enumerate(("#e5605b", "#e8b544", "#62b35c")):
        x = left + 22 + 22 * index
        canvas.ellipse((x - 7, top + 15, x + 7, top + 29), fill=colour)
    canvas.text(((left + right) // 2, top + 22), "Minutes - Garden club", INK, font(17), anchor="mm")
    canvas.rectangle((left, top + 44, left + 200, bottom), fill="#f3f4f7")
    for index, name in enumerate(SIDEBAR):
        y = top + 74 + 38 * index
        if name == "Minutes":
            canvas.rounded_rectangle((left + 10, y - 7, left + 190, y + 25), radius=6, fill="#d6e4f3")
        canvas.text((left + 28, y), name, ACCENT if name == "Minutes" else INK, font(16))
    canvas.text((left + 240, top + 78), "Garden club, November meeting", INK, font(30))
    canvas.text((left + 240, top + 122), "from Marta K. to all members, 10 November, 21:04", GREY, font(15))
    canvas.line((left + 240, top + 170, right - 40, top + 170), fill="#d3d6dc", width=1)
    for index, line in enumerate(MINUTES):
        canvas.text((left + 240, top + 192 + 32 * index), line, INK, font(18))
    canvas.rounded_rectangle((right - 150, bottom - 60, right - 40, bottom - 22), radius=6, fill=ACCENT)
    canvas.text((right - 95, bottom - 41), "Reply", "#ffffff", font(17), anchor="mm")


def draw_panel(screen: Image.Image) -> None:
    """The bar at the top of the desktop."""
    canvas = ImageDraw.Draw(screen)
    canvas.rectangle((0, 0, SCREEN[0], 30), fill="#1d2733")
    canvas.text((18, 15), "Applications", "#e8ecf1", font(15), anchor="lm")
    canvas.text((SCREEN[0] // 2, 15), "Tue 10 Nov  21:12", "#e8ecf1", font(15), anchor="mm")
    canvas.text((SCREEN[0] - 18, 15), "EN    78 %", "#e8ecf1", font(15), anchor="rm")


def draw_notification(screen: Image.Image) -> None:
    """The box that came up in the very moment of the screenshot."""
    shadow = Image.new("L", SCREEN, 0)
    x0, y0, x1, y1 = NOTIFICATION
    ImageDraw.Draw(shadow).rounded_rectangle((x0, y0 + 2, x1, y1 + 2), radius=12, fill=120)
    shadow = shadow.filter(ImageFilter.GaussianBlur(3))
    screen.paste((0, 0, 0), (0, 0), shadow)
    canvas = ImageDraw.Draw(screen)
    canvas.rounded_rectangle(NOTIFICATION, radius=12, fill="#f7f7f9")
    canvas.rounded_rectangle((x0 + 16, y0 + 20, x0 + 60, y0 + 64), radius=10, fill="#4a9d6e")
    canvas.text((x0 + 38, y0 + 42), "B", "#ffffff", font(26), anchor="mm")
    canvas.text((x0 + 76, y0 + 16), "Berta", INK, font(18))
    canvas.text((x1 - 16, y0 + 18), "now", GREY, font(14), anchor="ra")
    canvas.text((x0 + 76, y0 + 44), "Are you still up? I have the surprise", INK, font(16))
    canvas.text((x0 + 76, y0 + 66), "for Ilse here. Do not tell her!", INK, font(16))
    canvas.text((x0 + 76, y0 + 90), "Answer     Later", ACCENT, font(15))


def draw_screenshot() -> Image.Image:
    """The whole screen."""
    screen = Image.new("RGB", SCREEN, PAPER)
    draw_panel(screen)
    draw_window(screen)
    draw_notification(screen)
    return screen


def screenshot_mask() -> Image.Image:
    """The notification and its shadow, as a plain box: the way a person drags a rectangle."""
    x0, y0, x1, y1 = NOTIFICATION
    pad = NOTIFICATION_SHADOW_PX
    box = ((x0 - pad, y0 - pad), (x1 + pad, y0 - pad), (x1 + pad, y1 + pad), (x0 - pad, y1 + pad))
    return draw_mask(SCREEN, (Polygon(box),), "L")


# --- the folder -------------------------------------------------------------------------------


def save_png(picture: Image.Image, path: Path) -> None:
    """Write a PNG, its folder first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, optimize=True)


def write_jpegs(wheels: Wheels, out: Path) -> None:
    """JPEG: as published, with an Exif segment added, encoded upright, and encoded on its side."""
    rocket = wheels.bytes_of("rocket.jpg")
    about = exif_of("Falcon 9 with DSCOVR on Launch Complex 40", "SpaceX")
    (out / "rocket.jpg").write_bytes(with_exif(rocket, about))
    save_png(draw_mask((640, 427), MARKS["rocket"], "1"), out / "rocket.mask.png")

    (out / "space" / "hubble_deep_field.jpg").write_bytes(wheels.bytes_of("hubble_deep_field.jpg"))
    save_png(
        draw_mask((1000, 872), MARKS["hubble_deep_field"], "L"),
        out / "space" / "masks" / "hubble_deep_field.png",
    )

    about = exif_of("Astronaut Eileen Collins", "NASA")
    astronaut = wheels.picture("astronaut.png")
    astronaut.save(out / "astronaut.jpg", quality=92, exif=about)
    save_png(draw_mask(astronaut.size, MARKS["astronaut"], "RGB"), out / "astronaut.jpg.mask.png")

    about = exif_of("A cup of coffee", "Rachel Michetti", orientation=ROTATED_FOR_VIEWING)
    coffee = wheels.picture("coffee.png")
    stored = coffee.transpose(Image.Transpose.ROTATE_90)
    stored.save(out / "coffee.jpg", quality=92, exif=about)
    save_png(draw_mask(coffee.size, MARKS["coffee"], "L"), out / "coffee_mask.png")

    cat = wheels.picture("chelsea.png")
    cat.save(out / "cat.jpg", quality=92, exif=exif_of("Chelsea the cat", "Stefan van der Walt"))


def write_lossless(wheels: Wheels, out: Path) -> None:
    """PNG as published, and one WebP."""
    for name in ("grass", "brick"):
        (out / f"{name}.png").write_bytes(wheels.bytes_of(f"{name}.png"))
    save_png(draw_mask((512, 512), MARKS["grass"], "L"), out / "grass.png.mask.png")
    save_png(draw_mask((512, 512), MARKS["brick"], "1"), out / "brick_mask.png")

    gravel = wheels.picture("gravel.png").convert("RGB")
    gravel.save(out / "gravel.webp", lossless=True, method=6)
    save_png(draw_mask(gravel.size, MARKS["gravel"], "L"), out / "gravel.webp.mask.png")

    save_png(draw_screenshot(), out / "screenshot.png")
    save_png(screenshot_mask(), out / "screenshot.png.mask.png")


def write_erased(wheels: Wheels, out: Path) -> None:
    """A picture on which a person used an editor's eraser: those pixels are gone, fully transparent."""
    camera = wheels.picture("camera.png").convert("RGBA")
    erased = draw_mask(camera.size, MARKS["camera"], "1")
    camera.paste((0, 0, 0, 0), (0, 0), erased)
    save_png(camera, out / "erased" / "camera.png")


def write_marked_copy(wheels: Wheels, out: Path) -> None:
    """A photo, and what a phone's editor makes of it: scribbled over, half the size, encoded anew."""
    raccoon = wheels.raccoon()
    about = exif_of("A raccoon on a palm", "public-domain-image.com")
    raccoon.save(out / "raccoon.jpg", quality=90, exif=about)
    for stroke, ink in BLADES:
        paint(raccoon, (stroke,), ink)
    raccoon.reduce(2).save(out / "raccoon.marked.jpg", quality=PHONE_QUALITY, subsampling="4:2:0")


def write_sidecar(wheels: Wheels, out: Path) -> None:
    """A picture as published, but for an Exif segment, and a file that names places in it."""
    about = exif_of("Launch Complex 40 at dusk, with Falcon 9 and DSCOVR", "SpaceX")
    (out / "launch_pad.jpg").write_bytes(with_exif(wheels.bytes_of("rocket.jpg"), about))
    text = json.dumps(TOWERS, indent=1)
    (out / "launch_pad.jpg.marks.json").write_text(f"{text}\n", encoding="utf-8")


def write_strokes(wheels: Wheels, out: Path) -> None:
    """A picture that was painted over in the marker's colour, and saved as a phone does."""
    hopper = wheels.hopper().convert("RGB")
    paint(hopper, UNIFORM, MARKER)
    path = out / "strokes" / "grace_hopper.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = exif_of("Commodore Grace Hopper", "James S. Davis, U.S. Navy")
    hopper.save(path, quality=PHONE_QUALITY, subsampling="4:2:0", exif=about)


def write_stamped(wheels: Wheels, out: Path) -> None:
    """A picture with the date that cameras for film put into the lower right corner."""
    espresso = wheels.picture("coffee.png").convert("RGB")
    place = (espresso.width + STAMP_AT[0], espresso.height + STAMP_AT[1])
    glow = Image.new("L", espresso.size, 0)
    ImageDraw.Draw(glow).text(place, STAMP, 255, font(20), anchor="rs", stroke_width=2)
    espresso.paste(
        STAMP_GLOW, (0, 0), glow.filter(ImageFilter.GaussianBlur(2)).point(lambda value: value // 2)
    )
    ImageDraw.Draw(espresso).text(place, STAMP, STAMP_INK, font(20), anchor="rs")
    path = out / "stamped" / "espresso.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    espresso.save(path, quality=92, exif=exif_of("A cup of coffee", "Rachel Michetti"))


def main() -> None:
    """Write every sample but `SOURCES.md`, which is written by hand, and check the size of the whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, required=True, help="the folder with the three wheels")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write (default: sample_inbox/)")
    arguments = parser.parse_args()
    wheels, out = Wheels(arguments.wheels), arguments.out
    for folder in (out, out / "space"):
        folder.mkdir(parents=True, exist_ok=True)
    write_jpegs(wheels, out)
    write_lossless(wheels, out)
    write_erased(wheels, out)
    write_marked_copy(wheels, out)
    write_sidecar(wheels, out)
    write_strokes(wheels, out)
    write_stamped(wheels, out)
    sizes = {path: path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    for path, size_bytes in sizes.items():
        print(f"{size_bytes:>9,}  {path.relative_to(out)}")
    total_bytes = sum(sizes.values())
    print(f"{total_bytes:>9,}  together")
    if total_bytes >= SIZE_LIMIT_BYTES:
        raise SystemExit(f"too large: {total_bytes:,} bytes of at most {SIZE_LIMIT_BYTES:,}")


if __name__ == "__main__":
    main()
