"""The models of the configuration: every key, its type and its default.

Rules of this file: a default stands here or in `watcher.core.policy`, once; a validator's message is what
is allowed, so that it can follow "set it to". The service and the core never see these models: they get
plain policies (`Settings.policy`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

import msgspec
import platformdirs
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from watcher.core import policy as core_policy
from watcher.core.globs import compile_glob
from watcher.core.names import is_ignored
from watcher.regions import regions_from
from watcher.wire import EngineChoice, Limits, MarkSource

APP: Final = "watcher"
ENV_PREFIX: Final = "WATCHER_"
DEFAULT_RECIPE: Final = "default"
EVERYTHING: Final = frozenset({"**", "**/*"})
MARKS: Final[tuple[str, ...]] = get_args(MarkSource)

_ANYBODYS: Final = ("photo.png", "IMG_0042.png", "2026-11-30 at 10.00.png", "b/Screenshot 1.png")
"""Names with nothing in common but what a pattern for everything, or for every mask, would match."""
_STRONG: Final = 128
"""How far the largest and the smallest part of a marker colour must be apart. Measured with the worker's rule
on 75 photos of many cameras, none of them marked: colours 128 apart were seen in 1 look of 300, colours 64 to
96 apart in 1 of 28, a middle grey in 1 of 6."""
_MIB: Final = 1024 * 1024
_ARRIVALS: Final = core_policy.ArrivalPolicy()
_BATCHING: Final = core_policy.BatchPolicy()
_WORKER: Final = core_policy.WorkerPolicy()
_COLD: Final = core_policy.ColdPolicy()
_RECIPE: Final = core_policy.Recipe()


def is_url(text: str) -> bool:
    """Whether a source of weights is an address rather than a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None


def _as_list(value: object) -> object:
    """One text stands for a list of one; `a, b` from the environment for two."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _quality(value: object) -> object:
    text = str(value).strip()
    if isinstance(value, bool) or not (text == "source" or (text.isdecimal() and 1 <= int(text) <= 100)):  # noqa: PLR2004 - the scale of JPEG quality
        raise ValueError('"source" (as the picture came) or a whole number from 1 to 100')
    return text if text == "source" else int(text)


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", value):
        raise ValueError('"auto", "cpu", "cuda", "cuda:N" (N from 0) or "mps"')
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise ValueError("64 hexadecimal digits, as `sha256sum FILE` prints them")
    return value.lower()


def _weights_path(value: str) -> str:
    if is_url(value) and not value.startswith("file://"):
        raise ValueError("downloading comes in a later version: download the file yourself and name its path")
    return value


def _recipe_name(value: str) -> str:
    if not re.fullmatch(r"[\w][\w .-]{0,63}", value):
        raise ValueError("1 to 64 letters, digits, spaces, dots, dashes or underscores")
    return value


def _match(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError('one or more patterns, such as "*.png" or "strokes/**"')
    return _globs(value)


def _globs(value: tuple[str, ...]) -> tuple[str, ...]:
    for glob in value:
        try:
            compile_glob(glob)
        except ValueError as error:
            raise ValueError(f"other patterns: {error}") from error
    return value


def _ignore(value: tuple[str, ...]) -> tuple[str, ...]:
    for glob in _globs(value):
        if glob.startswith("^") or glob.endswith("$"):
            raise ValueError(
                f'globs, not regular expressions, where "{glob}" matches hardly anything: "*.part" for names '
                'that end so, "._*" for names that begin so; "[$]" means that character itself'
            )
        if all(is_ignored(name, (glob,)) for name in _ANYBODYS):
            raise ValueError(
                f'patterns for what is to be left alone: "{glob}" matches nearly every name, such as '
                f'"{_ANYBODYS[0]}", so that no mask would ever be seen'
            )
    return value


def _marks(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or set(value) - set(MARKS):
        raise ValueError("some of " + ", ".join(f'"{mark}"' for mark in MARKS))
    return tuple(dict.fromkeys(value))


def _colour(value: str) -> str:
    if not re.fullmatch(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})", value):
        raise ValueError('red, green and blue in hexadecimal, such as "#FF00FF" or "#F0F"')
    digits = value[1:] if len(value) > len("#RGB") else "".join(2 * digit for digit in value[1:])
    parts = bytes.fromhex(digits)
    if max(parts) - min(parts) < _STRONG:
        raise ValueError(
            'a strong colour, such as "#FF00FF" or "#00FF00": a grey or pale one is in every picture'
        )
    return f"#{digits.upper()}"


def _regions(value: object) -> object:
    return tuple(msgspec.json.decode(msgspec.json.encode(region)) for region in regions_from(value))


Texts: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
Quality: TypeAlias = Annotated[Literal["source"] | int, BeforeValidator(_quality)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
CountOrNever: TypeAlias = Annotated[int, Field(ge=0)]
"""0 means never."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Arrivals(_Section):
    """`[arrivals]`: how the inbox is watched."""

    observer: Literal["auto", "native", "polling"] = "auto"
    quiet_s: Seconds = _ARRIVALS.quiet_s
    rescan_s: Seconds = _ARRIVALS.rescan_s
    recursive: bool = True
    ignore: Annotated[Texts, AfterValidator(_ignore)] = ()
    """Globs to leave alone, besides the temporary names of browsers and sync clients."""


class Batching(_Section):
    """`[batching]`: what goes to the model together."""

    max_batch: Count = _BATCHING.max_batch
    max_pixels: Count = 200_000_000
    """The service reads no picture: the worker counts, and ends the batch early."""
    linger_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class Engine(_Section):
    """`[engine]`: what fills the holes, and where it runs."""

    name: Literal["auto", "lama", "patchmatch"] = "auto"
    device: Annotated[str, AfterValidator(_device)] = "auto"
    threads: Count | None = None
    deterministic: bool = False
    load: Literal["eager", "lazy"] = "eager"


class Model(_Section):
    """`[model]`: where the weights come from."""

    source: Annotated[str, AfterValidator(_weights_path)] | None = None
    """A path, or a `file://` address."""
    sha256: Annotated[str, AfterValidator(_sha256)] | None = None
    cache_dir: Path = Field(default_factory=lambda: platformdirs.user_cache_path(APP, appauthor=False))
    cache_max_bytes: Count = 2_000_000_000

    @property
    def source_path(self) -> Path | None:
        """The source, if it is a file of this machine."""
        if self.source is None:
            return None
        if self.source.startswith("file://"):
            return Path(unquote(urlsplit(self.source).path))
        return Path(self.source)


class Worker(_Section):
    """`[worker]`: the life of the resident process."""

    start_timeout_s: Seconds = _WORKER.start_timeout_s
    drain_s: Seconds = _WORKER.drain_s
    recycle_items: CountOrNever = 0
    recycle_hours: CountOrNever = 0
    recycle_growth_mb: CountOrNever = (_WORKER.recycle_growth_bytes or 0) // _MIB
    """MiB beyond what it used when it was warm: a limit below that could never be kept."""


class Cold(_Section):
    """`[cold]`: one-shot processes while the resident one is away."""

    enabled: bool = _COLD.enabled
    max_parallel: Count = _COLD.max_parallel


class Output(_Section):
    """`[output]`: how results are written."""

    on_conflict: Literal["version", "replace"] = "version"
    keep_metadata: bool = True
    quality: Quality = "source"


class Recipe(_Section):
    """One `[[recipes]]`: which files, where their marks come from, how the result is written."""

    name: Annotated[str, AfterValidator(_recipe_name)]
    match: Annotated[Texts, AfterValidator(_match)] = ("**",)
    marks: Annotated[Texts, AfterValidator(_marks)] = _RECIPE.marks
    grow: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Pixels. Left out: the larger of 4 px and 0.5 % of the long side."""
    invert: bool = _RECIPE.invert
    colour: Annotated[str, AfterValidator(_colour)] = _RECIPE.colour
    regions: Annotated[tuple[dict[str, Any], ...], BeforeValidator(_regions)] = ()
    """As `watcher.regions.Region`, in plain values."""
    region_mask: Path | None = None
    unmarked: Literal["hold", "copy"] | None = None
    orphan_masks: Literal["wait", "picture"] = "wait"
    quality: Quality | None = None
    keep_metadata: bool | None = None


class LogSection(_Section):
    """`[log]`: the service's own log and the timing log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    file: Path | None = None
    summary_minutes: CountOrNever = 60
    timings_max_mb: Count = 16
    timings_keep_days: Count = 90


def default_state_dir() -> Path:
    """The state folder of who configures none."""
    return platformdirs.user_state_path(APP, appauthor=False)


class Settings(BaseSettings):
    """The whole configuration, checked. All paths are absolute."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        enable_decoding=False,
        protected_namespaces=(),
    )

    inbox: Path
    outbox: Path
    archive: Path | None = None
    state_dir: Path = Field(default_factory=default_state_dir)
    after: Literal["keep", "archive", "delete"] = "keep"
    unmarked: Literal["hold", "copy"] = "hold"
    arrivals: Arrivals = Arrivals()
    batching: Batching = Batching()
    engine: Engine = Engine()
    model: Model = Field(default_factory=Model)
    worker: Worker = Worker()
    cold: Cold = Cold()
    output: Output = Output()
    recipes: tuple[Recipe, ...] = ()
    log: LogSection = LogSection()

    _config_file: Path | None = PrivateAttr(default=None)

    @property
    def journal_file(self) -> Path:
        """Where the journal lies."""
        return self.state_dir / "journal.sqlite3"

    @property
    def config_file(self) -> Path | None:
        """The file that was read, if there was one."""
        return self._config_file

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load` merges the sources itself, since it must know which value came from where."""
        return (init_settings,)

    def policy(self, *, once: bool) -> core_policy.Policy:
        """The numbers that the core decides with.

        Args:
            once: work off what is there in one-shot processes, then stop.
        """
        return core_policy.Policy(
            after=self.after,
            engine=self.engine.name,
            device=self.engine.device,
            once=once,
            arrivals=core_policy.ArrivalPolicy(
                quiet_s=self.arrivals.quiet_s, rescan_s=self.arrivals.rescan_s
            ),
            recipes=self._core_recipes(),
            batching=core_policy.BatchPolicy(
                max_batch=self.batching.max_batch,
                linger_s=self.batching.linger_ms / 1000,
            ),
            worker=core_policy.WorkerPolicy(
                start_timeout_s=self.worker.start_timeout_s,
                drain_s=self.worker.drain_s,
                recycle_items=self.worker.recycle_items or None,
                recycle_age_s=self.worker.recycle_hours * 3600.0 or None,
                recycle_growth_bytes=self.worker.recycle_growth_mb * _MIB or None,
                lazy=self.engine.load == "lazy",
            ),
            cold=core_policy.ColdPolicy(enabled=self.cold.enabled, max_parallel=self.cold.max_parallel),
            summary_s=self.log.summary_minutes * 60.0 or None,
        )

    def engine_choice(self) -> EngineChoice:
        """What the worker is asked to run."""
        path = self.model.source_path
        return EngineChoice(
            name=self.engine.name,
            device=self.engine.device,
            threads=self.engine.threads,
            deterministic=self.engine.deterministic,
            weights_path=None if path is None else str(path),
            weights_sha256=self.model.sha256,
            model_cache_dir=str(self.model.cache_dir),
        )

    def limits(self) -> Limits:
        """The bounds on a picture and a batch; the configuration has a key for the batch only."""
        return Limits(batch_pixels=self.batching.max_pixels)

    def _core_recipes(self) -> tuple[core_policy.Recipe, ...]:
        recipes = tuple(self._core_recipe(recipe) for recipe in self.recipes)
        if any(EVERYTHING.intersection(recipe.match) for recipe in self.recipes):
            return recipes
        return (*recipes, self._core_recipe(Recipe(name=DEFAULT_RECIPE)))

    def _core_recipe(self, recipe: Recipe) -> core_policy.Recipe:
        quality = self.output.quality if recipe.quality is None else recipe.quality
        keep = self.output.keep_metadata if recipe.keep_metadata is None else recipe.keep_metadata
        return core_policy.Recipe(
            name=recipe.name,
            match=recipe.match,
            marks=recipe.marks,
            grow_px=recipe.grow,
            invert=recipe.invert,
            colour=recipe.colour,
            regions=recipe.regions,
            region_mask=None if recipe.region_mask is None else str(recipe.region_mask),
            unmarked=recipe.unmarked or self.unmarked,
            orphan_masks=recipe.orphan_masks,
            quality=None if quality == "source" else quality,
            keep_metadata=keep,
        )
