"""The numbers of TIFF's tags, and what they are good for (TIFF 6.0; EXIF 2.32; Photoshop's TIFF notes).

Rule of this module: it holds tables and nothing that runs.
"""

from __future__ import annotations

NEW_SUBFILE_TYPE, SUBFILE_TYPE, WIDTH, HEIGHT, BITS_PER_SAMPLE, COMPRESSION = 254, 255, 256, 257, 258, 259
PHOTOMETRIC, FILL_ORDER, STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS_PER_STRIP = 262, 266, 273, 274, 277, 278
STRIP_COUNTS, PLANAR, PREDICTOR, COLOUR_MAP, TILE_WIDTH, TILE_HEIGHT = 279, 284, 317, 320, 322, 323
TILE_OFFSETS, TILE_COUNTS, SUB_IFDS, INK_SET, EXTRA_SAMPLES, SAMPLE_FORMAT = 324, 325, 330, 332, 338, 339
CHROMA_SAMPLING = 530
FAX_OPTIONS, TRANSFER_FUNCTION, JPEG_TABLES, JPEG_OFFSET, JPEG_COUNT = 292, 301, 347, 513, 514
XMP, IPTC, PHOTOSHOP, ICC_PROFILE, LAYERS, CONTENT_CREDENTIALS = 700, 33723, 34377, 34675, 37724, 52545
EXIF, GPS, INTEROPERABILITY = 34665, 34853, 40965
DNG_VERSION = 50706

RAW_PHOTOMETRICS = frozenset({32803, 34892})
"""Colour filter array, linear raw."""

PLACES = frozenset({STRIP_OFFSETS, STRIP_COUNTS, TILE_OFFSETS, TILE_COUNTS})
"""Tags that say where the pieces are."""

STRUCTURE = frozenset(
    {254, 255, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 280, 281, 284, 290, 291, 292, 293, 297, 301}
    | {
        317,
        318,
        319,
        320,
        321,
        322,
        323,
        324,
        325,
        332,
        334,
        336,
        338,
        339,
        340,
        341,
        347,
        529,
        530,
        531,
        532,
    }
)
"""Tags that say how the pixels are stored and what their numbers mean."""

OLD_JPEG = frozenset({512, JPEG_OFFSET, JPEG_COUNT, 515, 517, 518, 519, 520, 521})
"""Tags of the old kind of JPEG (TIFF 6.0, section 22), of which EXIF's thumbnails use two."""

ENCODERS = (
    STRUCTURE - {254, 255, 280, 281, 290, 291, 297, 301, 318, 319, 332, 334, 336, 340, 341}
) | OLD_JPEG
"""The part of the structure that changes with the encoder."""

LOOKS = frozenset({ORIENTATION, ICC_PROFILE})
"""Besides the structure, what decides how the pixels look."""

PLAIN = frozenset({269, 270, 271, 272, 282, 283, 285, 296, 305, 306, 315, 316, 33432, IPTC, PHOTOSHOP, XMP})
"""Descriptive tags of the baseline and XMP, IPTC and Photoshop blocks: their values point at nothing."""

PICTURES = frozenset({LAYERS, CONTENT_CREDENTIALS})
"""Tags that hold pictures of the picture, and are of no use without them."""

NAMES = {EXIF: "EXIF", GPS: "GPS", INTEROPERABILITY: "interoperability data", LAYERS: "Photoshop layers"} | {
    CONTENT_CREDENTIALS: "content credentials (C2PA)"
}


def name_of(tag: int) -> str:
    """Return what a tag is called in the record."""
    return NAMES.get(tag, f"TIFF tag {tag}")
