"""The command `nexus`, also as `python -m nexus`."""


def main() -> None:
    """Run the command line; without its packages, which the client does not need, say how to have them."""
    try:
        from nexus.cli import main as run  # noqa: PLC0415  # it may not be installed
    except ModuleNotFoundError as error:
        if str(error.name).startswith("nexus"):
            raise
        raise SystemExit(f"nexus: {error.name} is missing: pip install 'nexus-context[server]'") from None
    run()


if __name__ == "__main__":
    main()
