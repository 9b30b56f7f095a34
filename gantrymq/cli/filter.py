"""`gantrymq filter ...`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gantrymq.cli.completion import topic_names
from gantrymq.cli.options import HomeOption, JsonOption, home_of, print_json
from gantrymq.shm.errors import Rejected

app = typer.Typer(help="Look at SQL92 filters.", no_args_is_help=True)
_WIDTH = 50


@app.callback()
def _root() -> None:
    """Keeps `explain` a command of a group."""


@app.command(
    help="""Show what an SQL92 expression means.

Its tree, its program, with --message what each part says of these properties, and with --topic
how many of the topic's last messages would pass (a broker has to run for that).
Texts have limits (65,536 characters, 100 deep, 64 properties) that a RocketMQ does not have.

\b
Example: gantrymq filter explain "price > 10 AND a IN ('x')" --message price=12 --message a=x
Exit codes: 0 done; 1 the message given would not pass; 2 it does not compile; 69 no broker.
""",
)
def explain(
    expression: Annotated[str, typer.Argument(help="An SQL92 expression.")],
    message: Annotated[
        list[str] | None, typer.Option("--message", help="A property, NAME=VALUE; several times.")
    ] = None,
    dialect: Annotated[
        str, typer.Option(help="sql, or rocketmq: its rules, within our limits of size.")
    ] = "sql",
    topic: Annotated[
        str | None, typer.Option(help="Count in this topic.", autocompletion=topic_names)
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many of its last.")] = 1000,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show an expression's tree, program and results."""
    from gantrymq.clients.subscription import dialect_of
    from gantrymq.shm.filter import parse_sql
    from gantrymq.shm.sql92.explain import explain as parts_of
    from gantrymq.shm.sql92.program import compile_program

    chosen = parse_sql(expression, dialect_of(dialect))
    properties = None if message is None else dict(_property(item) for item in message)
    parts = list(parts_of(chosen.node, properties, chosen.dialect))
    found: dict[str, Any] = {
        "expression": expression,
        "dialect": dialect,
        "tree": [{"depth": p.depth, "part": p.text, "value": p.value} for p in parts],
        "program": compile_program(chosen.node, chosen.dialect).listing(),
    }
    if properties is not None:
        found["passes"] = chosen.matches(properties) is True
    if topic is not None:
        from gantrymq.cli.filter_count import count_passing

        found["topic"] = count_passing(chosen, home_of(home), topic, last)
    print_json(found) if as_json else _print(found)
    if not found.get("passes", True):
        raise typer.Exit(1)


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Rejected(f"--message {text}: give a property as NAME=VALUE")
    return name, value


def _print(found: dict[str, Any]) -> None:
    lines = ["tree:"]
    for part in found["tree"]:
        text = "  " * (part["depth"] + 1) + part["part"]
        lines.append(f"{text:{_WIDTH}} {part['value']}".rstrip())
    lines += ["program:", *found["program"]]
    if "passes" in found:
        lines.append("the message passes" if found["passes"] else "the message does not pass")
    if "topic" in found:
        count = found["topic"]
        lines.append(f"{count['passed']} of the last {count['examined']} of {count['topic']} pass")
    sys.stdout.write("\n".join(lines) + "\n")
