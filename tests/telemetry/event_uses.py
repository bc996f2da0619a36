"""Every place in the code that writes a line of the log: event, levels, fields. Read off the source.

Rules of this file:
- What cannot be read off is an error, not a gap: a call whose fields are computed in a way that is not known
  here fails the test, and is written more plainly or taught to this file.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import watcher

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES: Final = Path(watcher.__file__).parent
LEVELS: Final = frozenset({"debug", "info", "warning", "error"})
_NAME: Final = re.compile(r"[a-z]+\.[a-z_]+")
_WRITER: Final = re.compile(r"(.*\.)?(Log|_?log\.write|_ledger\.log|self\._?log)")
"""What takes a level, an event and its fields."""
_OF_A_STATE: Final = "f'job.{job.state.value}'"
"""The one name that is made of a state, in the ledger."""
_REFUSALS: Final = {"job.failed": frozenset({"warning"}), "job.quarantined": frozenset({"error"})}
_PASSED_ON: Final = frozenset({"event", "command.event"})
"""Names in the few functions that hand a line on that was made elsewhere."""
_FIELDS_PASSED_ON: Final = frozenset({"command.fields", "fields", "dict(fields)"})


@dataclass(frozen=True, slots=True)
class Use:
    """One place."""

    event: str
    levels: frozenset[str]
    fields: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class _Module:
    place: str
    tree: ast.Module

    def functions(self) -> Iterator[ast.FunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                yield node

    def named(self, name: str) -> ast.FunctionDef | None:
        return next((function for function in self.functions() if function.name == name), None)


def uses() -> list[Use]:
    """All of them. The worker reports to the service, it has no log of its own."""
    found = []
    for file in sorted(SOURCES.rglob("*.py")):
        if (SOURCES / "worker") not in file.parents:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found += list(_in_module(_Module(str(file.relative_to(SOURCES)), tree)))
    return found


def _in_module(module: _Module) -> Iterator[Use]:
    for function in module.functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                yield from _of_call(node, function, module)


def _of_call(call: ast.Call, function: ast.FunctionDef, module: _Module) -> Iterator[Use]:
    methods = {node.attr for node in ast.walk(call.func) if isinstance(node, ast.Attribute)}
    if call.args and (called := methods & {*LEVELS, "exception"}):  # two, where one is chosen
        levels = frozenset("error" if method == "exception" else method for method in called)
        event, given = call.args[0], call.args[1:]
        if not (isinstance(event, ast.Constant) and _is_name(event.value)):
            return  # something else that is called so: a logger of a library, an error
    elif _WRITER.fullmatch(ast.unparse(call.func)) and len(call.args) >= 2:
        levels = _levels(call.args[0], function)
        event, given = call.args[1], call.args[2:]
    else:
        return
    fields = tuple(dict.fromkeys(_fields(call, given, function, module)))
    for name in _names(event, module):
        yield Use(name, _REFUSALS.get(name, levels), fields, f"{module.place}:{call.lineno}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _names(event: ast.expr, module: _Module) -> tuple[str, ...]:
    if isinstance(event, ast.Constant) and _is_name(event.value):
        return (str(event.value),)
    text = ast.unparse(event)
    if text == _OF_A_STATE:
        return tuple(_REFUSALS)
    assert text in _PASSED_ON, f"{module.place}:{event.lineno}: which event is {text}?"
    return ()


def _levels(level: ast.expr, function: ast.FunctionDef) -> frozenset[str]:
    """The levels that an expression may be; of a variable, all that the function mentions."""
    scope: ast.AST = function if isinstance(level, ast.Name) else level
    texts = {node.value for node in ast.walk(scope) if isinstance(node, ast.Constant)}
    if isinstance(level, ast.Attribute | ast.Name) and not texts & LEVELS:
        return LEVELS
    return frozenset(str(text) for text in texts & LEVELS)


def _fields(
    call: ast.Call, given: list[ast.expr], function: ast.FunctionDef, module: _Module
) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg
        else:
            yield from _keys(keyword.value, function, module)
    for argument in given:
        if ast.unparse(argument) not in _FIELDS_PASSED_ON:
            yield from _keys(argument, function, module)


def _keys(value: ast.expr, function: ast.FunctionDef, module: _Module) -> Iterator[str]:
    """The keys of a mapping that is written down somewhere in the module."""
    match value:
        case ast.Dict():
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value)
                else:
                    assert key is None, f"{module.place}:{value.lineno}: a key that is computed"
                    yield from _keys(item, function, module)
        case ast.Call(func=ast.Name(id=name)) if (callee := module.named(name)) is not None:
            yield from _returned(callee, module)
        case ast.Name(id=name) if function.args.kwarg is not None and function.args.kwarg.arg == name:
            yield from _passed(function, module)
        case ast.Name(id=name):
            assigned = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                and any(ast.unparse(target) == name for target in node.targets)
            ]
            assert assigned, f"{module.place}:{value.lineno}: where does {name} come from?"
            for source in assigned:
                yield from _keys(source, function, module)
        case ast.Call(func=ast.Attribute(attr=name)):
            yield from _OF_OTHER_MODULES[name]
        case _:
            raise AssertionError(f"{module.place}:{value.lineno}: which fields are {ast.unparse(value)}?")


_OF_OTHER_MODULES: Final = {
    "take": (
        *("over_s", "done", "unchanged", "failed", "quarantined", "superseded", "gone"),
        *("held", "hot", "cold", "p50_ms", "p95_ms", "restarts"),
    ),
}
"""What a method of another module returns: `Summary.take`, whose own test holds these."""


def _returned(function: ast.FunctionDef, module: _Module) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from _keys(node.value, function, module)


def _passed(function: ast.FunctionDef, module: _Module) -> Iterator[str]:
    """What the callers in the module give beyond the parameters that have names."""
    own = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    for caller in module.functions():
        for node in ast.walk(caller):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(f".{function.name}"):
                continue
            for keyword in node.keywords:
                if keyword.arg is None:
                    yield from _keys(keyword.value, caller, module)
                elif keyword.arg not in own:
                    yield keyword.arg
