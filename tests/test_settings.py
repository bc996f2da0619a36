"""The configuration: sources and their priority, every problem told at once, folders that overlap."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from watcher import settings
from watcher.adapters import folders
from watcher.adapters.resources import default_config_text
from watcher.core.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration but the test's own."""
    import os  # noqa: PLC0415 - only here, to forget what the shell has set

    for name in [*os.environ]:
        if name.startswith(("WATCHER_", "XDG_")) or name == "LAMA_MODEL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "watcher.toml"
    file.write_text(text, encoding="utf-8")
    return file


def minimal(tmp_path: Path, more: str = "") -> Path:
    return written(tmp_path, f'inbox = "in"\noutbox = "out"\nstate_dir = "state"\n{more}')


def problems(file: Path | None, **flags: object) -> list[settings.Problem]:
    with pytest.raises(settings.ConfigurationError) as caught:
        settings.load(file, **flags)
    assert caught.value.exit_code == 78
    return list(caught.value.problems)


def the_problem(file: Path | None, **flags: object) -> settings.Problem:
    found = problems(file, **flags)
    assert len(found) == 1, found
    return found[0]


# --- sources -----------------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = minimal(tmp_path, '[engine]\nname = "lama"\ndevice = "cpu"\nthreads = 3\n')
    monkeypatch.setenv("WATCHER_ENGINE__NAME", "patchmatch")
    monkeypatch.setenv("WATCHER_ENGINE__DEVICE", "cuda:1")
    chosen = settings.load(file, engine={"name": "auto", "device": None})
    assert (chosen.engine.name, chosen.engine.device, chosen.engine.threads) == ("auto", "cuda:1", 3)


def test_relative_paths_belong_to_the_file_or_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WATCHER_OUTBOX", "../out")
    chosen = settings.load(minimal(tmp_path), state_dir="state")
    assert chosen.inbox == tmp_path / "in"
    assert chosen.outbox == tmp_path / "out"
    assert chosen.state_dir == tmp_path / "here" / "state"


def test_home_variables_and_dollar_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNC", "/srv/sync")
    chosen = settings.load(written(tmp_path, 'inbox = "~/in"\noutbox = "${SYNC}/a$$b"\n'))
    assert chosen.inbox == tmp_path / "home" / "in"
    assert str(chosen.outbox) == "/srv/sync/a$b"


def test_defaults_of_the_system_and_the_default_place(tmp_path: Path) -> None:
    place = settings.default_config_path()
    assert place.is_relative_to(tmp_path / "home")
    place.parent.mkdir(parents=True)
    place.write_text('inbox = "/a"\noutbox = "/b"\n', encoding="utf-8")
    chosen = settings.load()
    assert chosen.config_file == place
    assert chosen.state_dir.is_relative_to(tmp_path / "home")
    assert chosen.model.cache_dir.is_relative_to(tmp_path / "home")


def test_watcher_config_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHER_CONFIG", str(minimal(tmp_path)))
    assert settings.load().inbox == tmp_path / "in"


def test_lama_model_feeds_the_source_only_when_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMA_MODEL", "/w/from-env.pt")
    assert settings.load(minimal(tmp_path)).engine_choice().weights_path == "/w/from-env.pt"
    named = minimal(tmp_path, '[model]\nsource = "weights.pt"\n')
    assert settings.load(named).engine_choice().weights_path == str(tmp_path / "weights.pt")


def test_an_address_of_weights_is_refused_while_nothing_downloads(tmp_path: Path) -> None:
    with pytest.raises(settings.ConfigurationError, match=r"model\.source") as refused:
        settings.load(minimal(tmp_path, '[model]\nsource = "https://example.org/big-lama.pt"\n'))
    assert "download the file yourself" in str(refused.value) + refused.value.remedy


def test_lists_and_recipes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHER_ARRIVALS__IGNORE", "*.part, tmp/**")
    monkeypatch.setenv(
        "WATCHER_RECIPES", '[{name = "erased", match = "erased/**", marks = ["mask", "alpha"]}]'
    )
    chosen = settings.load(minimal(tmp_path))
    assert chosen.arrivals.ignore == ("*.part", "tmp/**")
    assert [recipe.name for recipe in chosen.policy(once=False).recipes] == ["erased", "default"]


# --- what the core gets ------------------------------------------------------------------------------------


def test_an_empty_configuration_is_the_policy_as_shipped(tmp_path: Path) -> None:
    policy = settings.load(minimal(tmp_path)).policy(once=False)
    shipped = Policy()
    assert (policy.arrivals, policy.worker, policy.cold, policy.retry) == (
        shipped.arrivals,
        shipped.worker,
        shipped.cold,
        shipped.retry,
    )
    assert policy.recipes == shipped.recipes


def test_values_reach_the_policy_in_its_units(tmp_path: Path) -> None:
    more = """
unmarked = "copy"
[batching]
linger_ms = 250
max_batch = 3
[engine]
load = "lazy"
[worker]
recycle_growth_mb = 2
recycle_items = 0
[output]
quality = 91
keep_metadata = false
[[recipes]]
name = "scans"
match = "scans/**"
grow = 0
unmarked = "hold"
quality = "source"
"""
    policy = settings.load(minimal(tmp_path, more)).policy(once=True)
    assert policy.once
    assert (policy.batching.linger_s, policy.batching.max_batch) == (0.25, 3)
    assert policy.worker.lazy
    assert (policy.worker.recycle_growth_bytes, policy.worker.recycle_items) == (2 * 1024 * 1024, None)
    scans, default = policy.recipes
    assert (scans.match, scans.grow_px, scans.unmarked, scans.quality) == (("scans/**",), 0, "hold", None)
    assert (default.name, default.match, default.unmarked, default.quality) == (
        "default",
        ("**",),
        "copy",
        91,
    )
    assert not scans.keep_metadata
    assert scans.marks == default.marks == ("mask", "marked_copy", "sidecar")


def test_how_pictures_are_marked_reaches_the_policy(tmp_path: Path) -> None:
    (tmp_path / "stamp.png").write_bytes(b"the worker looks into it")
    more = """
[[recipes]]
name = "stamped"
match = "stamped/**"
marks = "regions, colour, mask, colour"
colour = "#0f8"
invert = true
region_mask = "stamp.png"
regions = [
  { box = ["78%", 20, "22%", 1.5], corner = "bottom-right", name = "date stamp" },
  { polygon = [[0, 0], [10, 0], ["1%", 10]] },
]
"""
    stamped, default = settings.load(minimal(tmp_path, more)).policy(once=False).recipes
    assert stamped.marks == ("regions", "colour", "mask")
    assert (stamped.colour, stamped.invert) == ("#00FF88", True)
    assert stamped.region_mask == str(tmp_path / "stamp.png")
    assert list(stamped.regions) == [
        {"box": ["78%", 20, "22%", 1.5], "corner": "bottom-right", "name": "date stamp"},
        {"polygon": [[0, 0], [10, 0], ["1%", 10]]},
    ]
    assert (default.colour, default.invert, default.regions, default.region_mask) == (
        "#FF00FF",
        False,
        (),
        None,
    )


def test_a_region_mask_from_the_environment_starts_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mask.png").write_bytes(b"x")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("MASKS", "here")
    recipe = '[{name = "a", marks = ["regions"], region_mask = "../$MASKS/mask.png"}]'
    monkeypatch.setenv("WATCHER_RECIPES", recipe)
    chosen = settings.load(minimal(tmp_path))
    assert chosen.recipes[0].region_mask == tmp_path / "here" / "mask.png"


def test_no_default_recipe_is_added_behind_one_for_everything(tmp_path: Path) -> None:
    more = '[[recipes]]\nname = "all"\nmatch = ["*.png", "**"]\nmarks = ["mask", "alpha"]\n'
    assert [r.name for r in settings.load(minimal(tmp_path, more)).policy(once=False).recipes] == ["all"]


def test_the_shipped_configuration_says_the_defaults_of_the_code(tmp_path: Path) -> None:
    """Every `#key = value` of the default file, taken at its word, changes nothing."""
    plain = settings.load(written(tmp_path, default_config_text())).model_dump()
    spelt_out = re.sub(r"(?m)^#(?=[a-z_]+ = )", "", default_config_text())
    assert spelt_out.count("\n") == default_config_text().count("\n")
    assert spelt_out != default_config_text()
    assert settings.load(written(tmp_path, spelt_out)).model_dump() == plain


# --- problems ----------------------------------------------------------------------------------------------


def test_every_problem_is_told_at_once_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(
        tmp_path,
        """
inbox = "in"
after = "archive"
unmarked = 3
[engine]
nmae = "lama"
threads = "many"
[batching]
linger_ms = inf
[[recipes]]
name = "x"
marks = ["color"]
[[recipes]]
name = "x"
regions = [{ box = ["78%", "90%", "22%", "10%"] }]
""",
    )
    monkeypatch.setenv("WATCHER_COLD__MAX_PARALLEL", "0")
    found = problems(file, engine={"device": "gpu"})
    told = {problem.what: (problem.where, problem.remedy) for problem in found}
    assert told == {
        "outbox is not set": (str(file), "set outbox"),
        'after is "archive", but archive is not set': (
            str(file),
            'set archive to a folder, or after to "keep"',
        ),
        "unmarked cannot be 3": (str(file), 'set it to "hold" or "copy"'),
        "unknown key engine.nmae": (str(file), "did you mean engine.name?"),
        'engine.threads cannot be "many"': (str(file), "set it to a whole number"),
        "batching.linger_ms cannot be inf": (str(file), "set it to a finite number"),
        'recipes[1].marks cannot be ["color"]': (
            str(file),
            'set it to some of "mask", "marked_copy", "sidecar", "colour", "alpha", "regions"',
        ),
        'recipes[2].regions does nothing: recipes[2].marks has no "regions"': (
            str(file),
            'add "regions" to marks, or take regions out',
        ),
        'two recipes are named "x"': (str(file), "give each recipe a name of its own"),
        'cold.max_parallel cannot be "0"': (
            "environment variable WATCHER_COLD__MAX_PARALLEL",
            "set it to a number of at least 1",
        ),
        'engine.device cannot be "gpu"': (
            "the command line",
            'set it to "auto", "cpu", "cuda", "cuda:N" (N from 0) or "mps"',
        ),
    }


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ('inbx = "a"', "did you mean inbox?"),
        ("quiet_s = 3", "did you mean arrivals.quiet_s?"),
        ("[arivals]", "did you mean arrivals?"),
        ('[[recipes]]\nname = "a"\ngrwo = 3', "did you mean recipes[1].grow?"),
        ("[cold]\nfrobnicate = 1", "the keys there are enabled, max_parallel"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(tmp_path: Path, line: str, remedy: str) -> None:
    problem = the_problem(minimal(tmp_path, line + "\n"))
    assert problem.what.startswith("unknown key ")
    assert problem.remedy == remedy


@pytest.mark.parametrize(
    ("lines", "what", "remedy"),
    [
        (
            'marks = ["mask", "regions"]',
            'recipes[1].marks has "regions", but recipes[1] says neither regions nor region_mask',
            'or take "regions" out of marks',
        ),
        (
            'marks = ["regions"]\nregions = []',
            "says neither regions nor region_mask",
            "add regions = [{ box = ",
        ),
        (
            'marks = ["mask"]\ncolour = "#00FF00"',
            'recipes[1].colour does nothing: recipes[1].marks has no "colour"',
            'add "colour" to marks, or take colour out',
        ),
        (
            'region_mask = "mask.png"',
            'recipes[1].region_mask does nothing: recipes[1].marks has no "regions"',
            "add",
        ),
        ("regions = [{ box = [1, 2, 3, 4] }]", "recipes[1].regions does nothing", 'add "regions" to marks'),
        (
            'marks = ["alpha", "colour"]\ninvert = true',
            "recipes[1].invert does nothing: recipes[1] has no masks that could be inverted",
            'add "mask" to marks, or take invert out',
        ),
    ],
)
def test_a_key_that_would_never_do_anything_is_an_error(
    tmp_path: Path, lines: str, what: str, remedy: str
) -> None:
    (tmp_path / "mask.png").write_bytes(b"x")
    problem = the_problem(minimal(tmp_path, f'[[recipes]]\nname = "a"\n{lines}\n'))
    assert what in problem.what
    assert remedy in problem.remedy


def test_masks_and_a_region_mask_may_both_be_inverted_and_not_inverting_is_always_fine(
    tmp_path: Path,
) -> None:
    (tmp_path / "mask.png").write_bytes(b"x")
    for lines in (
        'marks = ["regions"]\nregion_mask = "mask.png"\ninvert = true',
        "invert = true",
        'marks = ["alpha"]\ninvert = false',
    ):
        settings.load(minimal(tmp_path, f'[[recipes]]\nname = "a"\n{lines}\n'))


@pytest.mark.parametrize(
    ("regions", "what", "remedy"),
    [
        (
            '[{ box = [1, 2, 3, 4] }, { box = ["78%", "90%", "22%", "10"] }]',
            'recipes[1].regions[2].box[4] (height): "10" is neither a number of pixels nor a percentage such',
            'write 120 for pixels, or "12.5%"',
        ),
        (
            '[{ box = [1, 2, 3], name = "logo" }]',
            'recipes[1].regions[1] ("logo").box: [1, 2, 3] is not a list of x, y, width and height',
            'write "box" = [x, y, width, height]',
        ),
        (
            "[{ box = [1, 2, 3, inf] }]",
            "recipes[1].regions[1].box[4] (height): Infinity is neither",
            "pixels",
        ),
        ("[{ box = [1, 2, 3, 1979-05-27] }]", '"1979-05-27" is neither a number', "pixels"),
        ("[{ bx = [1, 2, 3, 4] }]", 'recipes[1].regions[1]: unknown field "bx"', 'did you mean "box"?'),
        ("{ box = [1, 2, 3, 4] }", "recipes[1].regions: {", 'for each: write {"box" = ['),
    ],
)
@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_wrong_region_of_a_recipe_is_told_by_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, regions: str, what: str, remedy: str
) -> None:
    file = minimal(tmp_path)
    if source == "file":
        file = minimal(tmp_path, f'[[recipes]]\nname = "a"\nmarks = ["regions"]\nregions = {regions}\n')
    else:
        monkeypatch.setenv("WATCHER_RECIPES", f'[{{name = "a", marks = ["regions"], regions = {regions}}}]')
    problem = the_problem(file)
    assert what in problem.what
    assert remedy in problem.remedy
    assert problem.where == (str(file) if source == "file" else "environment variable WATCHER_RECIPES")


@pytest.mark.parametrize("colour", ["magenta", "FF00FF", "#FF00F", "#GG00FF", "#FF00FF00", "", "# F0F"])
def test_a_colour_is_red_green_and_blue(tmp_path: Path, colour: str) -> None:
    lines = f'[[recipes]]\nname = "a"\nmarks = ["colour"]\ncolour = "{colour}"\n'
    problem = the_problem(minimal(tmp_path, lines))
    assert problem.what == f'recipes[1].colour cannot be "{colour}"'
    assert '"#FF00FF" or "#F0F"' in problem.remedy


@pytest.mark.parametrize("colour", ["#FFFFFF", "#000", "#808080", "#F0C8F0", "#7F0040"])
def test_a_colour_that_pictures_are_full_of_is_refused(tmp_path: Path, colour: str) -> None:
    lines = f'[[recipes]]\nname = "a"\nmarks = ["colour"]\ncolour = "{colour}"\n'
    assert "set it to a strong colour" in the_problem(minimal(tmp_path, lines)).remedy
    settings.load(minimal(tmp_path, lines.replace(colour, "#800040")))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none.png", "No such file"),
        (".", "it is not a file"),
        ("https://example.org/mask.png", "No such file"),
    ],
)
def test_a_region_mask_that_cannot_be_read_is_told_at_the_start(
    tmp_path: Path, path: str, reason: str
) -> None:
    file = minimal(tmp_path, f'[[recipes]]\nname = "a"\nmarks = ["regions"]\nregion_mask = "{path}"\n')
    problem = the_problem(file)
    assert problem.what.startswith(f"recipes[1].region_mask cannot be read: {tmp_path}")
    assert reason in problem.what
    assert problem.where == str(file)
    assert "folder of the configuration file" in problem.remedy


def test_a_region_mask_by_a_variable_that_is_not_set_is_one_problem(tmp_path: Path) -> None:
    lines = '[[recipes]]\nname = "a"\nmarks = ["regions"]\nregion_mask = "$NOWHERE/a.png"\n'
    assert the_problem(minimal(tmp_path, lines)).what == (
        'recipes[1].region_mask cannot be "$NOWHERE/a.png": the environment variable NOWHERE is not set'
    )


def test_sections_of_a_later_version_are_told_apart_from_mistakes(tmp_path: Path) -> None:
    assert the_problem(minimal(tmp_path, "[http]\nenabled = true\n")).what == (
        "http comes in a later version of watcher"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [('inbox = "a"\noutbox = ~/b\n', 2), ('inbox = "a"\n\ninbox = "b"\n', 3), ('inbox = "a', 1)],
)
def test_broken_toml_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    file = written(tmp_path, text)
    problem = the_problem(file)
    assert problem.where == f"{file}, line {line}"


def test_a_file_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "watcher.toml"
    file.write_bytes(b'inbox = "a"\n# caf\xe9\n')
    assert the_problem(file).where == f"{file}, line 2"


def test_a_file_that_is_named_and_absent_is_an_error(tmp_path: Path) -> None:
    problem = the_problem(tmp_path / "none.toml", inbox="/a", outbox="/b")
    assert (problem.what, problem.where) == ("there is no configuration file", str(tmp_path / "none.toml"))
    assert "watcher init" in problem.remedy


def test_without_any_file_flags_are_enough_and_nothing_is_not() -> None:
    assert str(settings.load(inbox="/a", outbox="/b").inbox) == "/a"
    told = problems(None)
    assert [problem.what for problem in told] == ["inbox is not set", "outbox is not set"]
    assert all("does not exist" in problem.where and "watcher init" in problem.remedy for problem in told)


def test_a_misspelt_variable_is_an_error_and_a_strangers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHER_PORT", "tcp://10.0.0.1:80")  # as Kubernetes sets for a service named watcher
    settings.load(minimal(tmp_path))
    monkeypatch.setenv("WATCHER_ENGNE__NAME", "lama")
    monkeypatch.setenv("WATCHER_INBX", "/x")
    monkeypatch.setenv("WATCHER_ENGINE__DEVCE", "cpu")
    remedies = {problem.where.split()[-1]: problem.remedy for problem in problems(minimal(tmp_path))}
    assert remedies["WATCHER_INBX"] == "did you mean inbox?"
    assert remedies["WATCHER_ENGINE__DEVCE"] == "did you mean engine.device?"
    assert remedies["WATCHER_ENGNE__NAME"]


def test_an_unset_variable_in_a_path_is_an_error(tmp_path: Path) -> None:
    problem = the_problem(written(tmp_path, 'inbox = "$NOWHERE/in"\noutbox = "out"\n'))
    assert problem.what == 'inbox cannot be "$NOWHERE/in": the environment variable NOWHERE is not set'


def test_the_name_default_is_kept_for_everything_else(tmp_path: Path) -> None:
    problem = the_problem(minimal(tmp_path, '[[recipes]]\nname = "default"\nmatch = "*.png"\n'))
    assert "does not match everything" in problem.what


def test_a_glob_that_can_never_match_is_an_error(tmp_path: Path) -> None:
    problem = the_problem(minimal(tmp_path, '[[recipes]]\nname = "a"\nmatch = "/abs/*.png"\n'))
    assert "relative to the inbox" in problem.remedy


# --- folders -----------------------------------------------------------------------------------------------


def ready(tmp_path: Path, more: str = "") -> settings.Settings:
    for name in ("in", "out"):
        (tmp_path / name).mkdir(exist_ok=True)
    return settings.load(minimal(tmp_path, more))


def folder_problems(chosen: settings.Settings) -> list[str]:
    with pytest.raises(settings.ConfigurationError) as caught:
        settings.check_folders(chosen)
    assert caught.value.exit_code == 78
    return [problem.what for problem in caught.value.problems]


def test_folders_that_are_apart_are_fine_and_none_is_made(tmp_path: Path) -> None:
    settings.check_folders(ready(tmp_path))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("in", "in"),
        ("in", "in/sub"),
        ("in/deep/er", "in"),
        ("in", "link"),
        ("link/sub", "in"),
        ("in", "x/../in"),
    ],
)
def test_overlaps_are_refused_with_both_paths(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "x").mkdir()
    for name in ("in", "in/sub", "in/deep/er"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to("in")
    chosen = settings.load(minimal(tmp_path), inbox=str(tmp_path / first), outbox=str(tmp_path / second))
    (told,) = folder_problems(chosen)
    assert "inbox and outbox overlap" in told
    assert str(chosen.inbox) in told
    assert str(chosen.outbox) in told


def test_a_state_folder_that_does_not_exist_yet_is_compared_too(tmp_path: Path) -> None:
    ready(tmp_path)
    (tmp_path / "other").symlink_to("in")
    chosen = settings.load(minimal(tmp_path), state_dir=str(tmp_path / "other" / "a" / "b"))
    assert any("inbox and state_dir overlap" in told for told in folder_problems(chosen))


def test_missing_folders_name_their_remedy(tmp_path: Path) -> None:
    with pytest.raises(settings.ConfigurationError) as caught:
        settings.check_folders(settings.load(minimal(tmp_path)))
    assert [problem.what for problem in caught.value.problems] == [
        f"inbox does not exist: {tmp_path / 'in'}",
        f"outbox does not exist: {tmp_path / 'out'}",
    ]
    assert all("watcher init" in problem.remedy for problem in caught.value.problems)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("", encoding="ascii")
    (tmp_path / "out").mkdir()
    assert folder_problems(settings.load(minimal(tmp_path))) == [f"inbox is not a folder: {tmp_path / 'in'}"]


def test_archive_is_only_needed_where_it_is_used_and_never_overlaps(tmp_path: Path) -> None:
    settings.check_folders(ready(tmp_path, 'archive = "kept"\n'))
    assert folder_problems(ready(tmp_path, 'archive = "kept"\nafter = "archive"\n')) == [
        f"archive does not exist: {tmp_path / 'kept'}"
    ]
    assert "inbox and archive overlap" in folder_problems(ready(tmp_path, 'archive = "in/kept"\n'))[0]


@pytest.mark.parametrize("key", ["log.file", "model.cache_dir"])
@pytest.mark.parametrize("path", ["in/w", "in/new/w", "link/w", "out/../in/w", "in"])
def test_what_we_write_must_not_lie_in_the_inbox(tmp_path: Path, key: str, path: str) -> None:
    ready(tmp_path)
    (tmp_path / "link").symlink_to("in")
    section, name = key.split(".")
    chosen = settings.load(minimal(tmp_path), **{section: {name: str(tmp_path / path)}})
    (told,) = folder_problems(chosen)
    assert f"{key} lies in the inbox" in told
    assert str(chosen.inbox) in told


def test_a_region_mask_must_not_lie_in_the_inbox(tmp_path: Path) -> None:
    ready(tmp_path)
    (tmp_path / "in" / "mask.png").write_bytes(b"x")
    (tmp_path / "out" / "mask.png").write_bytes(b"x")
    recipe = '[[recipes]]\nname = "a"\nmarks = ["regions"]\nregion_mask = "{}/mask.png"\n'
    (told,) = folder_problems(settings.load(minimal(tmp_path, recipe.format("in"))))
    assert "recipes[1].region_mask lies in the inbox" in told
    settings.check_folders(settings.load(minimal(tmp_path, recipe.format("out"))))


def test_what_we_write_may_lie_anywhere_else(tmp_path: Path) -> None:
    ready(tmp_path)
    for path in ("in.log", "out/w.log", "w.log"):
        settings.check_folders(settings.load(minimal(tmp_path), log={"file": str(tmp_path / path)}))


def test_a_bind_mount_is_recognised_by_its_place_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inbox shows a folder inside the outbox: no parent of either has the other's inode."""
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "in").mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"21 20 8:1 {tmp_path}/out/sub {tmp_path / 'in'!s} rw - ext4 /dev/sda1 rw\n",
        encoding="utf-8",
    )
    assert folders.overlap(tmp_path / "in", tmp_path / "out") is None
    monkeypatch.setattr(folders, "MOUNTINFO", table)
    assert folders.overlap(tmp_path / "in", tmp_path / "out") == "is inside"
    assert folders.overlap(tmp_path / "out", tmp_path / "in") == "contains"


def test_letter_case_counts_only_where_the_file_system_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folders.overlap(tmp_path / "New", tmp_path / "new") is None
    monkeypatch.setattr(folders, "_ignores_case", lambda _folder: True)
    assert folders.overlap(tmp_path / "New", tmp_path / "new") == "is the same folder as"
    assert folders.overlap(tmp_path / "NEW", tmp_path / "new" / "sub") == "contains"


# --- weight ------------------------------------------------------------------------------------------------


def test_settings_load_no_terminal_library_and_stay_light() -> None:
    code = (
        "import sys, os; from watcher import settings\n"
        "assert not {'rich', 'typer', 'numpy', 'torch', 'PIL'} & set(sys.modules)\n"
        "settings.load(inbox='/a', outbox='/b').policy(once=False)\n"
        "print(open('/proc/self/statm').read().split()[1] if os.path.exists('/proc/self/statm') else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(run.stdout) * 4096 < 50_000_000
