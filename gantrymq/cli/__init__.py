"""The command line: one module per group of commands, none of them with logic of the broker.

A command loads what it needs when it runs, so that `--help` and `status` stay fast.
"""


def main() -> None:
    """Run the command line and leave the process with its documented exit code."""
    from gantrymq.cli.app import main as run

    run()
