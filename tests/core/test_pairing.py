"""Which mask belongs to which picture, by name alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.pairing import Pairing, Recipes, mark_file_kind, mask_names, meant_name, stem_of
from watcher.core.policy import Recipe

DEFAULT = Recipes((Recipe(),))
ORPHANS_ARE_PICTURES = Recipes((Recipe(marks=("mask",), orphan_masks="picture"),))
EVERYTHING = Recipes((Recipe(marks=("mask", "marked_copy", "sidecar"), orphan_masks="picture"),))


def pairing(*present: str, recipes: Recipes = DEFAULT) -> Pairing:
    made = Pairing(recipes)
    for path in present:
        made.add(path)
    return made


def mark_file_of(there: Pairing, picture: str) -> str | None:
    return next(there.mark_files_of(picture), None)


@pytest.mark.parametrize(
    ("picture", "names"),
    [
        ("IMG.jpg", ("IMG.jpg.mask.png", "IMG.mask.png", "IMG_mask.png", "masks/IMG.png")),
        (
            "a/b/IMG.jpg",
            ("a/b/IMG.jpg.mask.png", "a/b/IMG.mask.png", "a/b/IMG_mask.png", "a/b/masks/IMG.png"),
        ),
        ("x.tar.png", ("x.tar.png.mask.png", "x.tar.mask.png", "x.tar_mask.png", "masks/x.tar.png")),
    ],
)
def test_the_names_of_a_mask_by_precedence(picture: str, names: tuple[str, ...]) -> None:
    assert mask_names(picture) == names


@pytest.mark.parametrize("depth", range(4))
def test_the_first_name_that_is_there_wins(depth: int) -> None:
    names = mask_names("a/IMG.jpg")
    assert mark_file_of(pairing("a/IMG.jpg", *names[depth:]), "a/IMG.jpg") == names[depth]


@pytest.mark.parametrize(
    ("path", "is_mask"),
    [
        ("IMG.jpg.mask.png", True),
        ("IMG.mask.png", True),
        ("IMG_mask.png", True),
        ("a/masks/IMG.png", True),
        ("masks/IMG.png", True),
        ("masks/IMG.jpg", False),
        ("a/masks/b/IMG.png", False),
        ("IMG.png", False),
        ("mask.png", False),
        (".mask.png", False),
        ("_mask.png", False),
        ("IMG_mask.jpg", False),
        ("bitmask.png", False),
    ],
)
def test_what_is_named_like_a_mask(path: str, is_mask: bool) -> None:  # noqa: FBT001 - parametrised
    assert (mark_file_kind(path) == "mask") is is_mask


@pytest.mark.parametrize("mask", ["IMG.mask.png", "IMG_mask.png", "masks/IMG.png"])
def test_a_mask_by_stem_is_for_a_single_picture(mask: str) -> None:
    both = pairing("IMG.jpg", "IMG.png", mask)
    assert mark_file_of(both, "IMG.jpg") is mark_file_of(both, "IMG.png") is None
    both.remove("IMG.png")
    assert mark_file_of(both, "IMG.jpg") == mask


def test_a_mask_by_full_name_needs_no_single_picture() -> None:
    both = pairing("IMG.jpg", "IMG.png", "IMG.jpg.mask.png")
    assert mark_file_of(both, "IMG.jpg") == "IMG.jpg.mask.png"
    assert mark_file_of(both, "IMG.png") is None


def test_a_picture_in_another_folder_is_no_rival() -> None:
    assert mark_file_of(pairing("IMG.jpg", "b/IMG.png", "IMG_mask.png"), "IMG.jpg") == "IMG_mask.png"


def test_a_mask_is_no_picture_and_an_orphan_waits() -> None:
    alone = pairing("IMG_mask.png")
    assert not alone.is_picture("IMG_mask.png")
    assert alone.owners("IMG_mask.png") == ()
    alone.add("IMG.jpg")
    assert alone.owners("IMG_mask.png") == ("IMG.jpg",)
    assert alone.mark_files_touching("IMG.jpg") == ("IMG_mask.png",)


def test_an_orphan_is_a_picture_where_its_recipe_says_so() -> None:
    alone = pairing("IMG_mask.png", recipes=ORPHANS_ARE_PICTURES)
    assert alone.is_picture("IMG_mask.png")
    alone.add("IMG.jpg")
    assert not alone.is_picture("IMG_mask.png")
    assert mark_file_of(alone, "IMG.jpg") == "IMG_mask.png"


def test_a_mask_of_a_mask_named_picture_is_its_own() -> None:
    there = pairing("x_mask.png", "x_mask.png.mask.png", recipes=ORPHANS_ARE_PICTURES)
    assert mark_file_of(there, "x_mask.png") == "x_mask.png.mask.png"
    assert there.is_picture("x_mask.png")
    assert not there.is_picture("x_mask.png.mask.png")


def test_a_picture_is_never_its_own_mask() -> None:
    there = pairing("masks/IMG.png", recipes=ORPHANS_ARE_PICTURES)
    assert mark_file_of(there, "masks/IMG.png") is None


@pytest.mark.parametrize(
    ("name", "stem"), [("a.png", "a"), ("a.b.png", "a.b"), ("a", "a"), (".png", ".png"), (".a.png", ".a")]
)
def test_stems(name: str, stem: str) -> None:
    assert stem_of(name) == stem


def test_the_first_recipe_that_matches_serves_and_none_may_match() -> None:
    recipes = Recipes((Recipe("scans", ("scans/**",)), Recipe("jpg", ("**/*.jpg", "*.jpeg"))))
    assert [
        getattr(recipes.serving(path), "name", None) for path in ("scans/a.jpg", "b/a.jpg", "a.jpeg", "a.png")
    ] == [
        "scans",
        "jpg",
        "jpg",
        None,
    ]
    assert recipes.named("jpg") is not None
    assert recipes.named("gone") is None


NAMES = st.sampled_from(
    [
        *("a.jpg", "a.png", "b.jpg", "a_mask.png", "a.mask.png", "a.jpg.mask.png", "masks/a.png"),
        *("a.marked.jpg", "a.marked.png", "a.jpg.marked.jpg", "a.jpg.marks.json"),
    ]
)


@given(st.lists(st.tuples(st.booleans(), NAMES)))
def test_only_what_is_there_counts_and_not_how_it_came(story: list[tuple[bool, str]]) -> None:
    moved = Pairing(EVERYTHING)
    present: dict[str, None] = {}
    for comes, path in story:
        if comes:
            moved.add(path)
            present[path] = None
        else:
            moved.remove(path)
            present.pop(path, None)
    fresh = pairing(*present, recipes=EVERYTHING)
    for path in present:
        assert moved.is_picture(path) == fresh.is_picture(path)
        used = list(fresh.mark_files_of(path))
        assert list(moved.mark_files_of(path)) == used
        assert moved.owners(path) == fresh.owners(path)
        assert all(path in fresh.owners(file) for file in used), "whoever uses a file is told of it"
        assert set(used) <= set(fresh.mark_files_touching(path))


# --- marked copies and sidecars ----------------------------------------------------------------------------

ALL = Recipes((Recipe(marks=("mask", "marked_copy", "sidecar")),))
MASKS_ONLY = Recipes((Recipe(marks=("mask",)),))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("IMG.marked.jpg", "marked_copy"),
        ("IMG.marked.JPEG", "marked_copy"),
        ("a/IMG.jpg.marked.png", "marked_copy"),
        ("IMG.jpg.marks.json", "sidecar"),
        ("IMG.marks.json", None),
        ("IMG.marked.txt", None),
        (".marked.jpg", None),
        ("a/.marked.jpg", None),
        ("marked.jpg", None),
        ("IMG_marked.jpg", None),
        ("IMG.Marked.jpg", None),
        ("IMG.marked", None),
    ],
)
def test_what_is_named_like_a_marked_copy_or_a_sidecar(path: str, kind: str | None) -> None:
    assert mark_file_kind(path) == kind


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("a/IMG_Mask.png", "a/IMG.mask.png"),
        ("IMG.jpg.mask.jpg", "IMG.jpg.mask.png"),
        ("IMG-mask.png", "IMG.mask.png"),
        ("IMG.Marked.jpg", "IMG.marked.jpg"),
        ("a b/IMG marked.JPEG", "a b/IMG.marked.jpeg"),
        ("IMG.jpg.marks.png", "IMG.jpg.marked.png"),
        ("IMG.jpg.mask.png", None),
        ("IMG_mask.png", None),
        ("IMG.marked.jpg", None),
        ("IMG.jpg.marks.json", None),
        ("landmark.jpg", None),
        ("mask.png", None),
        ("the mask of zorro.jpg", None),
        ("IMG_Mask.txt", None),
    ],
)
def test_what_a_mark_file_with_a_wrong_name_should_be_called(path: str, meant: str | None) -> None:
    assert meant_name(path) == meant
    if meant is not None:
        assert mark_file_kind(meant) is not None


@pytest.mark.parametrize(
    ("present", "files"),
    [
        (("IMG.jpg.mask.png", "IMG.marked.jpg", "IMG.jpg.marks.json"), None),
        (("IMG_mask.png", "IMG.marked.png"), None),
        (("IMG.marked.jpg", "IMG.jpg.marks.json"), None),
        (("IMG.jpg.marked.png", "IMG.marked.jpg"), ("IMG.jpg.marked.png",)),
        (("IMG.marked.jpg", "IMG.marked.png"), ("IMG.marked.jpg",)),
        (("IMG.marked.JPG", "IMG.marked.bmp"), ("IMG.marked.JPG",)),
        (("IMG.marked.png", "IMG.marked.webp"), ("IMG.marked.png",)),
        (("b/IMG.marked.jpg", "IMG.png.marks.json", "IMG.marks.json"), ()),
    ],
)
def test_the_mark_files_of_a_picture_by_precedence(
    present: tuple[str, ...], files: tuple[str, ...] | None
) -> None:
    there = pairing("IMG.jpg", *present, recipes=ALL)
    assert tuple(there.mark_files_of("IMG.jpg")) == (present if files is None else files)


def test_the_order_is_the_recipes() -> None:
    recipes = Recipes((Recipe(marks=("sidecar", "alpha", "marked_copy")),))
    there = pairing("IMG.jpg", "IMG.jpg.mask.png", "IMG.marked.jpg", "IMG.jpg.marks.json", recipes=recipes)
    assert list(there.mark_files_of("IMG.jpg")) == ["IMG.jpg.marks.json", "IMG.marked.jpg"]


def test_a_marked_copy_of_the_same_suffix_needs_no_single_picture() -> None:
    both = pairing("IMG.jpg", "IMG.png", "IMG.marked.jpg", recipes=ALL)
    assert mark_file_of(both, "IMG.jpg") == "IMG.marked.jpg"
    assert mark_file_of(both, "IMG.png") is None
    both.remove("IMG.jpg")
    assert mark_file_of(both, "IMG.png") == "IMG.marked.jpg"


def test_a_marked_copy_is_never_a_picture_not_even_alone() -> None:
    alone = pairing("IMG.marked.jpg", recipes=ALL)
    assert not alone.is_picture("IMG.marked.jpg")
    assert alone.owners("IMG.marked.jpg") == ()
    alone.add("IMG.jpg")
    assert alone.owners("IMG.marked.jpg") == ("IMG.jpg",)
    assert alone.mark_files_touching("IMG.jpg") == ("IMG.marked.jpg",)


def test_what_is_named_like_a_marked_copy_is_a_picture_where_nobody_looks_for_one() -> None:
    alone = pairing("sale.jpg", "sale.marked.jpg", "sale.marked.jpg.mask.png", recipes=MASKS_ONLY)
    assert alone.is_picture("sale.marked.jpg")
    assert mark_file_of(alone, "sale.jpg") is None
    assert mark_file_of(alone, "sale.marked.jpg") == "sale.marked.jpg.mask.png"


def test_its_picture_decides_about_a_marked_copy_that_another_recipe_would_serve() -> None:
    recipes = Recipes((Recipe("jpg", ("*.jpg",), ("marked_copy",)), Recipe("rest", marks=("mask",))))
    there = pairing("IMG.marked.png", recipes=recipes)
    assert there.is_picture("IMG.marked.png")
    there.add("IMG.jpg")
    assert not there.is_picture("IMG.marked.png")
    assert mark_file_of(there, "IMG.jpg") == "IMG.marked.png"


def test_a_sidecar_is_no_picture_whatever_the_recipe() -> None:
    alone = pairing("IMG.jpg.marks.json", recipes=ORPHANS_ARE_PICTURES)
    assert not alone.is_picture("IMG.jpg.marks.json")
    assert alone.owners("IMG.jpg.marks.json") == ()
    alone.add("IMG.jpg")
    assert alone.owners("IMG.jpg.marks.json") == ("IMG.jpg",)
    assert mark_file_of(alone, "IMG.jpg") is None, "the recipe does not look for it"
