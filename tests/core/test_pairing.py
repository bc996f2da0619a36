"""Which mask belongs to which picture, by name alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.pairing import Pairing, Recipes, is_mask_name, mask_names, stem_of
from watcher.core.policy import Recipe

DEFAULT = Recipes((Recipe(),))
ORPHANS_ARE_PICTURES = Recipes((Recipe(orphan_masks="picture"),))


def pairing(*present: str, recipes: Recipes = DEFAULT) -> Pairing:
    made = Pairing(recipes)
    for path in present:
        made.add(path)
    return made


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
    assert pairing("a/IMG.jpg", *names[depth:]).mask_of("a/IMG.jpg") == names[depth]


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
    assert is_mask_name(path) is is_mask


@pytest.mark.parametrize("mask", ["IMG.mask.png", "IMG_mask.png", "masks/IMG.png"])
def test_a_mask_by_stem_is_for_a_single_picture(mask: str) -> None:
    both = pairing("IMG.jpg", "IMG.png", mask)
    assert both.mask_of("IMG.jpg") is both.mask_of("IMG.png") is None
    both.remove("IMG.png")
    assert both.mask_of("IMG.jpg") == mask


def test_a_mask_by_full_name_needs_no_single_picture() -> None:
    both = pairing("IMG.jpg", "IMG.png", "IMG.jpg.mask.png")
    assert both.mask_of("IMG.jpg") == "IMG.jpg.mask.png"
    assert both.mask_of("IMG.png") is None


def test_a_picture_in_another_folder_is_no_rival() -> None:
    assert pairing("IMG.jpg", "b/IMG.png", "IMG_mask.png").mask_of("IMG.jpg") == "IMG_mask.png"


def test_a_mask_is_no_picture_and_an_orphan_waits() -> None:
    alone = pairing("IMG_mask.png")
    assert not alone.is_picture("IMG_mask.png")
    assert alone.owners("IMG_mask.png") == ()
    alone.add("IMG.jpg")
    assert alone.owners("IMG_mask.png") == ("IMG.jpg",)
    assert alone.masks_touching("IMG.jpg") == ("IMG_mask.png",)


def test_an_orphan_is_a_picture_where_its_recipe_says_so() -> None:
    alone = pairing("IMG_mask.png", recipes=ORPHANS_ARE_PICTURES)
    assert alone.is_picture("IMG_mask.png")
    alone.add("IMG.jpg")
    assert not alone.is_picture("IMG_mask.png")
    assert alone.mask_of("IMG.jpg") == "IMG_mask.png"


def test_a_mask_of_a_mask_named_picture_is_its_own() -> None:
    there = pairing("x_mask.png", "x_mask.png.mask.png", recipes=ORPHANS_ARE_PICTURES)
    assert there.mask_of("x_mask.png") == "x_mask.png.mask.png"
    assert there.is_picture("x_mask.png")
    assert not there.is_picture("x_mask.png.mask.png")


def test_a_picture_is_never_its_own_mask() -> None:
    there = pairing("masks/IMG.png", recipes=ORPHANS_ARE_PICTURES)
    assert there.mask_of("masks/IMG.png") is None


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
    ["a.jpg", "a.png", "b.jpg", "a_mask.png", "a.mask.png", "a.jpg.mask.png", "masks/a.png"]
)


@given(st.lists(st.tuples(st.booleans(), NAMES)))
def test_only_what_is_there_counts_and_not_how_it_came(story: list[tuple[bool, str]]) -> None:
    moved = Pairing(ORPHANS_ARE_PICTURES)
    present: dict[str, None] = {}
    for comes, path in story:
        if comes:
            moved.add(path)
            present[path] = None
        else:
            moved.remove(path)
            present.pop(path, None)
    fresh = pairing(*present, recipes=ORPHANS_ARE_PICTURES)
    for path in present:
        assert moved.is_picture(path) == fresh.is_picture(path)
        assert moved.mask_of(path) == fresh.mask_of(path)
        assert moved.owners(path) == fresh.owners(path)
        mask = fresh.mask_of(path)
        assert mask is None or path in fresh.owners(mask), "whoever uses a mask is told of it"
