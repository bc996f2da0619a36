"""The commands and their options, as typer reads them from the signatures.

Rules of this file: each docstring is the command's help, so it teaches, with examples; the terminal library
is never imported here (see `watcher.cli.views`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from watcher import __version__, settings
from watcher.core.job import JobState
from watcher.ports import RemediableError

EXIT_JOBS_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIGURATION = 78

ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration file. Default: $WATCHER_CONFIG, else the user's own."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print facts as JSON, for programs.")]
InboxOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Instead of the configured one.")
]
OutboxOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Instead of the configured one.")
]
StateOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="Instead of the configured one: each inbox has its own."),
]
EngineOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="auto, lama or patchmatch.")
]
DeviceOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="auto, cpu, cuda:N or mps.")
]
LogLevelOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
]

app = typer.Typer(
    name="watcher",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Watches an inbox folder and cleans the marked pictures that arrive in it.\n\n"
    "First `watcher init`, then `watcher run`. Drop `IMG.jpg` into the inbox, and beside it "
    "`IMG.jpg.mask.png` (white where something is to go) or `IMG.marked.jpg` (the picture again, with what "
    "is to go scribbled over): the clean picture appears in the outbox under the same name. The "
    "configuration explains four more ways to mark; `watcher preview IMG.jpg` shows what would go.\n\n"
    "Exit codes: 0 done, 1 some jobs failed, 2 usage, 70 internal, 75 try again, 78 configuration.",
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if wanted:
        typer.echo(f"watcher {__version__}")
        raise typer.Exit


@app.callback()
def watcher(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that come before a command; the help stands in `app`."""


@app.command()
def init(
    *,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Gets the inbox and outbox. Default: ~/Retouch")
    ] = None,
    config: ConfigOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a configuration that exists; it is kept as FILE.bak.")
    ] = False,
) -> None:
    """Make the folders and a commented configuration.

    With a configuration that exists already, only the folders that it names are made.

    Examples: `watcher init` - `watcher init ~/Sync/Retouch` - `watcher init --config ./w.toml ./pictures`
    """
    from watcher.cli import setting_up  # noqa: PLC0415 - only this command needs it

    for line in setting_up.init(directory, config or settings.default_config_path(), force=force):
        typer.echo(line)


@app.command()
def run(
    *,
    config: ConfigOption = None,
    inbox: InboxOption = None,
    outbox: OutboxOption = None,
    state_dir: StateOption = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run the service in the foreground, until SIGTERM or Ctrl-C.

    A first signal finishes the batch that is being worked on, a second one ends at once. Nothing is lost
    either way.

    Examples: `watcher run` - `watcher run --engine patchmatch --log-level debug`
    """
    chosen = _usable(config, _flags(inbox, outbox, state_dir, engine, device, log_level))
    from watcher.app import run_service  # noqa: PLC0415 - the other commands do without it
    from watcher.cli.logging_setup import configure_log  # noqa: PLC0415 - as above

    configure_log(chosen)
    raise SystemExit(run_service(chosen))


@app.command()
def once(  # noqa: PLR0913 - each option is a parameter: typer reads them off
    *,
    config: ConfigOption = None,
    inbox: InboxOption = None,
    outbox: OutboxOption = None,
    state_dir: StateOption = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
    log_level: LogLevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Work off what is in the inbox, then exit: 0 if all is done, 1 if some pictures failed.

    Pictures in which nothing is marked are held, which is no failure.

    Examples: `watcher once` - `watcher once --inbox ./in --outbox ./out --state-dir ./state`
    """
    chosen = _usable(config, _flags(inbox, outbox, state_dir, engine, device, log_level))
    from watcher.cli.working_off import work_off  # noqa: PLC0415 - the other commands do without it

    raise SystemExit(EXIT_JOBS_FAILED if work_off(chosen, as_json=as_json) else 0)


@app.command()
def demo(
    *,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Work in this folder and leave it. Default: a scratch folder."),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="auto, lama or patchmatch.")] = "auto",
) -> None:
    """See it work: real pictures, one, then a burst, then with the worker killed.

    Examples: `watcher demo` - `watcher demo --keep ./demo --engine patchmatch`
    """
    from watcher.cli.demonstration import run_demo  # noqa: PLC0415 - the other commands do without it

    raise SystemExit(run_demo(keep=keep, engine=engine))


@app.command()
def preview(
    *,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="The picture.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="JPEG, PNG or WebP. Default: IMG.preview.jpg, here."
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A mask, marked copy or sidecar, instead of what lies beside IMAGE."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of the recipe that would serve IMAGE.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what would go from a picture, laid over it; nothing is filled, and nothing goes to the outbox.

    Tells which marks were found, how many pixels they have, and the boxes that the model would see. A picture
    outside the inbox is looked at as if it lay at its top.

    Examples: `watcher preview IMG.jpg` - `watcher preview ~/Retouch/inbox/strokes/a.png -o ~/a.jpg`
    """
    from watcher.cli import previewing, views  # noqa: PLC0415 - the other commands do without it

    report = previewing.preview_report(image, config=config, mask=mask, output=output, recipe=recipe)
    if as_json:
        views.print_json(report)
    else:
        views.print_preview(report)


@app.command()
def accept(  # noqa: PLR0913 - each option is a parameter: typer reads them off
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Gets the report. Default: acceptance-DATE-TIME, here."
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Your own, with their marks; they are copied. Default: the samples."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=50, metavar="N", help="Fresh ones on the hot path, one after the other.")
    ] = 8,
    requests: Annotated[
        int,
        typer.Option(min=5, max=10_000, metavar="N", help="On the hot path, after the first of each worker."),
    ] = 40,
    batch: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Pictures at once.")] = 8,
    kills: Annotated[int, typer.Option(min=0, max=20, metavar="N", help="Of the worker.")] = 3,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Work in this folder and leave it. Default: a scratch folder."),
    ] = None,
    config: ConfigOption = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this build: batch, hot path, cold path, recovery, model cache, segment by segment.

    Starts a service of its own, with your engine, device and model, kills its worker, and reads the records.
    Writes acceptance.json, .md and .html. A claim that does not hold is a result: the exit code is 1 only if
    a picture failed. `watcher compare` says what changed between two reports.

    Examples: `watcher accept` - `watcher accept --engine lama -o before` - `watcher accept --pictures ./mine`
    """
    from watcher.acceptance.running import Options  # noqa: PLC0415 - the other commands do without it
    from watcher.cli import accepting  # noqa: PLC0415 - as above

    chosen = accepting.measured(config, engine, device)
    options = Options(pictures, batch, workers, requests, kills, downs=kills, keep=keep)
    raise SystemExit(EXIT_JOBS_FAILED if accepting.accept(chosen, options, output, as_json=as_json) else 0)


@app.command()
def compare(
    *,
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The report before: acceptance.json, or its folder.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The report after.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two acceptance reports, segment by segment: is B faster than A, and where.

    A difference counts only if it is more than chance, the machine and the next run of one build explain.
    Says first what differs in configuration, devices and environment. The exit code is 0 whatever comes out.

    Examples: `watcher compare ./before ./after` - `watcher compare before/acceptance.json after --json`
    """
    from msgspec import to_builtins  # noqa: PLC0415 - the other commands do without it

    from watcher.acceptance import report  # noqa: PLC0415 - as above
    from watcher.acceptance.comparison import compare as compare_reports  # noqa: PLC0415 - as above
    from watcher.cli import views  # noqa: PLC0415 - as above

    comparison = compare_reports(report.read(a), report.read(b))
    if as_json:
        views.print_json(to_builtins(comparison))
    else:
        views.print_comparison(comparison)


@app.command()
def status(
    *, config: ConfigOption = None, state_dir: StateOption = None, as_json: JsonOption = False
) -> None:
    """Tell whether the service runs, which engine and device, and how the jobs stand.

    Examples: `watcher status` - `watcher status --json | jq .running`
    """
    from watcher.cli import reports, views  # noqa: PLC0415 - the terminal library costs memory that `run` spares

    report = reports.status_report(settings.load(config, state_dir=state_dir))
    if as_json:
        views.print_json(report)
    else:
        views.print_status(report)


@app.command()
def jobs(
    *,
    config: ConfigOption = None,
    state: Annotated[
        list[JobState] | None, typer.Option("--state", metavar="STATE", help="Only these; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 50,
    state_dir: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest last.

    States: waiting, ready, running, publishing, held; and at the end done, unchanged, failed, quarantined,
    superseded, gone.

    Examples: `watcher jobs` - `watcher jobs --state failed --state quarantined` - `watcher jobs --json`
    """
    from watcher.cli import reports, views  # noqa: PLC0415 - the terminal library costs memory that `run` spares

    report = reports.jobs_report(settings.load(config, state_dir=state_dir), states=state or (), limit=limit)
    if as_json:
        views.print_json(report)
    else:
        views.print_jobs(report)


@app.command()
def retry(
    *,
    job: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="Ids of jobs, or pictures' paths in the inbox."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that failed or are quarantined.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do finished jobs again: after you mended what was wrong, or with a changed recipe.

    Results that exist stay: the new one is a version (`IMG (2).jpg`), unless on_conflict says otherwise.

    Examples: `watcher retry --all` - `watcher retry holidays/IMG_1.jpg`
    """
    if every == bool(job):
        raise typer.BadParameter("name the jobs, or give --all (not both); `watcher jobs` lists them")
    from watcher.cli import reports, views  # noqa: PLC0415 - the terminal library costs memory that `run` spares

    report = reports.request_retry(settings.load(config, state_dir=state_dir), None if every else job)
    if as_json:
        views.print_json(report)
    else:
        views.print_retry(report)


@app.command()
def trace(  # noqa: PLR0913 - each option is a parameter: typer reads them off
    *,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="A job's id, or its picture's path in the inbox.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The jobs of a batch: b3, or 12/b3 for run 12 of the service."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="2026-11-30T10:00 (UTC), or how long ago: 90s, 2h, 7d.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="As --since.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many jobs, the newest.")] = 1000,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Default: JOB.trace.json here; the standard output where that is piped (or -).",
        ),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Show where the time went, as a trace: each job's time chain, each worker's life and its batches.

    One job, the jobs of a batch, or those of a span of time; without any of these all that is known. Open the
    file in Perfetto (ui.perfetto.dev, it stays in your browser) or in Chrome at chrome://tracing.

    Examples: `watcher trace 1a2b3c4d-17` - `watcher trace --since 2h -o evening.json` -
    `watcher trace --batch b3`
    """
    from watcher.cli import tracing  # noqa: PLC0415 - the other commands do without it

    wish = tracing.Wish(job=job, batch=batch, since=since, until=until, limit=limit)
    made, facts = tracing.make_trace(settings.load(config, state_dir=state_dir), wish)
    file = tracing.write_trace(made, facts, output, wish)
    left_out = facts["jobs_left_out"]
    if left_out:
        typer.echo(f"{left_out} older jobs are left out: --limit, or a shorter span", err=True)
    if file is not None:
        typer.echo(f"{file}: {facts['jobs']} jobs, {facts['workers']} workers")


@app.command()
def doctor(
    *,
    config: ConfigOption = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Also ask PyTorch, in a process of its own, which devices it sees."),
    ] = False,
    state_dir: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at what the service depends on: configuration, folders, limits, packages, weights, devices.

    These are facts about the machine; nothing here says how fast it is. Exit code 78 if something is wrong.

    Examples: `watcher doctor` - `watcher doctor --probe --json`
    """
    from watcher.cli import views  # noqa: PLC0415 - the terminal library costs memory that `run` spares
    from watcher.cli.examination import examine  # noqa: PLC0415 - the other commands do without it

    report = examine(config, state_dir, probe=probe)
    if as_json:
        views.print_json(report)
    else:
        views.print_doctor(report)
    raise SystemExit(EXIT_CONFIGURATION if report["problems"] else 0)


def _flags(
    inbox: Path | None,
    outbox: Path | None,
    state_dir: Path | None,
    engine: str | None,
    device: str | None,
    log_level: str | None,
) -> Mapping[str, object]:
    return {
        "inbox": inbox,
        "outbox": outbox,
        "state_dir": state_dir,
        "engine": {"name": engine, "device": device},
        "log": {"level": log_level},
    }


def _usable(config: Path | None, flags: Mapping[str, object]) -> settings.Settings:
    chosen = settings.load(config, **flags)
    settings.check_folders(chosen)
    settings.check_access(chosen)
    if (flags["inbox"] or flags["outbox"]) and chosen.state_dir == settings.default_state_dir():
        raise RemediableError(
            "--inbox and --outbox need a --state-dir: the default state folder is the configured inbox's",
            "name a folder of this inbox's own, and the same one every time: --state-dir DIR",
            exit_code=EXIT_USAGE,
        )
    return chosen
